package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// sqlField is fresh tables of a database behind database/sql.
type sqlField struct {
	store  driver.Store[*sql.Tx]
	db     *sql.DB // for the floor
	lanes  int
	settle func(ctx context.Context, lane int, after int64, seqs []int64, history bool) error
	gauge  func(ctx context.Context) (gauge, error)
	close  func()
}

// drainersOf are Waybill and its floor.
func drainersOf(fresh func(ctx context.Context) (*sqlField, error)) []drainer {
	opening := func(drain func(f *sqlField) func(ctx context.Context, l *ledger) error) func(ctx context.Context) (*stage, error) {
		return func(ctx context.Context) (*stage, error) {
			f, err := fresh(ctx)
			if err != nil {
				return nil, err
			}
			return &stage{
				load: func(ctx context.Context, n int) error { return loadEvents(ctx, f.store.Driver().Outbox, n) },
				calm: func(context.Context) error { return nil }, gauge: f.gauge, close: f.close, drain: drain(f),
				left: func(ctx context.Context) (n int, err error) {
					err = f.db.QueryRowContext(ctx, `SELECT count(*) FROM waybill_outbox`).Scan(&n)
					return n, err
				},
			}, nil
		}
	}
	floor := func(name, group string, batch int) drainer {
		return drainer{name: name, group: group, role: roleFloor, yardstick: name == floorName, open: opening(
			func(f *sqlField) func(context.Context, *ledger) error {
				return func(ctx context.Context, l *ledger) error { return f.drain(ctx, batch, group == kept, l) }
			})}
	}
	own := func(name, group string, cfg relay.Config, single bool) drainer {
		return drainer{name: name, group: group, role: roleOwn, open: opening(
			func(f *sqlField) func(context.Context, *ledger) error {
				return func(ctx context.Context, l *ledger) error {
					return drainRelay(ctx, f.store.Driver().Relay, cfg, sinkFor(l, single), l)
				}
			})}
	}
	var list []drainer
	for _, group := range []string{dropped, kept} {
		list = append(list, floor(floorName, group, 500), floor("floor, 1000 a batch", group, 1000))
		list = append(list, waybillDrainers(group, own)...)
	}
	return list
}

// drain does the same work by hand; see pgFloorDrain.
func (f *sqlField) drain(ctx context.Context, batch int, history bool, l *ledger) error {
	read, err := f.db.PrepareContext(ctx, `SELECT seq, `+floorColumns+`, created_at FROM waybill_outbox WHERE lane = ? AND seq > ? ORDER BY seq LIMIT ?`)
	if err != nil {
		return err
	}
	defer read.Close() //nolint:errcheck // it only reads
	floor, empty := make([]int64, f.lanes), make([]bool, f.lanes)
	seqs := make([]int64, 0, batch)
	l.start = time.Now()
	defer l.stop()
	for left := f.lanes; left > 0; {
		for lane := range f.lanes {
			if empty[lane] {
				continue
			}
			after := floor[lane]
			if seqs, err = f.read(ctx, read, lane, after, batch, seqs[:0], l); err != nil {
				return err
			}
			if len(seqs) < batch {
				empty[lane] = true
				left--
			}
			if len(seqs) == 0 {
				continue
			}
			floor[lane] = seqs[len(seqs)-1]
			if err := f.settle(ctx, lane, after, seqs, history); err != nil {
				return err
			}
		}
	}
	return nil
}

// read delivers a batch and returns its seqs. The values are used in place, in
// the driver's buffer.
func (f *sqlField) read(ctx context.Context, read *sql.Stmt, lane int, after int64, batch int, seqs []int64, l *ledger) ([]int64, error) {
	rows, err := read.QueryContext(ctx, lane, after, batch)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var seq int64
	// the event's columns, and created_at
	raw := make([]sql.RawBytes, floorPayload+1)
	dest := []any{&seq}
	for i := range raw {
		dest = append(dest, &raw[i])
	}
	for rows.Next() {
		if err := rows.Scan(dest...); err != nil {
			return nil, err
		}
		seqs = append(seqs, seq)
		l.handle(raw[floorPayload-1])
	}
	return seqs, rows.Err()
}

var sqlKeep = `INSERT INTO waybill_history (lane, seq, ` + floorColumns + `, created_at, attempts, replay, done_at)
SELECT lane, seq, ` + floorColumns + `, created_at, 0, 0, %s FROM waybill_outbox WHERE `

// connectMySQL connects to MariaDB or MySQL, by the server's name.
func connectMySQL(name string) (*mysqlServer, error) {
	cfg, err := mysql.ParseDSN(os.Getenv(mysqlKinds[name].env))
	if err != nil {
		return nil, err
	}
	admin, err := sql.Open("mysql", cfg.FormatDSN())
	return &mysqlServer{admin: admin, config: cfg}, err
}

// openMySQLServer opens MariaDB or MySQL for a drain.
func openMySQLServer(ctx context.Context, name string) (*drainServer, error) {
	m, err := connectMySQL(name)
	if err != nil {
		return nil, err
	}
	admin := m.admin
	var version, dataDir, pidFile string
	if err := admin.QueryRowContext(ctx, `SELECT VERSION(), @@datadir, @@pid_file`).Scan(&version, &dataDir, &pidFile); err != nil {
		_ = admin.Close()
		return nil, err
	}
	if !filepath.IsAbs(pidFile) {
		pidFile = filepath.Join(dataDir, pidFile)
	}
	// a remote server has no pid file here
	if text, err := os.ReadFile(pidFile); err == nil {
		m.pid, _ = strconv.Atoi(strings.TrimSpace(string(text)))
	}
	version, _, _ = strings.Cut(version, "-")
	return &drainServer{
		name: name, version: mysqlKinds[name].title + " " + version, close: func() { _ = admin.Close() },
		drainers: func(bool) []drainer { return drainersOf(m.fresh) },
	}, nil
}

