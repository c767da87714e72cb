package main

import (
	"context"
	"database/sql"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// sqlTarget is the common part of the databases behind database/sql.
type sqlTarget struct {
	db       *sql.DB
	box      *outbox.Outbox[*sql.Tx]
	business *sql.Stmt
	row      string // the values of one row, with placeholders
	args     func(ev waybill.Event) []any
	many     map[int]*sql.Stmt
	maxRows  int // in one statement
	begin    func(ctx context.Context) (*sql.Tx, error)
}

// sqlHead names the same columns as Waybill's insert: the floor is the same
// insert.
var sqlHead = `INSERT INTO waybill_outbox (lane, ` + strings.Join(eventrow.Columns(), ", ") + `) VALUES `

// rowArgs returns the values of an event by hand, with the id and time encoded
// for the database.
func rowArgs(lane int, id []byte, ev waybill.Event, at any) []any {
	return []any{
		lane, id, ev.Type, ev.AggregateType, ev.AggregateID, nil, ev.Type, nil, nil, 1,
		nil, at, 0, nil, nil, nil, nil, ev.Payload,
	}
}

// prepare prepares the statement for n rows, once.
func (t *sqlTarget) prepare(ctx context.Context, n int) error {
	stmt, err := t.db.PrepareContext(ctx, sqlHead+strings.TrimSuffix(strings.Repeat(t.row+",", n), ",")) //nolint:sqlclosecheck // closed with the database
	if err == nil {
		t.many[n] = stmt
	}
	return err
}

func (t *sqlTarget) target(ctx context.Context, statements func(ctx context.Context) (int64, error), closing func()) (*target, error) {
	var err error
	if t.business, err = t.db.PrepareContext(ctx, `INSERT INTO orders (note) VALUES (?)`); err != nil {
		return nil, err
	}
	t.many = make(map[int]*sql.Stmt)
	for _, n := range []int{1, 100, t.maxRows} {
		if err := t.prepare(ctx, n); err != nil {
			return nil, err
		}
	}
	return &target{
		close: closing,
		reset: func(ctx context.Context) error {
			for _, table := range []string{"orders", "waybill_outbox"} {
				if _, err := t.db.ExecContext(ctx, `DELETE FROM `+table); err != nil {
					return err
				}
			}
			return nil
		},
		count: counting(statements),
		alone: func(ctx context.Context, _ int) error { return t.within(ctx, nil) },
		floor: func(n int) func(context.Context, int) error {
			return func(ctx context.Context, worker int) error { return t.within(ctx, sample(n, worker)) }
		},
		waybill: func(n int) func(context.Context, int) error {
			return func(ctx context.Context, worker int) error {
				evs := sample(n, worker)
				return t.box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
					if err := t.order(ctx, tx); err != nil {
						return err
					}
					return t.box.Write(ctx, tx, evs...)
				})
			}
		},
	}, nil
}

// order is the business statement.
func (t *sqlTarget) order(ctx context.Context, tx *sql.Tx) error {
	_, err := tx.StmtContext(ctx, t.business).ExecContext(ctx, "an order") //nolint:sqlclosecheck // the transaction closes it
	return err
}

// within is the transaction by hand.
func (t *sqlTarget) within(ctx context.Context, evs []waybill.Event) error {
	tx, err := t.begin(ctx)
	if err != nil {
		return err
	}
	defer tx.Rollback() //nolint:errcheck // harmless after the commit
	if err := t.order(ctx, tx); err != nil {
		return err
	}
	for len(evs) > 0 {
		n := min(len(evs), t.maxRows)
		var args []any
		for _, ev := range evs[:n] {
			args = append(args, t.args(ev)...)
		}
		if _, err := tx.StmtContext(ctx, t.many[n]).ExecContext(ctx, args...); err != nil { //nolint:sqlclosecheck // the transaction closes it
			return err
		}
		evs = evs[n:]
	}
	return tx.Commit()
}

func openMariaDB(ctx context.Context, conns int) (*target, error) {
	return openMySQLKind(ctx, testserver.MariaDBName, conns)
}

