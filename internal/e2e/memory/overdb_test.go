package memory

import (
	"context"
	"database/sql"
	"errors"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	_ "github.com/jackc/pgx/v5/stdlib"
	"go.uber.org/goleak"
	_ "modernc.org/sqlite"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// database opens a database of a service. The transactions of open are followed
// if it is memstore.OpenDB, and not if it is sql.Open.
type database func(t *testing.T, open func(driver, dsn string) (*sql.DB, error)) *sql.DB

func sqlite(t *testing.T, open func(driver, dsn string) (*sql.DB, error)) *sql.DB {
	dsn := "file:" + filepath.ToSlash(filepath.Join(t.TempDir(), "shop.db")) +
		"?_txlock=immediate&_pragma=busy_timeout(10000)&_pragma=journal_mode(WAL)&_pragma=foreign_keys(1)"
	return opened(t, open, "sqlite", dsn)
}

func postgres(t *testing.T, open func(driver, dsn string) (*sql.DB, error)) *sql.DB {
	url := testserver.Postgres(t)
	schema := "t_" + strings.ToLower(waybill.NewID().String())
	admin := opened(t, sql.Open, "pgx", url)
	run(t, admin, `CREATE SCHEMA `+schema)
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.Background(), `DROP SCHEMA `+schema+` CASCADE`); err != nil {
			t.Error(err)
		}
	})
	separator := "?"
	if strings.Contains(url, "?") {
		separator = "&"
	}
	return opened(t, open, "pgx", url+separator+"search_path="+schema)
}

func mariadb(t *testing.T, open func(driver, dsn string) (*sql.DB, error)) *sql.DB {
	cfg, err := mysql.ParseDSN(testserver.MariaDB(t))
	if err != nil {
		t.Fatal(err)
	}
	admin := opened(t, sql.Open, "mysql", cfg.FormatDSN())
	cfg.DBName = "t_" + strings.ToLower(waybill.NewID().String())
	run(t, admin, `CREATE DATABASE `+cfg.DBName)
	t.Cleanup(func() {
		if _, err := admin.ExecContext(context.Background(), `DROP DATABASE `+cfg.DBName); err != nil {
			t.Error(err)
		}
	})
	return opened(t, open, "mysql", cfg.FormatDSN())
}

// opened creates the table of notes unless the database is that of the server.
func opened(t *testing.T, open func(driver, dsn string) (*sql.DB, error), driver, dsn string) *sql.DB {
	t.Helper()
	db, err := open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := db.Close(); err != nil {
			t.Error(err)
		}
	})
	return db
}

func run(t *testing.T, db *sql.DB, statement string) {
	t.Helper()
	if _, err := db.ExecContext(t.Context(), statement); err != nil {
		t.Fatal(err)
	}
}

// TestOverDB runs the suite of stores over databases of three kinds: the
// store's own transactions and those of the caller, with savepoints.
func TestOverDB(t *testing.T) {
	for _, c := range []struct {
		name, insert, count string
		open                database
		oneWriter           bool
	}{
		{"sqlite", `INSERT INTO business (note) VALUES (?)`, `SELECT count(*) FROM business WHERE note = ?`, sqlite, true},
		{"postgres", `INSERT INTO business (note) VALUES ($1)`, `SELECT count(*) FROM business WHERE note = $1`, postgres, false},
		{"mariadb", `INSERT INTO business (note) VALUES (?)`, `SELECT count(*) FROM business WHERE note = ?`, mariadb, false},
	} {
		t.Run(c.name, func(t *testing.T) {
			drivertest.Run(t, drivertest.Harness[*sql.Tx]{
				Name:      "memstore.OverDB " + c.name,
				Features:  drivertest.Features{SavepointSQL: true, ForeignTx: true, OneWriter: c.oneWriter},
				SkipLarge: true,
				Open: func(t *testing.T) drivertest.Instance[*sql.Tx] {
					db := c.open(t, memstore.OpenDB)
					run(t, db, `CREATE TABLE business (note VARCHAR(200) NOT NULL)`)
					return instance(t, db, c.insert, c.count)
				},
			})
		})
	}
}

func instance(t *testing.T, db *sql.DB, insert, count string) drivertest.Instance[*sql.Tx] {
	store, err := memstore.OverDB(db, memstore.Config{Lanes: 4})
	if err != nil {
		t.Fatal(err)
	}
	return drivertest.Instance[*sql.Tx]{
		DB: store.Driver(),
		Insert: func(ctx context.Context, tx *sql.Tx, note string) error {
			_, err := tx.ExecContext(ctx, insert, note)
			return err
		},
		Count: func(ctx context.Context, note string) (n int, err error) {
			err = db.QueryRowContext(ctx, count, note).Scan(&n)
			return n, err
		},
		Begin: func(ctx context.Context) (drivertest.Foreign[*sql.Tx], error) {
			tx, err := db.BeginTx(ctx, nil)
			if err != nil {
				return drivertest.Foreign[*sql.Tx]{}, err
			}
			return drivertest.Foreign[*sql.Tx]{Tx: tx, Commit: tx.Commit, Rollback: func() error {
				if err := tx.Rollback(); !errors.Is(err, sql.ErrTxDone) {
					return err
				}
				return nil
			}}, nil
		},
		Exec: func(ctx context.Context, tx *sql.Tx, text string) error {
			_, err := tx.ExecContext(ctx, text)
			return err
		},
	}
}
