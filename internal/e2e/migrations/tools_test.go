package migrations_test

import (
	"database/sql"
	"errors"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"

	atlas "ariga.io/atlas/sql/migrate"
	"github.com/go-sql-driver/mysql"
	"github.com/golang-migrate/migrate/v4"
	"github.com/golang-migrate/migrate/v4/database"
	migratemysql "github.com/golang-migrate/migrate/v4/database/mysql"
	migratepgx "github.com/golang-migrate/migrate/v4/database/pgx/v5"
	migratesqlite "github.com/golang-migrate/migrate/v4/database/sqlite"
	_ "github.com/golang-migrate/migrate/v4/source/file"
	_ "github.com/jackc/pgx/v5/stdlib"
	"github.com/pressly/goose/v3"
	_ "modernc.org/sqlite"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
)

// program builds waybill once.
var program = sync.OnceValues(func() (string, error) {
	dir, err := os.MkdirTemp("", "waybill-migrations")
	if err != nil {
		return "", err
	}
	path := filepath.Join(dir, "waybill")
	out, err := exec.Command("go", "build", "-o", path, "github.com/waybillhq/waybill/cmd/waybill").CombinedOutput()
	if err != nil {
		return "", errors.New(string(out))
	}
	return path, nil
})

func TestMain(m *testing.M) {
	code := m.Run()
	if path, err := program(); err == nil {
		_ = os.RemoveAll(filepath.Dir(path))
	}
	os.Exit(code)
}

// place is an empty database.
type place struct {
	*testing.T
	url     string // for waybill
	db      *sql.DB
	dialect goose.Dialect
	driver  func() (database.Driver, error)
	objects string // lists what a migration may leave behind
	relay   string // adds a live relay
}

// waybill runs the program and returns its output.
func (p *place) waybill(args ...string) string {
	p.Helper()
	path, err := program()
	if err != nil {
		p.Fatal(err)
	}
	cmd := exec.CommandContext(p.Context(), path, append(args, "--store", p.url)...)
	var problems strings.Builder
	cmd.Stderr = &problems
	out, err := cmd.Output()
	if err != nil {
		p.Fatalf("waybill %s: %v\n%s", strings.Join(args, " "), err, &problems)
	}
	return string(out)
}

// file writes the output of a command into a file of dir.
func (p *place) file(dir, name string, args ...string) {
	p.Helper()
	if err := os.WriteFile(filepath.Join(dir, name), []byte(p.waybill(args...)), 0o600); err != nil {
		p.Fatal(err)
	}
}

// made fails unless all migrations are recorded and the tables work.
func (p *place) made() {
	p.Helper()
	if status := p.waybill("migrate", "status"); strings.Contains(status, "missing") || !strings.Contains(status, "applied") {
		p.Errorf("the status is\n%s", status)
	}
	if applied := p.waybill("migrate", "up", "--json"); !strings.Contains(applied, `"migrations": []`) {
		p.Errorf("migrate up finds migrations to apply: %s", applied)
	}
	p.waybill("send", "Probed", "--payload", "{}", "--aggregate-type", "probe", "--aggregate", "1")
	if list := p.waybill("list", "--json"); !strings.Contains(list, "Probed") {
		p.Errorf("the event is not listed: %s", list)
	}
}

// gone fails unless the database is empty but for the tool's own tables.
func (p *place) gone() {
	p.Helper()
	rows, err := p.db.QueryContext(p.Context(), p.objects)
	if err != nil {
		p.Fatal(err)
	}
	defer func() { _ = rows.Close() }()
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			p.Fatal(err)
		}
		if strings.Contains(name, "waybill") {
			p.Errorf("%s is left", name)
		}
	}
	if err := rows.Err(); err != nil {
		p.Fatal(err)
	}
}

func open(t *testing.T, driver, dsn string) *sql.DB {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = db.Close() })
	return db
}