func openMySQL(ctx context.Context, conns int) (*target, error) {
	return openMySQLKind(ctx, testserver.MySQLName, conns)
}

func openMySQLKind(ctx context.Context, name string, conns int) (*target, error) {
	cfg, err := mysql.ParseDSN(os.Getenv(mysqlKinds[name].env))
	if err != nil {
		return nil, err
	}
	admin, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		return nil, err
	}
	defer admin.Close() //nolint:errcheck // nothing is written through it after its statements returned
	for _, statement := range []string{`DROP DATABASE IF EXISTS waybill_bench`, `CREATE DATABASE waybill_bench`} {
		if _, err := admin.ExecContext(ctx, statement); err != nil {
			return nil, err
		}
	}
	cfg.DBName = "waybill_bench"
	db, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		return nil, err
	}
	db.SetMaxOpenConns(conns + 1)
	db.SetMaxIdleConns(conns + 1)
	s, err := mysqlstore.New(db, mysqlstore.Config{})
	if err != nil {
		return nil, err
	}
	if _, err := s.Migrate(ctx); err != nil {
		return nil, err
	}
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (id BIGINT AUTO_INCREMENT PRIMARY KEY, note VARCHAR(100) NOT NULL) ENGINE=InnoDB`); err != nil {
		return nil, err
	}
	box, err := outbox.New(s, outbox.Config{})
	if err != nil {
		return nil, err
	}
	t := &sqlTarget{
		db: db, box: box, maxRows: 1000,
		row: "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, '1970-01-01' + INTERVAL ? MICROSECOND, ?, ?, ?, ?, ?, ?)",
		args: func(ev waybill.Event) []any {
			id := waybill.NewID()
			return rowArgs(driver.LaneOf("", ev.AggregateType, ev.AggregateID, lanes), id[:], ev, time.Now().UnixMicro())
		},
		begin: func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
	}
	// Questions counts the statements of all clients, on all connections; the
	// query adds one.
	statements := func(ctx context.Context) (n int64, err error) {
		var name string
		err = db.QueryRowContext(ctx, `SHOW GLOBAL STATUS LIKE 'Questions'`).Scan(&name, &n)
		return n, err
	}
	return t.target(ctx, statements, func() { _ = db.Close() })
}

func openSQLite(ctx context.Context, _ int) (*target, error) {
	dir, err := os.MkdirTemp("", "waybill-bench-")
	if err != nil {
		return nil, err
	}
	s, err := sqlitestore.Open(filepath.Join(dir, "bench.db"), sqlitestore.Config{})
	if err != nil {
		return nil, err
	}
	if _, err := s.Migrate(ctx); err != nil {
		return nil, err
	}
	db := s.DB()
	if _, err := db.ExecContext(ctx, `CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT NOT NULL)`); err != nil {
		return nil, err
	}
	box, err := outbox.New(s, outbox.Config{})
	if err != nil {
		return nil, err
	}
	// an implementation by hand would not let writers poll for the lock either
	writer := make(chan struct{}, 1)
	t := &sqlTarget{
		db: db, box: box, maxRows: 1000,
		row: "(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
		args: func(ev waybill.Event) []any {
			id := waybill.NewID()
			return rowArgs(0, id[:], ev, time.Now().UnixMicro())
		},
		begin: func(ctx context.Context) (*sql.Tx, error) { return db.BeginTx(ctx, nil) },
	}
	// Statements are calls within the process here: they are not counted, and
	// none is a round trip.
	out, err := t.target(ctx, nil, func() {
		_ = s.Close()
		_ = os.RemoveAll(dir)
	})
	if err != nil {
		return nil, fmt.Errorf("prepare: %w", err)
	}
	serial := func(fn func(context.Context, int) error) func(context.Context, int) error {
		return func(ctx context.Context, worker int) error {
			writer <- struct{}{}
			defer func() { <-writer }()
			return fn(ctx, worker)
		}
	}
	floor := out.floor
	out.alone = serial(out.alone)
	out.floor = func(n int) func(context.Context, int) error { return serial(floor(n)) }
	return out, nil
}
