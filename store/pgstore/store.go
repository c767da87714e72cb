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

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgconn"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Store keeps the outbox, the inbox and idempotency keys in PostgreSQL, for transactions of pgx. It plays every role of package store.
type Store struct {
	*core
	pool *pgxpool.Pool
}

// SQLStore keeps the outbox, the inbox and idempotency keys in PostgreSQL, for transactions of database/sql. It plays every role of package store.
type SQLStore struct {
	*core
	sqldb *sql.DB
}

// Both play every role.
var (
	_ store.Outbox[pgx.Tx]    = (*Store)(nil)
	_ store.Finisher[pgx.Tx]  = (*Store)(nil)
	_ store.Inbox[pgx.Tx]     = (*Store)(nil)
	_ store.Keys[pgx.Tx]      = (*Store)(nil)
	_ store.KeyPeeker         = (*Store)(nil)
	_ store.RetryClassifier   = (*Store)(nil)
	_ store.Relay             = (*Store)(nil)
	_ store.Operator          = (*Store)(nil)
	_ store.Watcher           = (*Store)(nil)
	_ store.Jobs[pgx.Tx]      = (*Store)(nil)
	_ store.HistoryAudit      = (*Store)(nil)
	_ store.Outbox[*sql.Tx]   = (*SQLStore)(nil)
	_ store.Finisher[*sql.Tx] = (*SQLStore)(nil)
	_ store.Inbox[*sql.Tx]    = (*SQLStore)(nil)
	_ store.Keys[*sql.Tx]     = (*SQLStore)(nil)
	_ store.RetryClassifier   = (*SQLStore)(nil)
	_ store.Relay             = (*SQLStore)(nil)
	_ store.Operator          = (*SQLStore)(nil)
	_ store.Watcher           = (*SQLStore)(nil)
	_ store.Jobs[*sql.Tx]     = (*SQLStore)(nil)
	_ store.HistoryAudit      = (*SQLStore)(nil)
)

// New returns a store over a pgx pool. It does not touch the database; the pool stays the caller's.
func New(pool *pgxpool.Pool, cfg Config) (*Store, error) {
	if pool == nil {
		return nil, errors.New("pgstore: the pool is nil")
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	s := &Store{core: newCore(pgxDB{pool}, cfg, newShared()), pool: pool}
	s.wakeOthers()
	return s, nil
}

// NewSQL returns a store over database/sql, with whatever driver db was opened with. It does not touch the database; db
// stays the caller's.
func NewSQL(db *sql.DB, cfg Config) (*SQLStore, error) {
	if db == nil {
		return nil, errors.New("pgstore: the database is nil")
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	s := &SQLStore{core: newCore(sqlDB{db}, cfg, newShared()), sqldb: db}
	s.wakeOthers()
	return s, nil
}

// SQL returns a store over the same tables for transactions of db, which must be a handle to the same database. The two share
// their hub: a relay on one is told what the other commits.
func (s *Store) SQL(db *sql.DB) *SQLStore {
	return &SQLStore{core: newCore(sqlDB{db}, s.cfg, s.shared), sqldb: db}
}

// core is what both faces have in common: everything that does not touch the caller's transaction.
type core struct {
	db  database
	cfg Config
	sql statements
	// textual: the driver sends columns as text, so they are scanned.
	textual atomic.Bool
	// pageSize is about how many rows the last page had.
	pageSize atomic.Int64
	*shared
}

func newCore(db database, cfg Config, s *shared) *core {
	return &core{db: db, cfg: cfg, sql: newStatements(cfg.replacer()), shared: s}
}

// shared is what the faces over the same tables share.
type shared struct {
	hub  store.Hub
	self waybill.ID // tells this process's wake-ups from those of others

	mu      sync.Mutex
	lanes   int                      // 0 until the tables were asked; a writer that counts on another number is told
	gap     bool                     // the tables know that delivered events leave no history
	doubted map[waybill.ID]time.Time // when Committed first could not tell, by the database's clock
}

func newShared() *shared {
	return &shared{self: waybill.NewID(), doubted: make(map[waybill.ID]time.Time)}
}

// Local implements [store.Local].
func (s *shared) Local() *store.Hub { return &s.hub }

// laneCount returns how many lanes the tables have. It asks once, through db: inside a transaction, by its own connection, because
// the pool may have no other.
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
	if err != nil || n < 1 || n > maxLanes {
		return 0, fmt.Errorf("pgstore: the tables say that they have %q lanes", text)
	}
	if c.cfg.Lanes != 0 && c.cfg.Lanes != n {
		return 0, fmt.Errorf("pgstore: Config.Lanes is %d, but the tables have %d; leave it out, or change the tables", c.cfg.Lanes, n)
	}
	c.noteLanes(n)
	return n, nil
}

// noteLanes remembers how many lanes the tables have.
func (s *shared) noteLanes(n int) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.lanes = n
}

func (c *core) laneFor(ev waybill.Event, n int) int {
	if ev.Ordered() {
		return store.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, n)
	}
	return c.hub.AnyLane(n)
}

// undefined are the codes for a table, schema or function that is not there.
var undefined = map[string]bool{"42P01": true, "3F000": true, "42883": true}

// hint adds what to do about an error, where the database's words alone do not say.
func (c *core) hint(err error) error {
	if undefined[sqlState(err)] && strings.Contains(err.Error(), c.cfg.Prefix) {
		return fmt.Errorf("pgstore: the tables are missing; call Migrate, or apply MigrationSQL with psql: %w", err)
	}
	// 26000: a prepared statement does not exist; 42P05: it exists already.
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

// sqlState returns the server's code of an error, from whatever driver, or "".
func sqlState(err error) string {
	var coded interface{ SQLState() string } // pgx and lib/pq both have it
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

// ended turns the drivers' words for a transaction that is over into Waybill's.
func ended(err error) error {
	if errors.Is(err, pgx.ErrTxClosed) || errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("%w: %w", waybill.ErrTxDone, err)
	}
	return err
}

// answeredNo reports whether a failed COMMIT certainly left nothing: the server itself said so, and was not going down.
func answeredNo(err error) bool {
	if errors.Is(err, pgx.ErrTxCommitRollback) {
		return true
	}
	var pg *pgconn.PgError
	if errors.As(err, &pg) && pg.SeverityUnlocalized != "ERROR" { // FATAL: the connection is gone, and who knows since when
		return false
	}
	state := sqlState(err)
	// 57P0x: the server is being stopped; 40003: it says itself that it does not know; 08xxx: the connection.
	return state != "" && state != "40003" && state[:2] != "08" && (len(state) < 4 || state[:4] != "57P0")
}
