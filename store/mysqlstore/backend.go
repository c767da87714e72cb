package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"sync"

	"github.com/waybillhq/waybill/internal/sqlstore"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store/driver"
)

// backend implements every role of package driver.
type backend struct {
	queue // the outbox
	sql   statements
	hub   driver.Hub

	mu    sync.Mutex
	known *facts // nil until the first query
	// kindKnown reports that the kind of server was queried and is supported.
	kindKnown bool
	// Set by SetLanes if Config.Lanes is set, else 0.
	lanes   int
	inserts map[shape]*sql.Stmt // prepared statements
	wanted  map[shape]*sql.Stmt // statements to prepare
	// Events written by this store's open transactions.
	sessions map[*sql.Tx]*written
	// The tables record that delivered events leave no history.
	gap bool
	// Settled events whose dedup keys were locked by a producer.
	leftover map[waybill.ID]struct{}
	// The backlogs that were asked for, by the numbers of their destinations.
	backlogs map[int]*backlog
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

// Local implements [driver.Local].
func (s *backend) Local() *driver.Hub { return &s.hub }

// config returns the configuration with the number of lanes that SetLanes
// stored.
func (s *backend) config() Config {
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

// facts holds properties of the server and of the tables.
type facts struct {
	lanes int
	// proves reports whether a statement can prove by itself that its
	// transaction is open: MariaDB has a variable for that.
	proves bool
	// noWait reports whether a statement can opt out of lock waits: MariaDB
	// only.
	noWait bool
	// readCommitted reports whether READ COMMITTED is the default isolation
	// level.
	readCommitted bool
	// packet is the maximum number of event bytes in one statement.
	packet int
}

// facts returns the properties of the server. It queries them once, through q:
// inside a transaction the query uses the transaction's connection, because the
// pool may have no other.
func (s *backend) facts(ctx context.Context, q querier) (facts, error) {
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
	case err != nil || f.lanes < 1 || f.lanes > sqlstore.MaxLanes:
		return facts{}, fmt.Errorf("mysqlstore: the tables have an invalid number of lanes: %q", lanes)
	case cfg.Lanes != 0 && cfg.Lanes != f.lanes:
		return facts{}, fmt.Errorf("mysqlstore: Config.Lanes: %d, but the tables have %d; omit it, or change the tables", cfg.Lanes, f.lanes)
	case engines != "":
		return facts{}, fmt.Errorf("mysqlstore: %s: only InnoDB rolls back rows; run ALTER TABLE … ENGINE=InnoDB", engines)
	case !autocommit:
		return facts{}, errors.New("mysqlstore: autocommit is off; remove the setting from the data source name")
	}
	s.mu.Lock()
	s.known = &f
	s.mu.Unlock()
	return f, nil
}

// errTiDB is the error for TiDB, which speaks MySQL's protocol and names itself
// in its version.
func errTiDB(version string) error {
	return fmt.Errorf("mysqlstore: the server is TiDB (%s), which is not supported: it has no stored procedures, which relays need, and its "+
		"nodes assign AUTO_INCREMENT in separate blocks, so events would be out of order; use MySQL 8.0.19, MariaDB 10.10 or later", version)
}

func isTiDB(version string) bool { return strings.Contains(version, "TiDB") }

// checkKind refuses servers that no relay can work on. It queries the server
// once.
func (s *backend) checkKind(ctx context.Context) error {
	s.mu.Lock()
	known := s.kindKnown
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
	if err := s.checkCluster(ctx); err != nil {
		return err
	}
	s.mu.Lock()
	s.kindKnown = true
	s.mu.Unlock()
	return nil
}

// each runs a query, scans every row into dest and calls fn, if set, after each
// row.
func each(ctx context.Context, q querier, query string, args []any, fn func(), dest ...any) error {
	return eachUntil(ctx, q, query, args, func() error {
		if fn != nil {
			fn()
		}
		return nil
	}, dest...)
}

// eachUntil is each with a function whose error ends the read.
func eachUntil(ctx context.Context, q querier, query string, args []any, fn func() error, dest ...any) error {
	rows, err := q.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return err
		}
		if err := fn(); err != nil {
			return err
		}
	}
	return rows.Err()
}

func (s *backend) laneFor(ev waybill.Event, n int) int {
	if ev.Ordered() {
		return driver.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, n)
	}
	return s.hub.AnyLane(n)
}

// Error numbers of the server that the store handles.
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
	// MySQL cannot show the statement of another session.
	errNotText      = 3854
	errCheckMariaDB = 4025
)

// number returns the server's error number, or 0 if err is not from the server.
func number(err error) uint16 {
	var answer *mysql.MySQLError
	if errors.As(err, &answer) {
		return answer.Number
	}
	return 0
}

// ended converts errors of an ended transaction to [waybill.ErrTxDone]: those
// of the driver, and the one that a statement's proof of its transaction fails
// with.
func ended(err error) error {
	if number(err) == errOutOfRange {
		return fmt.Errorf("%w: the server has no transaction open on this connection: a deadlock or a DDL statement ended it, "+
			"or none was begun", waybill.ErrTxDone)
	}
	return sqltx.Done(err)
}
