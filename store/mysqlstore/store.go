package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store"
)

// Store keeps the outbox, the inbox and idempotency keys in MySQL or MariaDB. It plays every role of package store.
type Store struct {
	db  *sql.DB
	cfg Config
	sql statements
	hub store.Hub

	mu    sync.Mutex
	known *facts // nil until the server was asked
	// kindKnown says that the server was asked what it is, and is not refused.
	kindKnown bool
	lanes     int                     // what SetLanes has made of Config.Lanes, or 0
	inserts   map[shape]*sql.Stmt     // prepared
	wanted    map[shape]*sql.Stmt     // to be prepared
	sessions  map[*sql.Tx]*written    // what the open transactions of this store have taken
	gap       bool                    // the tables know that delivered events leave no history
	leftover  map[waybill.ID]struct{} // settled events whose dedup keys a producer had locked
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

// New returns a store over database/sql. It does not touch the database; db stays the caller's.
func New(db *sql.DB, cfg Config) (*Store, error) {
	if db == nil {
		return nil, errors.New("mysqlstore: the database is nil")
	}
	cfg, err := cfg.complete()
	if err != nil {
		return nil, err
	}
	return &Store{
		db: db, cfg: cfg, sql: newStatements(cfg), leftover: make(map[waybill.ID]struct{}),
		inserts: make(map[shape]*sql.Stmt), wanted: make(map[shape]*sql.Stmt),
		sessions: make(map[*sql.Tx]*written),
	}, nil
}

// Local implements [store.Local].
func (s *Store) Local() *store.Hub { return &s.hub }

// config returns the configuration, with the number of lanes that SetLanes has made.
func (s *Store) config() Config {
	s.mu.Lock()
	defer s.mu.Unlock()
	cfg := s.cfg
	if s.lanes != 0 {
		cfg.Lanes = s.lanes
	}
	return cfg
}

// querier is a database, a connection or a transaction.
type querier interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// facts are what the store must know about the server and the tables.
type facts struct {
	lanes int
	// proves says that a statement can prove by itself that its transaction is open: MariaDB has a variable for it.
	proves bool
	// noWait says that a statement can say for itself that it does not wait for locks: MariaDB again.
	noWait bool
	// readCommitted says that transactions see what is committed now, unless they were begun otherwise.
	readCommitted bool
	// packet is how much one statement may carry, in bytes of the events.
	packet int
}

// facts returns what is known about the server. It asks once, through q: inside a transaction, by its own connection, because the
// pool may have no other.
func (s *Store) facts(ctx context.Context, q querier) (facts, error) {
	s.mu.Lock()
	known := s.known
	s.mu.Unlock()
	if known != nil {
		return *known, nil
	}
	var version, lanes, engines string
	var packet int64
	var autocommit bool
	cfg := s.config()
	args := cfg.tableNames()
	err := each(ctx, q, s.sql.facts, append(args, cfg.Schema), nil, &version, &packet, &autocommit, &lanes, &engines)
	if err != nil {
		return facts{}, s.explain(err)
	}
	if isTiDB(version) {
		return facts{}, errTiDB(version)
	}
	var name, isolation string
	if err := each(ctx, q, s.sql.isolation, nil, nil, &name, &isolation); err != nil {
		return facts{}, s.explain(err)
	}
	f := facts{readCommitted: isolation == "READ-COMMITTED", packet: packetBytes(packet)}
	f.proves = strings.Contains(version, "MariaDB")
	f.noWait = f.proves
	f.lanes, err = strconv.Atoi(lanes)
	switch {
	case err != nil || f.lanes < 1 || f.lanes > maxLanes:
		return facts{}, fmt.Errorf("mysqlstore: the tables say that they have %q lanes", lanes)
	case cfg.Lanes != 0 && cfg.Lanes != f.lanes:
		return facts{}, fmt.Errorf("mysqlstore: Config.Lanes is %d, but the tables have %d; leave it out, or change the tables", cfg.Lanes, f.lanes)
	case engines != "":
		return facts{}, fmt.Errorf("mysqlstore: %s: only InnoDB takes rows back when a transaction rolls back; run ALTER TABLE … ENGINE=InnoDB", engines)
	case !autocommit:
		return facts{}, errors.New("mysqlstore: autocommit is off; leave it out of the data source name: transactions are begun where they are needed")
	}
	s.mu.Lock()
	s.known = &f
	s.mu.Unlock()
	return f, nil
}

// errTiDB refuses TiDB. It takes MySQL's protocol, and says so in its version.
func errTiDB(version string) error {
	return fmt.Errorf("mysqlstore: the server is TiDB (%s), which is refused: it has no stored procedures, so no relay can work there, and every "+
		"node of it hands out AUTO_INCREMENT in blocks of its own, so events would not be in order; MySQL 8.0.19 and MariaDB 10.10 or later work", version)
}

func isTiDB(version string) bool { return strings.Contains(version, "TiDB") }

// checkKind refuses servers that no relay can work on. It asks once.
func (s *Store) checkKind(ctx context.Context) error {
	s.mu.Lock()
	known := s.known != nil || s.kindKnown
	s.mu.Unlock()
	if known {
		return nil
	}
	var version string
	if err := each(ctx, s.db, `SELECT VERSION()`, nil, nil, &version); err != nil {
		return s.explain(err)
	}
	if isTiDB(version) {
		return errTiDB(version)
	}
	s.mu.Lock()
	s.kindKnown = true
	s.mu.Unlock()
	return nil
}

// each runs a query, scans every row into dest and calls fn for it, if there is one.
func each(ctx context.Context, q querier, query string, args []any, fn func(), dest ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		if fn != nil {
			fn()
		}
	}
	return rows.Err()
}