// mysqlKinds maps the name of a server to its variable and its title.
var mysqlKinds = map[string]struct{ env, title string }{
	testserver.MariaDBName: {testserver.EnvMariaDB, "MariaDB"}, testserver.MySQLName: {testserver.EnvMySQL, "MySQL"},
}

// mysqlServer is a MariaDB or MySQL server.
type mysqlServer struct {
	admin  *sql.DB
	config *mysql.Config
	pid    int
}

// mysqlDatabase is the database of a turn.
const mysqlDatabase = "waybill_bench"

func (m *mysqlServer) fresh(ctx context.Context) (*sqlField, error) {
	for _, statement := range []string{`DROP DATABASE IF EXISTS ` + mysqlDatabase, `CREATE DATABASE ` + mysqlDatabase} {
		if _, err := m.admin.ExecContext(ctx, statement); err != nil {
			return nil, err
		}
	}
	open := func(change func(cfg *mysql.Config)) (*sql.DB, error) {
		cfg := m.config.Clone()
		cfg.DBName = mysqlDatabase
		change(cfg)
		db, err := sql.Open("mysql", cfg.FormatDSN())
		if err == nil {
			db.SetMaxIdleConns(fieldConns)
		}
		return db, err
	}
	db, err := open(func(*mysql.Config) {})
	if err != nil {
		return nil, err
	}
	raw, err := open(func(cfg *mysql.Config) { cfg.ParseTime, cfg.MultiStatements = false, true })
	if err != nil {
		return nil, err
	}
	s, err := mysqlstore.New(db, mysqlstore.Config{})
	if err != nil {
		return nil, err
	}
	if _, err := s.Migrate(ctx); err != nil {
		return nil, err
	}
	f := &sqlField{store: s, db: raw, lanes: lanes, gauge: m.gauge}
	f.close = func() {
		_ = db.Close()
		_ = raw.Close()
	}
	keep := fmt.Sprintf(sqlKeep, "UTC_TIMESTAMP(6)")
	f.settle = func(ctx context.Context, lane int, _ int64, seqs []int64, history bool) error {
		var b strings.Builder // one round trip, for any number of events
		fmt.Fprintf(&b, "lane = %d AND seq IN (", lane)
		for i, seq := range seqs {
			if i > 0 {
				b.WriteByte(',')
			}
			b.WriteString(strconv.FormatInt(seq, 10))
		}
		b.WriteByte(')')
		statement := `DELETE FROM waybill_outbox WHERE ` + b.String()
		if history {
			statement = `BEGIN; ` + keep + b.String() + `; ` + statement + `; COMMIT`
		}
		_, err := raw.ExecContext(ctx, statement)
		return err
	}
	return f, nil
}

func (m *mysqlServer) gauge(ctx context.Context) (gauge, error) {
	g := gauge{own: ownCPU(), server: treeCPU(m.pid), machine: machineCPU()}
	var name string
	err := m.admin.QueryRowContext(ctx, `SHOW GLOBAL STATUS LIKE 'Questions'`).Scan(&name, &g.statements)
	return g, err
}

func openSQLiteServer() (*drainServer, error) {
	return &drainServer{
		name: "sqlite", version: "SQLite (modernc.org/sqlite)", close: func() {},
		drainers: func(bool) []drainer { return drainersOf(freshSQLite) },
	}, nil
}

func freshSQLite(ctx context.Context) (*sqlField, error) {
	dir, err := os.MkdirTemp("", "waybill-bench-")
	if err != nil {
		return nil, err
	}
	s, err := sqlitestore.Open(filepath.Join(dir, "bench.db"), sqlitestore.Config{})
	if err != nil {
		return nil, err
	}
	if _, err := s.Migrate(ctx); err != nil {
		return nil, errors.Join(err, s.Close())
	}
	// Statements are calls within the process here: they are not counted, and
	// none is a round trip.
	f := &sqlField{store: s, db: s.DB(), lanes: 1, gauge: func(context.Context) (gauge, error) { return gauge{own: ownCPU()}, nil }}
	f.close = func() {
		_ = s.Close()
		_ = os.RemoveAll(dir)
	}
	// Writers take turns, so seqs are in the order of commits, and a batch is
	// the complete range between two seqs.
	const where = `seq > ? AND seq <= ?`
	keep := fmt.Sprintf(sqlKeep, "?") + where
	f.settle = func(ctx context.Context, _ int, after int64, seqs []int64, history bool) error {
		last := seqs[len(seqs)-1]
		if !history {
			_, err := f.db.ExecContext(ctx, `DELETE FROM waybill_outbox WHERE `+where, after, last)
			return err
		}
		tx, err := f.db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // harmless after the commit
		if _, err := tx.ExecContext(ctx, keep, time.Now().UnixMicro(), after, last); err != nil {
			return err
		}
		if _, err := tx.ExecContext(ctx, `DELETE FROM waybill_outbox WHERE `+where, after, last); err != nil {
			return err
		}
		return tx.Commit()
	}
	return f, nil
}
