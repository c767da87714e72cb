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

	"github.com/waybillhq/waybill/store"
)

// Store stores the outbox, the inbox and idempotency keys in a SQLite file. It
// implements every role of package store for transactions of type [*sql.Tx],
// and is safe for concurrent use.
type Store struct {
	db        *sql.DB
	cfg       Config
	opened    bool // opened by Open: Close closes the database
	immediate bool // every transaction of db begins with the write lock
	sql       *statements
	hub       store.Hub
	turns     turns

	migrations migrations

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
	_ store.Outbox[*sql.Tx]   = (*Store)(nil)
	_ store.SQLAppender       = (*Store)(nil)
	_ store.Relay             = (*Store)(nil)
	_ store.Finisher[*sql.Tx] = (*Store)(nil)
	_ store.Operator          = (*Store)(nil)
	_ store.Inbox[*sql.Tx]    = (*Store)(nil)
	_ store.Keys[*sql.Tx]     = (*Store)(nil)
	_ store.KeyPeeker         = (*Store)(nil)
	_ store.RetryClassifier   = (*Store)(nil)
	_ store.Jobs[*sql.Tx]     = (*Store)(nil)
	_ store.HistoryAudit      = (*Store)(nil)
	_ store.Migrator          = (*Store)(nil)
)

// New returns a store over a database that was opened with the driver
// modernc.org/sqlite, for example
//
//	sql.Open("sqlite", "file:shop.db?_journal_mode=WAL&_txlock=immediate&_busy_timeout=10000&_foreign_keys=1")
//
// New does not access the database. The caller keeps ownership of db. The file
// must be in WAL mode; the first use checks that. Without _txlock=immediate the
// store's transactions still take the write lock at the start, but the caller's
// own transactions do not: they can fail with SQLITE_BUSY when they turn from
// reading to writing, regardless of the busy timeout. Without a busy timeout
// the caller's own transactions fail whenever they meet another writer.
func New(db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("sqlitestore: database is nil")
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return newStore(db, cfg), nil
}

func newStore(db *sql.DB, cfg Config) *Store {
	names := cfg.replacer()
	return &Store{db: db, cfg: cfg, sql: newStatements(names), migrations: newMigrations(names)}
}

// DB returns the database, for the service's own tables and transactions.
func (s *Store) DB() *sql.DB { return s.db }

// Local implements [store.Local].
func (s *Store) Local() *store.Hub { return &s.hub }

// Close closes the store and the database that [Open] opened. A database that
// was passed to [New] stays open. The store must not be used after Close.
func (s *Store) Close() error {
	if s.opened {
		return s.db.Close()
	}
	var errs []error
	for _, st := range s.sql.all {
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
func (s *Store) ready(ctx context.Context, q querier) error {
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
func (s *Store) fit(ctx context.Context, q querier) error {
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
func (s *Store) explain(err error) error {
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
