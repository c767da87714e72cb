package linear

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testproxy"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/pgstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// runsPerStore is the number of runs of each model on a real store. A run is
// short, because every lost answer may double the work of the checker.
const runsPerStore = 3

// maxConns is the size of a connection pool: one connection for each client.
const maxConns = clients

func openMemory(t *testing.T) *memstore.Store[*memstore.Tx] {
	t.Helper()
	db, err := memstore.New(memstore.Config{Lanes: lanesPerRun})
	if err != nil {
		t.Fatal(err)
	}
	return db
}

func openSQLite(t *testing.T) driver.Roles[*sql.Tx] {
	t.Helper()
	db, err := sqlitestore.Open(filepath.Join(t.TempDir(), "linear.db"), sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	migrate(t, db.Driver())
	return db.Driver()
}

// openPostgres opens a store in a new schema, over a proxy that can be cut.
func openPostgres(t *testing.T) (driver.Roles[pgx.Tx], func()) {
	t.Helper()
	source, schema := testserver.Postgres(t), unique()
	admin, err := pgxpool.New(t.Context(), source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(admin.Close)
	execute := func(ctx context.Context, statement string) {
		if _, err := admin.Exec(ctx, statement); err != nil {
			t.Error(err)
		}
	}
	execute(t.Context(), `CREATE SCHEMA `+schema)
	t.Cleanup(func() { execute(context.Background(), `DROP SCHEMA `+schema+` CASCADE`) })

	cfg, err := pgxpool.ParseConfig(source)
	if err != nil {
		t.Fatal(err)
	}
	server := &cfg.ConnConfig.Config
	proxy := testproxy.New(t, net.JoinHostPort(server.Host, strconv.Itoa(int(server.Port))))
	server.Host, server.Port = hostPort(t, proxy.Addr())
	server.Fallbacks = nil // they bypass the proxy
	cfg.MaxConns = maxConns
	pool, err := pgxpool.NewWithConfig(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(pool.Close)
	db, err := pgstore.New(pool, pgstore.Config{Schema: schema, Lanes: lanesPerRun * runsPerStore})
	if err != nil {
		t.Fatal(err)
	}
	migrate(t, db.Driver())
	return db.Driver(), cutter(proxy)
}

// openMySQL opens a store in a new database of a server, over a proxy that can
// be cut.
func openMySQL(t *testing.T, server string) (driver.Roles[*sql.Tx], func()) {
	t.Helper()
	cfg, err := mysql.ParseDSN(testserver.Address(t, server))
	if err != nil {
		t.Fatal(err)
	}
	admin := openSQL(t, cfg)
	cfg = cfg.Clone()
	cfg.DBName = unique()
	execute := func(ctx context.Context, statement string) {
		if _, err := admin.ExecContext(ctx, statement); err != nil {
			t.Error(err)
		}
	}
	execute(t.Context(), `CREATE DATABASE `+cfg.DBName)
	t.Cleanup(func() { execute(context.Background(), `DROP DATABASE `+cfg.DBName) })

	proxy := testproxy.New(t, cfg.Addr)
	cfg.Addr = proxy.Addr()
	pool := openSQL(t, cfg)
	pool.SetMaxOpenConns(maxConns)
	pool.SetMaxIdleConns(maxConns)
	db, err := mysqlstore.New(pool, mysqlstore.Config{Lanes: lanesPerRun * runsPerStore})
	if err != nil {
		t.Fatal(err)
	}
	migrate(t, db.Driver())
	return db.Driver(), cutter(proxy)
}

func openSQL(t *testing.T, cfg *mysql.Config) *sql.DB {
	t.Helper()
	cfg.Logger = &mysql.NopLogger{} // it logs every cut connection
	connector, err := mysql.NewConnector(cfg)
	if err != nil {
		t.Fatal(err)
	}
	db := sql.OpenDB(connector)
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func migrate[T any](t *testing.T, db driver.Roles[T]) {
	t.Helper()
	if _, err := db.Migrator.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
}

// cutter returns a function that ends all connections of a proxy.
func cutter(p *testproxy.Proxy) func() {
	var one sync.Mutex
	return func() {
		one.Lock()
		defer one.Unlock()
		p.Cut()
		p.Join()
	}
}

// unique returns a name that no other test run uses.
func unique() string { return "linear_" + strings.ToLower(waybill.NewID().String()) }

// hostPort splits an address for pgx.
func hostPort(t *testing.T, address string) (host string, port uint16) {
	t.Helper()
	if _, err := fmt.Sscanf(strings.ReplaceAll(address, ":", " "), "%s %d", &host, &port); err != nil {
		t.Fatal(err)
	}
	return host, port
}