func inSQLite(t *testing.T) *place {
	path := filepath.Join(t.TempDir(), "shop.db")
	return &place{
		T: t, url: "sqlite:" + path, db: open(t, "sqlite", path), dialect: goose.DialectSQLite3,
		driver: func() (database.Driver, error) {
			return migratesqlite.WithInstance(open(t, "sqlite", path), &migratesqlite.Config{})
		},
		objects: `SELECT name FROM sqlite_schema`,
		relay:   `INSERT INTO waybill_node (id, relay, expires_at) VALUES (randomblob(16), 'live', 9000000000000000)`,
	}
}

func inPostgres(t *testing.T) *place {
	server := testserver.Postgres(t)
	name := "tools_" + strings.ToLower(waybill.NewID().String())
	if _, err := open(t, "pgx", server).ExecContext(t.Context(), "CREATE DATABASE "+name); err != nil {
		t.Fatal(err)
	}
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return &place{
		T: t, url: u.String(), db: open(t, "pgx", u.String()), dialect: goose.DialectPostgres,
		driver: func() (database.Driver, error) {
			return migratepgx.WithInstance(open(t, "pgx", u.String()), &migratepgx.Config{})
		},
		objects: `SELECT relname::text FROM pg_class WHERE relnamespace = 'public'::regnamespace
			UNION ALL SELECT proname::text FROM pg_proc WHERE pronamespace = 'public'::regnamespace`,
		relay: `INSERT INTO waybill_node (id, relay, expires_at) VALUES (gen_random_uuid(), 'live', now() + interval '1 hour')`,
	}
}

func inMySQL(t *testing.T, server string) *place {
	cfg, err := mysql.ParseDSN(server)
	if err != nil {
		t.Fatal(err)
	}
	admin := open(t, "mysql", server)
	cfg.DBName = "tools_" + strings.ToLower(waybill.NewID().String())
	if _, err := admin.ExecContext(t.Context(), "CREATE DATABASE "+cfg.DBName); err != nil {
		t.Fatal(err)
	}
	u := url.URL{Scheme: "mysql", User: url.UserPassword(cfg.User, cfg.Passwd), Host: cfg.Addr, Path: "/" + cfg.DBName}
	plain := cfg.FormatDSN()
	cfg.MultiStatements = true
	return &place{
		T: t, url: u.String(), db: open(t, "mysql", plain), dialect: goose.DialectMySQL,
		driver: func() (database.Driver, error) {
			return migratemysql.WithInstance(open(t, "mysql", cfg.FormatDSN()), &migratemysql.Config{})
		},
		objects: `SELECT table_name FROM information_schema.tables WHERE table_schema = DATABASE()
			UNION ALL SELECT routine_name FROM information_schema.routines WHERE routine_schema = DATABASE()`,
		relay: `INSERT INTO waybill_node (id, relay, expires_at) VALUES (UNHEX('01'), 'live', UTC_TIMESTAMP(6) + INTERVAL 1 HOUR)`,
	}
}

// everywhere runs a test on each database.
func everywhere(t *testing.T, test func(t *testing.T, p *place)) {
	for name, in := range map[string]func(t *testing.T) *place{
		"sqlite": inSQLite, "postgres": inPostgres,
		"mariadb": func(t *testing.T) *place { return inMySQL(t, testserver.MariaDB(t)) },
		"mysql":   func(t *testing.T) *place { return inMySQL(t, testserver.MySQL(t)) },
	} {
		t.Run(name, func(t *testing.T) { test(t, in(t)) })
	}
}