func (s *Store) laneFor(ev waybill.Event, n int) int {
	if ev.Ordered() {
		return store.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, n)
	}
	return s.hub.AnyLane(n)
}

// The numbers of errors that mean something here.
const (
	errRecordChanged  = 1020
	errNoDatabase     = 1049
	errDuplicate      = 1062
	errNoTable        = 1146
	errLockTimeout    = 1205
	errDeadlock       = 1213
	errNoRoutine      = 1305
	errNeedsPrivilege = 1227
	errTxInProgress   = 1568
	errOutOfRange     = 1690
	errTableChanged   = 1412
	errLockNoWait     = 3572
	errCheckMySQL     = 3819
	errNotText        = 3854 // MySQL cannot show what another session has sent
	errCheckMariaDB   = 4025
)

// number returns the server's number of an error, or 0 if it is not the server's.
func number(err error) uint16 {
	var answer *mysql.MySQLError
	if errors.As(err, &answer) {
		return answer.Number
	}
	return 0
}

// explain adds whose error it is, and what to do about it where the server's words alone do not say.
func (s *Store) explain(err error) error {
	if err == nil {
		return nil
	}
	switch number(err) {
	case errNoDatabase, errNoTable, errNoRoutine:
		if strings.Contains(err.Error(), s.cfg.Prefix) || s.cfg.Schema != "" && strings.Contains(err.Error(), s.cfg.Schema) {
			return fmt.Errorf("mysqlstore: the tables are missing; call Migrate, or apply MigrationSQL with the mariadb shell: %w", err)
		}
	case errTableChanged:
		return fmt.Errorf("mysqlstore: the tables were changed after the transaction had begun, by a migration or SetLanes; run it again: %w", err)
	case errDeadlock:
		return fmt.Errorf("mysqlstore: a deadlock ended the transaction; run it again: %w", err)
	}
	return fmt.Errorf("mysqlstore: %w", err)
}

// ended turns the words for a transaction that is over into Waybill's: the driver's own, and the error that a statement's proof of
// its transaction ends with.
func ended(err error) error {
	if number(err) == errOutOfRange {
		return fmt.Errorf("%w: the server has no transaction open on this connection: a deadlock or a DDL statement has ended it, "+
			"or none was begun", waybill.ErrTxDone)
	}
	return sqltx.Done(err)
}
