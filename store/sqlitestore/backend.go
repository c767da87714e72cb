package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"modernc.org/sqlite"
	sqlite3 "modernc.org/sqlite/lib"

	"github.com/waybillhq/waybill/store/driver"
)

// backend implements every role of package driver.
type backend struct {
	queue     // the outbox
	db        *sql.DB
	cfg       Config
	opened    bool // opened by Open: Close closes the database
	immediate bool // every transaction of db begins with the write lock
	sql       *statements
	hub       driver.Hub
	turns     turns

	migrations migrations
	backlogs   backlogs

	// writer is the store's own write transaction; there is one at a time.
	writer atomic.Pointer[writing]
	// readers has the store's own read-only transactions: *sql.Tx → struct{}.
	readers sync.Map

	checked atomic.Bool // the file has passed the checks
	// gap means that the tables record that delivered events leave no history.
	gap       atomic.Bool
	wanted    atomic.Bool // a statement is marked to be prepared
	preparing sync.Mutex
}

var (
	_ driver.Complete[*sql.Tx] = (*backend)(nil)
	_ driver.SQLAppender       = (*backend)(nil)
	_ driver.KeyPeeker         = (*backend)(nil)
	_ driver.RetryClassifier   = (*backend)(nil)
	_ driver.Migrator          = (*backend)(nil)
	_ driver.Backlogs          = (*backend)(nil)
	_ driver.Restorer          = (*backend)(nil)
	_ driver.Audit             = (*backend)(nil)
	_ driver.Rollups           = (*backend)(nil)
	_ driver.Causes            = (*backend)(nil)
	_ driver.Applied           = (*backend)(nil)
)

func newBackend(db *sql.DB, cfg Config) *backend {
	names := cfg.replacer()
	s := &backend{db: db, cfg: cfg, sql: newStatements(names), migrations: newMigrations(names)}
	s.queue = queue{store: s, sql: &s.sql.queueStatements}
	return s
}

// Local implements [driver.Local].
func (s *backend) Local() *driver.Hub { return &s.hub }

// close closes the store; see [Store.Close].
func (s *backend) close() error {
	if s.opened {
		return s.db.Close()
	}
	var errs []error
	for _, st := range s.statements() {
		if p := st.prepared.Swap(nil); p != nil {
			errs = append(errs, p.Close()) //nolint:sqlclosecheck // this is the end of all of them
		}
	}
	return errors.Join(errs...)
}

// querier runs the checks: the database, or, inside a transaction, the
// transaction itself, because the pool may have no other connection.
type querier interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// ready checks, once, that the file is fit and has the tables.
func (s *backend) ready(ctx context.Context, q querier) error {
	if s.checked.Load() {
		return nil
	}
	if err := s.fit(ctx, q); err != nil {
		return err
	}
	var lanes string
	if _, err := readOne(ctx, q, s.sql.lanes.text, &lanes); err != nil {
		return s.explain(err)
	}
	if lanes != strconv.Itoa(lanesOfFile) {
		return fmt.Errorf("sqlitestore: invalid lane count %q in the tables, want %d", lanes, lanesOfFile)
	}
	s.checked.Store(true)
	return nil
}

// fit checks that the database is safe for an outbox.
func (s *backend) fit(ctx context.Context, q querier) error {
	var version, mode string
	if _, err := readOne(ctx, q, `SELECT sqlite_version()`, &version); err != nil {
		return s.explain(err)
	}
	if err := checkVersion(version); err != nil && !s.cfg.AllowUnsafeVersion {
		return err
	}
	if _, err := readOne(ctx, q, `PRAGMA main.journal_mode`, &mode); err != nil {
		return s.explain(err)
	}
	if !strings.EqualFold(mode, "wal") {
		return fmt.Errorf("sqlitestore: journal mode is %q, want wal: open a file, not an in-memory database, with _journal_mode=WAL, "+
			"or run PRAGMA journal_mode=WAL once", mode)
	}
	return nil
}

// safeVersion is the first SQLite without the bug that lets a checkpoint and a
// write corrupt a file in WAL mode.
var safeVersion = [3]int{3, 51, 3}

func checkVersion(version string) error {
	var v [3]int
	parts := strings.SplitN(version, ".", len(v)+1)
	for i := range v {
		if i >= len(parts) {
			break
		}
		n, err := strconv.Atoi(parts[i])
		if err != nil {
			return fmt.Errorf("sqlitestore: SQLite version %q is not three numbers", version)
		}
		v[i] = n
	}
	for i, want := range safeVersion {
		if v[i] > want {
			return nil
		}
		if v[i] < want {
			return fmt.Errorf("sqlitestore: SQLite %s can corrupt a file in WAL mode; use 3.51.3 or later, "+
				"or set Config.AllowUnsafeVersion if your build has the fix", version)
		}
	}
	return nil
}

// readOne reads the first row, if any, and reports whether there was one.
func readOne(ctx context.Context, q querier, query string, dest ...any) (bool, error) {
	rows, err := q.QueryContext(ctx, query)
	return scanOne(rows, err, dest...)
}

// scanOne reads the first row, if any, closes the rows, and reports whether
// there was one.
func scanOne(rows *sql.Rows, err error, dest ...any) (bool, error) {
	if err != nil {
		return false, err
	}
	defer rows.Close()
	found := rows.Next()
	if found {
		if err := rows.Scan(dest...); err != nil {
			return false, err
		}
	}
	return found, rows.Err()
}

// code returns SQLite's result codes of an error: the extended code and its
// primary code. Both are 0 for an error that is not SQLite's.
func code(err error) (extended, primary int) {
	var e *sqlite.Error
	if !errors.As(err, &e) {
		return 0, 0
	}
	return e.Code(), e.Code() & 0xff
}

func isBusy(err error) bool {
	_, primary := code(err)
	return primary == sqlite3.SQLITE_BUSY
}

// explain adds advice to an error where SQLite's message alone is not enough.
func (s *backend) explain(err error) error {
	if err == nil {
		return nil
	}
	_, primary := code(err)
	switch {
	case primary == sqlite3.SQLITE_ERROR && strings.Contains(err.Error(), "no such table: "+mainSchema+"."+s.cfg.Prefix):
		return fmt.Errorf("sqlitestore: the tables are missing; call Migrate, or apply MigrationSQL with the sqlite3 shell: %w", err)
	case primary == sqlite3.SQLITE_BUSY:
		return fmt.Errorf("sqlitestore: another connection is writing: %w", err)
	case primary == sqlite3.SQLITE_READONLY, primary == sqlite3.SQLITE_CANTOPEN:
		return fmt.Errorf("sqlitestore: the file or its directory is not writable: %w", err)
	}
	return fmt.Errorf("sqlitestore: %w", err)
}

// micros returns a time as it is stored.
func micros(t time.Time) int64 { return t.UnixMicro() }
