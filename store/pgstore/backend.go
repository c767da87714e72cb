package pgstore

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

	"github.com/waybillhq/waybill/internal/sqlstore"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// pgxBackend implements every role of package driver for transactions of pgx.
type pgxBackend struct {
	*core
	pool *pgxpool.Pool
}

// sqlBackend implements every role of package driver for transactions of
// database/sql.
type sqlBackend struct {
	*core
	sqldb *sql.DB
}

var (
	_ driver.Complete[pgx.Tx] = (*pgxBackend)(nil)
	_ driver.KeyPeeker        = (*pgxBackend)(nil)

	_ driver.AnswerAtCommit[pgx.Tx]   = (*pgxBackend)(nil)
	_ driver.FinisherAtCommit[pgx.Tx] = (*pgxBackend)(nil)

	_ driver.RetryClassifier   = (*pgxBackend)(nil)
	_ driver.Watcher           = (*pgxBackend)(nil)
	_ driver.Backlogs          = (*pgxBackend)(nil)
	_ driver.Restorer          = (*pgxBackend)(nil)
	_ driver.Audit             = (*pgxBackend)(nil)
	_ driver.Rollups           = (*pgxBackend)(nil)
	_ driver.Causes            = (*pgxBackend)(nil)
	_ driver.Applied           = (*pgxBackend)(nil)
	_ driver.Migrator          = (*pgxBackend)(nil)
	_ driver.Complete[*sql.Tx] = (*sqlBackend)(nil)
	_ driver.SQLAppender       = (*sqlBackend)(nil)
	_ driver.RetryClassifier   = (*sqlBackend)(nil)
	_ driver.Watcher           = (*sqlBackend)(nil)
	_ driver.Backlogs          = (*sqlBackend)(nil)
	_ driver.Restorer          = (*sqlBackend)(nil)
	_ driver.Audit             = (*sqlBackend)(nil)
	_ driver.Rollups           = (*sqlBackend)(nil)
	_ driver.Migrator          = (*sqlBackend)(nil)
)

// core is the common part of pgxBackend and sqlBackend: everything that does
// not touch the caller's transaction.
type core struct {
	db  database
	cfg Config
	sql statements
	// backlog means that the statements are those of a destination's backlog.
	backlog bool
	// backlogs are the backlogs by the number of their destination; muBacklogs
	// guards them.
	muBacklogs sync.Mutex
	backlogs   map[int]*backlog
	// textual reports that the driver sends columns as text, so they are
	// scanned.
	textual atomic.Bool
	// pageSize is the approximate number of rows in the last page.
	pageSize atomic.Int64
	*shared
}

func newCore(db database, cfg Config, s *shared) *core {
	return &core{db: db, cfg: cfg, sql: newStatements(cfg.replacer()), shared: s}
}

// shared is the state that the stores over the same tables share.
type shared struct {
	hub driver.Hub
	// self distinguishes this process's wake-ups from those of others.
	self waybill.ID

	mu sync.Mutex
	// lanes is 0 until it is read from the tables; an insert corrects a stale
	// number.
	lanes int
	// gap means that the tables record that delivered events leave no history.
	gap bool
	// doubted has the time of the first uncertain answer of Committed, by the
	// database's clock.
	doubted   map[waybill.ID]time.Time
	timelines timelines
}

func newShared() *shared {
	return &shared{self: waybill.NewID(), doubted: make(map[waybill.ID]time.Time)}
}

// Local implements [driver.Local].
func (s *shared) Local() *driver.Hub { return &s.hub }

// laneCount returns the number of lanes in the tables. It queries the number
// once, through db: inside a transaction on the transaction's own connection,
// because the pool may have no other.
func (c *core) laneCount(ctx context.Context, db database) (int, error) {
	c.mu.Lock()
	n := c.lanes
	c.mu.Unlock()
	if n > 0 {
		return n, nil
	}
	var text string
	rows, err := db.query(ctx, c.sql.lanes)
	if err := collect(rows, err, func() error { return nil }, &text); err != nil {
		return 0, c.explain(err)
	}
	n, err = strconv.Atoi(text)
	if err != nil || n < 1 || n > sqlstore.MaxLanes {
		return 0, fmt.Errorf("pgstore: invalid lane count %q in the tables", text)
	}
	if c.cfg.Lanes != 0 && c.cfg.Lanes != n {
		return 0, fmt.Errorf("pgstore: Config.Lanes: %d, but the tables have %d; omit it, or change the tables", c.cfg.Lanes, n)
	}
	c.noteLanes(n)
	return n, nil
}

// noteLanes remembers the number of lanes in the tables.
func (s *shared) noteLanes(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes = n
}

func (c *core) laneFor(ev waybill.Event, n int) int {
	if ev.Ordered() {
		return driver.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, n)
	}
	return c.hub.AnyLane(n)
}

// undefined are the codes for a missing table, schema or function.
var undefined = map[string]bool{"42P01": true, "3F000": true, "42883": true}

// hint adds advice to an error where the database's message alone is not
// enough.
func (c *core) hint(err error) error {
	if undefined[sqlState(err)] && strings.Contains(err.Error(), c.cfg.Prefix) {
		return fmt.Errorf("pgstore: the tables are missing; call Migrate, or apply MigrationSQL with psql: %w", err)
	}
	// 26000: the prepared statement does not exist; 42P05: it already exists.
	if state := sqlState(err); state == "26000" || state == "42P05" {
		return fmt.Errorf("pgstore: a pooler shares the server's sessions among clients, and prepared statements belong to a session; "+
			"add default_query_exec_mode=exec to the URL: %w", err)
	}
	return err
}

// explain is hint for errors of the store's own statements.
func (c *core) explain(err error) error {
	if err == nil {
		return nil
	}
	if hinted := c.hint(err); hinted != err { //nolint:errorlint // the same error means that there was nothing to add
		return hinted
	}
	return fmt.Errorf("pgstore: %w", err)
}

// sqlState returns the server's code of an error, from any driver, or "".
func sqlState(err error) string {
	var coded interface{ SQLState() string } // pgx and lib/pq both implement it
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// ended converts the drivers' errors for an ended transaction into Waybill's.
func ended(err error) error {
	if errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("%w: %w", waybill.ErrTxDone, err)
	}
	return err
}

// answeredNo reports whether a failed COMMIT certainly left nothing: the server
// itself reported the failure, and was not shutting down.
func answeredNo(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	var pg *pgconn.PgError
	// FATAL: the connection is gone, and the time of the loss is unknown.
	if errors.As(err, &pg) && pg.SeverityUnlocalized != "ERROR" {
		return false
	}
	state := sqlState(err)
	// 57P0x: the server is shutting down; 40003: the server reports that the
	// outcome is unknown; 08xxx: the connection failed.
	return state != "" && state != "40003" && state[:2] != "08" && (len(state) < 4 || state[:4] != "57P0")
}
