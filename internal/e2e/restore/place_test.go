//go:build linux || darwin

package restore_test

import (
	"context"
	"database/sql"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"

	// the driver of PostgreSQL
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
	"github.com/waybillhq/waybill/store/pgstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// place is a database that can be dumped and restored.
type place struct {
	*testing.T
	open func() (*tables, error)
	// dump makes a backup while the database is in use; restore replaces the
	// database, which is closed, by the last backup.
	dump, restore func()
}

// tables is an open database with Waybill's tables.
type tables struct {
	driver.Roles[*sql.Tx]
	db    *sql.DB
	close func() error
}

// lanes is the number of lanes, where there can be several.
const lanes = 4

// onEach runs a test in every database.
func onEach(t *testing.T, test func(t *testing.T, open func(*testing.T) *place)) {
	t.Helper()
	t.Parallel()
	for _, d := range []struct {
		name string
		make func(*testing.T) *place
	}{{"postgres", postgresPlace}, {"mariadb", mariadbPlace}, {"sqlite", sqlitePlace}} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			test(t, d.make)
		})
	}
}

// use opens the database until the test ends or close is called, and brings its
// tables up to date.
func (p *place) use() *tables {
	p.Helper()
	opened, err := p.open()
	must(p.T, err)
	p.Cleanup(func() { _ = opened.close() })
	_, err = opened.Migrator.Migrate(p.Context())
	must(p.T, err)
	return opened
}

// unique returns a name that no other test uses.
func unique() string { return "restore_" + strings.ToLower(waybill.NewID().String()) }

// postgresPlace creates a database of PostgreSQL.
func postgresPlace(t *testing.T) *place {
	t.Helper()
	server := testserver.Postgres(t)
	dump, shell := testserver.Shell(t, "pg_dump"), testserver.Shell(t, "psql")
	at, err := url.Parse(server)
	must(t, err)
	name, backup := unique(), filepath.Join(t.TempDir(), "backup.sql")
	at.Path = "/" + name
	admin := func(statements ...string) {
		t.Helper()
		db, err := sql.Open("pgx", server)
		must(t, err)
		defer db.Close() //nolint:errcheck // nothing is lost
		for _, s := range statements {
			_, err := db.ExecContext(context.WithoutCancel(t.Context()), s)
			must(t, err)
		}
	}
	drop, create := `DROP DATABASE IF EXISTS `+name+` WITH (FORCE)`, `CREATE DATABASE `+name
	admin(create)
	t.Cleanup(func() { admin(drop) })
	return &place{
		T: t,
		open: func() (*tables, error) {
			db, err := sql.Open("pgx", at.String())
			if err != nil {
				return nil, err
			}
			s, err := pgstore.NewSQL(db, pgstore.Config{Lanes: lanes})
			if err != nil {
				return nil, err
			}
			return &tables{s.Driver(), db, db.Close}, nil
		},
		dump: func() { command(t, "", dump, "--dbname", at.String(), "--file", backup) },
		restore: func() {
			admin(drop, create)
			command(t, "", shell, "--no-psqlrc", "--quiet", "--set", "ON_ERROR_STOP=1", "--single-transaction",
				"--dbname", at.String(), "--file", backup, "--output", os.DevNull)
		},
	}
}

// mariadbPlace creates a database of MariaDB.
func mariadbPlace(t *testing.T) *place {
	t.Helper()
	cfg, err := mysql.ParseDSN(testserver.MariaDB(t))
	must(t, err)
	dump, shell := testserver.Shell(t, "mariadb-dump"), testserver.Shell(t, "mariadb")
	server, backup := cfg.FormatDSN(), filepath.Join(t.TempDir(), "backup.sql")
	cfg.DBName = unique()
	admin := func(statements ...string) {
		t.Helper()
		db, err := sql.Open("mysql", server)
		must(t, err)
		defer db.Close() //nolint:errcheck // nothing is lost
		for _, s := range statements {
			_, err := db.ExecContext(context.WithoutCancel(t.Context()), s)
			must(t, err)
		}
	}
	drop, create := `DROP DATABASE IF EXISTS `+cfg.DBName, `CREATE DATABASE `+cfg.DBName
	admin(create)
	t.Cleanup(func() { admin(drop) })
	host, port, err := net.SplitHostPort(cfg.Addr)
	must(t, err)
	login := []string{"--no-defaults", "--protocol=tcp", "--host=" + host, "--port=" + port, "--user=" + cfg.User, "--password=" + cfg.Passwd}
	return &place{
		T: t,
		open: func() (*tables, error) {
			db, err := sql.Open("mysql", cfg.FormatDSN())
			if err != nil {
				return nil, err
			}
			s, err := mysqlstore.New(db, mysqlstore.Config{Lanes: lanes})
			if err != nil {
				return nil, err
			}
			return &tables{s.Driver(), db, db.Close}, nil
		},
		dump: func() {
			command(t, "", dump, append(login, "--single-transaction", "--routines", "--result-file="+backup, cfg.DBName)...)
		},
		restore: func() {
			admin(drop, create)
			command(t, backup, shell, append(login, cfg.DBName)...)
		},
	}
}

// sqlitePlace creates a file of SQLite.
func sqlitePlace(t *testing.T) *place {
	t.Helper()
	folder := t.TempDir()
	path, backup := filepath.Join(folder, "x.db"), filepath.Join(folder, "backup.db")
	return &place{
		T: t,
		open: func() (*tables, error) {
			s, err := sqlitestore.Open(path, sqlitestore.Config{})
			if err != nil {
				return nil, err
			}
			return &tables{s.Driver(), s.DB(), s.Close}, nil
		},
		dump: func() {
			db, err := sql.Open("sqlite", path)
			must(t, err)
			defer db.Close() //nolint:errcheck // nothing is lost
			_, err = db.ExecContext(t.Context(), `VACUUM INTO ?`, backup)
			must(t, err)
		},
		restore: func() {
			for _, suffix := range []string{"-wal", "-shm"} {
				if err := os.Remove(path + suffix); err != nil && !os.IsNotExist(err) {
					t.Fatal(err)
				}
			}
			text, err := os.ReadFile(backup)
			must(t, err)
			must(t, os.WriteFile(path, text, 0o600))
		},
	}
}

// command runs a program with a file as its input.
func command(t *testing.T, input, name string, args ...string) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), name, args...)
	if input != "" {
		in, err := os.Open(input)
		must(t, err)
		defer in.Close() //nolint:errcheck // it was only read
		cmd.Stdin = in
	}
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatal(fmt.Errorf("%s: %w\n%s", filepath.Base(name), err, out))
	}
}