// TestGoose: goose applies the file, and reverses it.
func TestGoose(t *testing.T) {
	everywhere(t, func(t *testing.T, p *place) {
		dir := t.TempDir()
		p.file(dir, "00042_waybill.sql", "migrate", "sql", "--format", "goose")
		tool, err := goose.NewProvider(p.dialect, p.db, os.DirFS(dir))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := tool.Up(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.made()
		if _, err := tool.Down(t.Context()); err != nil {
			t.Fatal(err)
		}
		p.gone()
	})
}

// TestGolangMigrate: golang-migrate applies the .up.sql and the .down.sql.
func TestGolangMigrate(t *testing.T) {
	everywhere(t, func(t *testing.T, p *place) {
		dir := t.TempDir()
		p.file(dir, "42_waybill.up.sql", "migrate", "sql", "--format", "migrate")
		p.file(dir, "42_waybill.down.sql", "migrate", "sql", "--format", "migrate", "--down")
		d, err := p.driver()
		if err != nil {
			t.Fatal(err)
		}
		tool, err := migrate.NewWithDatabaseInstance("file://"+filepath.ToSlash(dir), "shop", d)
		if err != nil {
			t.Fatal(err)
		}
		if err := tool.Up(); err != nil {
			t.Fatal(err)
		}
		p.made()
		if err := tool.Down(); err != nil {
			t.Fatal(err)
		}
		p.gone()
	})
}

// TestAtlas: Atlas reads the statements of the file, and they make the tables.
func TestAtlas(t *testing.T) {
	everywhere(t, func(t *testing.T, p *place) {
		dir := t.TempDir()
		p.file(dir, "20260102030405_waybill.sql", "migrate", "sql", "--format", "atlas")
		local, err := atlas.NewLocalDir(dir)
		if err != nil {
			t.Fatal(err)
		}
		files, err := local.Files()
		if err != nil || len(files) != 1 {
			t.Fatal(files, err)
		}
		statements, err := files[0].Stmts()
		if err != nil {
			t.Fatal(err)
		}
		conn, err := p.db.Conn(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = conn.Close() }()
		for _, statement := range statements {
			if _, err := conn.ExecContext(t.Context(), statement); err != nil {
				t.Fatalf("%v\n%s", err, statement)
			}
		}
		p.made()
	})
}

// TestFrom: each later part continues tables of an earlier version, and fails
// on tables that lack it.
func TestFrom(t *testing.T) {
	everywhere(t, func(t *testing.T, p *place) {
		whole := p.waybill("migrate", "sql", "--format", "goose")
		for _, from := range []string{"1", "3"} {
			part := p.waybill("migrate", "sql", "--format", "goose", "--from", from)
			if strings.Contains(part, "+goose Down") || len(part) >= len(whole) {
				t.Errorf("the part behind version %s is as long as the whole, or has a down section", from)
			}
			dir := t.TempDir()
			if err := os.WriteFile(filepath.Join(dir, "00001_waybill.sql"), []byte(part), 0o600); err != nil {
				t.Fatal(err)
			}
			tool, err := goose.NewProvider(p.dialect, p.db, os.DirFS(dir))
			if err != nil {
				t.Fatal(err)
			}
			if _, err := tool.Up(t.Context()); err == nil {
				t.Errorf("the part behind version %s applies to an empty database", from)
			}
		}
	})
}

// TestDown: migrate down removes everything, asks first, and refuses while a
// relay is live or there is nothing to remove.
func TestDown(t *testing.T) {
	everywhere(t, func(t *testing.T, p *place) {
		p.waybill("migrate", "up")
		p.made()
		path, err := program()
		if err != nil {
			t.Fatal(err)
		}
		refused := exec.CommandContext(t.Context(), path, "migrate", "down", "--store", p.url)
		if out, err := refused.CombinedOutput(); err == nil || !strings.Contains(string(out), "1 events that are not delivered") {
			t.Errorf("without a confirmation: %v\n%s", err, out)
		}
		p.made()
		if _, err := p.db.ExecContext(t.Context(), p.relay); err != nil {
			t.Fatal(err)
		}
		busy := exec.CommandContext(t.Context(), path, "migrate", "down", "--yes", "--store", p.url)
		if out, err := busy.CombinedOutput(); err == nil || !strings.Contains(string(out), "relay") {
			t.Errorf("with a live relay: %v\n%s", err, out)
		}
		if _, err := p.db.ExecContext(t.Context(), `DELETE FROM waybill_node`); err != nil {
			t.Fatal(err)
		}
		if out := p.waybill("migrate", "down", "--yes"); !slices.Contains(strings.Fields(out), "removed") {
			t.Errorf("it says %q", out)
		}
		p.gone()
		again := exec.CommandContext(t.Context(), path, "migrate", "down", "--yes", "--store", p.url)
		if out, err := again.CombinedOutput(); err == nil || !strings.Contains(string(out), "no tables") {
			t.Errorf("without tables: %v\n%s", err, out)
		}
		p.waybill("migrate", "up")
		p.made()
	})
}
