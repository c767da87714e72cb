//go:build linux || darwin

package process_test

import (
	"context"
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5/pgxpool"

	// the driver for the tests' own statements
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/pgstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// place is the location of a test's tables.
type place struct {
	Database string // postgres, mariadb, mysql or sqlite
	Source   string
	Schema   string
	Lanes    int
}

// handle opens the database for the test's own statements.
func (p place) handle(t *testing.T) *sql.DB {
	t.Helper()
	driver := map[string]string{"postgres": "pgx", "mariadb": "mysql", "mysql": "mysql", "sqlite": "sqlite"}[p.Database]
	db, err := sql.Open(driver, p.Source)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

// fill replaces the braces of the test's own statement by names.
func (p place) fill(statement string) string {
	prefix := "waybill_"
	if p.Schema != "" {
		prefix = p.Schema + "." + prefix
	}
	return strings.NewReplacer("{lane}", prefix+"lane", "{outbox}", prefix+"outbox", "{schema}", p.Schema).Replace(statement)
}

// lanes is the number of lanes of a test's tables, where there can be several.
const lanes = 4

// tables is an open store.
type tables struct {
	db roles
	// write commits events; late commits after it has assigned their seqs and
	// before has returned.
	write func(ctx context.Context, evs ...waybill.Event) error
	late  func(ctx context.Context, before func(), evs ...waybill.Event) error
	close func() error
}

// roles is the part of a store that the tests need.
type roles interface {
	driver.Relay
	driver.OutboxAdmin
	driver.Migrator
}

// open opens the tables, which exist.
func (p place) open(ctx context.Context) (*tables, error) {
	switch p.Database {
	case "postgres":
		pool, err := pgxpool.New(ctx, p.Source)
		if err != nil {
			return nil, err
		}
		db, err := pgstore.New(pool, pgstore.Config{Schema: p.Schema, Lanes: p.Lanes})
		if err != nil {
			return nil, err
		}
		return tablesOf(db.Driver(), func() error { pool.Close(); return nil })
	case "mariadb", "mysql":
		pool, err := sql.Open("mysql", p.Source)
		if err != nil {
			return nil, err
		}
		db, err := mysqlstore.New(pool, mysqlstore.Config{Lanes: p.Lanes})
		if err != nil {
			return nil, err
		}
		return tablesOf(db.Driver(), pool.Close)
	case "sqlite":
		db, err := sqlitestore.Open(p.Source, sqlitestore.Config{})
		if err != nil {
			return nil, err
		}
		return tablesOf(db.Driver(), db.Close)
	}
	return nil, fmt.Errorf("no database is called %q", p.Database)
}

func tablesOf[T any](db driver.Roles[T], closer func() error) (*tables, error) {
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		return nil, err
	}
	write := func(ctx context.Context, evs ...waybill.Event) error {
		return box.InTx(ctx, func(ctx context.Context, tx T) error { return box.Write(ctx, tx, evs...) })
	}
	late := func(ctx context.Context, before func(), evs ...waybill.Event) error {
		return box.InTx(ctx, func(ctx context.Context, tx T) error {
			_, err := box.WriteEach(ctx, tx, evs...)
			before()
			return err
		})
	}
	return &tables{db: db.Relay.(roles), write: write, late: late, close: closer}, nil
}

// postgresPlace creates a schema for a test.
func postgresPlace(t *testing.T) place {
	t.Helper()
	p := place{Database: "postgres", Source: testserver.Postgres(t), Schema: unique(t), Lanes: lanes}
	pool, err := pgxpool.New(t.Context(), p.Source)
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	if _, err := pool.Exec(t.Context(), `CREATE SCHEMA `+p.Schema); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		pool, err := pgxpool.New(context.Background(), p.Source)
		if err != nil {
			t.Error(err)
			return
		}
		defer pool.Close()
		if _, err := pool.Exec(context.Background(), `DROP SCHEMA `+p.Schema+` CASCADE`); err != nil {
			t.Error(err)
		}
	})
	return p
}

// mariadbPlace creates a database of MariaDB for a test.
func mariadbPlace(t *testing.T) place {
	t.Helper()
	return mysqlKindPlace(t, testserver.MariaDBName)
}

// mysqlPlace creates a database of MySQL for a test.
func mysqlPlace(t *testing.T) place {
	t.Helper()
	return mysqlKindPlace(t, testserver.MySQLName)
}

func mysqlKindPlace(t *testing.T, server string) place {
	t.Helper()
	cfg, err := mysql.ParseDSN(testserver.Address(t, server))
	if err != nil {
		t.Fatal(err)
	}
	admin, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	cfg.DBName = unique(t)
	if _, err := admin.ExecContext(t.Context(), `CREATE DATABASE `+cfg.DBName); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.Background(), `DROP DATABASE `+cfg.DBName); err != nil {
			t.Error(err)
		}
		if err := admin.Close(); err != nil {
			t.Error(err)
		}
	})
	return place{Database: server, Source: cfg.FormatDSN(), Lanes: lanes}
}

func sqlitePlace(t *testing.T) place {
	t.Helper()
	return place{Database: "sqlite", Source: filepath.Join(t.TempDir(), "x.db")}
}

// unique returns a name that no other test run uses.
func unique(t *testing.T) string {
	t.Helper()
	return "process_" + strings.ToLower(waybill.NewID().String())
}

// everywhere runs a test on every database.
func everywhere(t *testing.T, test func(b *env)) {
	t.Helper()
	onEach(t, func(t *testing.T, p place) { test(newEnv(t, p)) })
}

// onEach runs a test with a place in every database.
func onEach(t *testing.T, test func(t *testing.T, p place)) {
	t.Helper()
	for _, d := range []struct {
		name string
		make func(*testing.T) place
	}{{"postgres", postgresPlace}, {"mariadb", mariadbPlace}, {"mysql", mysqlPlace}, {"sqlite", sqlitePlace}} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			test(t, d.make(t))
		})
	}
}
