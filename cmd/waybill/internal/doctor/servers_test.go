//go:build linux || darwin

package doctor

import (
	"context"
	"database/sql"
	"net/url"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"
	_ "github.com/jackc/pgx/v5/stdlib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/cmd/waybill/internal/place"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// master is a connection of somebody who may do everything.
type master struct {
	t  *testing.T
	db *sql.DB
}

func newMaster(t *testing.T, driver, dsn string) *master {
	t.Helper()
	db, err := sql.Open(driver, dsn)
	if err != nil {
		t.Fatal(err)
	}
	db.SetMaxIdleConns(0) // servers are started again under it
	t.Cleanup(func() { _ = db.Close() })
	return &master{t, db}
}

// do runs statements, among them what a finding says to type.
func (a *master) do(statements ...string) {
	a.t.Helper()
	for _, text := range statements {
		for one := range strings.SplitSeq(text, "; ") {
			if _, err := a.db.ExecContext(context.WithoutCancel(a.t.Context()), one); err != nil {
				a.t.Fatalf("%s: %v", one, err)
			}
		}
	}
}

func unique() string { return strings.ToLower("doctor_" + waybill.NewID().String()) }

// onPostgres returns a ward with a database of its own on a server.
func onPostgres(t *testing.T, address string) (*ward, *master, string) {
	t.Helper()
	a, name := newMaster(t, "pgx", address), unique()
	a.do("CREATE DATABASE " + name)
	t.Cleanup(func() { a.do("DROP DATABASE " + name + " WITH (FORCE)") })
	u, err := url.Parse(address)
	if err != nil {
		t.Fatal(err)
	}
	u.Path = "/" + name
	return newWard(t, "store.url", u.String(), "store.notify-interval", "off"), a, name
}

func TestPostgres(t *testing.T) {
	w, a, name := onPostgres(t, testserver.Postgres(t))
	st := w.open()
	w.well("store")
	w.well("clock")

	w.well("synchronous_commit")
	a.do("ALTER DATABASE " + name + " SET synchronous_commit = off")
	a.do(w.sees("synchronous_commit", Fail, "a crash takes back", "SET synchronous_commit = on"))
	a.do("ALTER DATABASE " + name + " RESET synchronous_commit")
	w.well("synchronous_commit")
	role := unique()
	a.do("CREATE ROLE "+role, "ALTER ROLE "+role+" IN DATABASE "+name+" SET synchronous_commit = off")
	t.Cleanup(func() { a.do("DROP ROLE " + role) })
	a.do(w.sees("synchronous_commit", Warn, "for the role "+role, "SET synchronous_commit = on"))
	w.well("synchronous_commit")
	before := w.flags["store.url"]
	w.set("store.url", before+"&synchronous_commit=off")
	w.sees("synchronous_commit", Fail, "a crash takes back", "out of store.url")
	w.set("store.url", before)
	w.well("synchronous_commit")

	w.well("primary")
	a.do("ALTER DATABASE " + name + " SET default_transaction_read_only = on")
	a.do(w.sees("primary", Fail, "read only", "default_transaction_read_only = off"))
	w.well("primary")
	a.do("ALTER DATABASE " + name + " RESET default_transaction_read_only")

	w.well("sequence cache")
	_, err := st.SQL.ExecContext(t.Context(), "ALTER SEQUENCE waybill_outbox_seq CACHE 20")
	w.must(err)
	_, err = st.SQL.ExecContext(t.Context(), w.sees("sequence cache", Fail, "CACHE 20", "CACHE 1"))
	w.must(err)
	w.well("sequence cache")

	w.tune = func(p *patient) { p.long = 0 }
	conn, err := pgx.Connect(t.Context(), w.flags["store.url"])
	w.must(err)
	_, err = conn.Exec(t.Context(), "BEGIN")
	w.must(err)
	a.do(w.sees("old transactions", Warn, "idle in transaction", "pg_terminate_backend"))
	w.await("the transaction to end", func() bool { return w.look("old transactions").Status == OK })
	_ = conn.Close(t.Context())
}

// TestPostgresServer is about what belongs to a whole server: one of the test's own.
func TestPostgresServer(t *testing.T) {
	server := private.Start(t, testserver.PostgresName)
	w, a, _ := onPostgres(t, server.DSN)
	w.open()
	w.well("crash safety")
	w.must(server.Kill(t.Context()))
	stop := startWithout(t, server, "fsync=on", "full_page_writes=on")
	w.await("the server", func() bool { return w.look("store").Status == OK })
	for _, name := range []string{"fsync", "full_page_writes"} {
		w.well("crash safety")
		a.do("ALTER SYSTEM SET "+name+" = off", "SELECT pg_reload_conf()")
		w.await("the setting", func() bool { return w.look("crash safety").Status == Fail })
		a.do(w.sees("crash safety", Fail, name+" is off", "ALTER SYSTEM SET "+name+" = on"))
		w.await("the setting", func() bool { return w.look("crash safety").Status == OK })
	}

	w.well("replication slots")
	a.do("SELECT pg_create_physical_replication_slot('nobody', true)")
	a.do(w.sees("replication slots", Warn, "nobody reads from nobody", "pg_drop_replication_slot('nobody')"))
	w.well("replication slots")

	// A server that waits for a primary it will never hear of is a replica.
	stop()
	w.must(os.WriteFile(filepath.Join(server.Data, "standby.signal"), nil, 0o644)) //nolint:gosec // the server runs as somebody else
	w.must(server.Restart(t.Context()))
	w.await("the replica", func() bool { return w.look("store").Status == OK })
	w.sees("primary", Fail, "the server is a replica", "target_session_attrs")
	a.do("SELECT pg_promote()")
	w.await("the primary", func() bool { return w.look("primary").Status == OK })
}

// startWithout starts a server of the test's own without some of its settings, which are on its command line and cannot be changed otherwise.
func startWithout(t *testing.T, server manage.Server, settings ...string) (stop func()) {
	t.Helper()
	var argv []string
	for _, arg := range server.Argv {
		if slices.Contains(settings, arg) {
			argv = argv[:len(argv)-1] // the -c before it
			continue
		}
		argv = append(argv, arg)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...) //nolint:gosec // the server's own
	cmd.Dir = server.Data
	if server.User != "" {
		account, err := user.Lookup(server.User)
		if err != nil {
			t.Fatal(err)
		}
		uid, _ := strconv.ParseUint(account.Uid, 10, 32)
		gid, _ := strconv.ParseUint(account.Gid, 10, 32)
		cmd.SysProcAttr = &syscall.SysProcAttr{Credential: &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}}
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	stop = sync.OnceFunc(func() {
		_ = cmd.Process.Signal(syscall.SIGINT) // a quick end, and an orderly one
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// TestMySQLServer has a server of its own: its settings are everybody's.
func TestMySQLServer(t *testing.T) {
	server := private.Start(t, testserver.MariaDBName)
	a, name := newMaster(t, "mysql", server.DSN), unique()
	cfg, err := mysql.ParseDSN(server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	address := func(user, password string) string {
		return (&url.URL{Scheme: "mysql", User: url.UserPassword(user, password), Host: cfg.Addr, Path: "/" + name}).String()
	}
	a.do("CREATE DATABASE " + name)
	w := newWard(t, "store.url", address(cfg.User, cfg.Passwd))
	st := w.open()

	w.well("innodb durability")
	for _, value := range []string{"0", "2"} {
		a.do("SET GLOBAL innodb_flush_log_at_trx_commit = " + value)
		a.do(w.sees("innodb durability", Fail, "is "+value, "innodb_flush_log_at_trx_commit = 1"))
		w.well("innodb durability")
	}
	w.well("binary log") // there is none
	w.well("writable")
	a.do("SET GLOBAL read_only = 1")
	a.do(w.sees("writable", Fail, "read only", "SET GLOBAL read_only = 0"))
	w.well("writable")

	w.well("engine")
	a.do("ALTER TABLE " + name + ".waybill_job_sent ENGINE = MyISAM")
	a.do(w.sees("engine", Fail, "job_sent` is not InnoDB", "ENGINE = InnoDB"))
	w.well("engine")

	w.well("privileges")
	a.do("CREATE USER relay@'127.0.0.1' IDENTIFIED BY 'a-Password'", "GRANT ALL ON "+name+".* TO relay@'127.0.0.1'")
	w.set("store.url", address("relay", "a-Password"))
	a.do(w.sees("privileges", Fail, "PROCESS", "GRANT PROCESS ON *.* TO 'relay'@'127.0.0.1'"))
	w.well("privileges")

	w.tune = func(p *patient) { p.long = 0 }
	tx, err := st.SQL.BeginTx(t.Context(), nil)
	w.must(err)
	_, err = tx.ExecContext(t.Context(), "DELETE FROM waybill_job_sent")
	w.must(err)
	a.do(w.sees("old transactions", Warn, "is not purged", "KILL "))
	_ = tx.Rollback()
	w.await("the transaction to end", func() bool { return w.look("old transactions").Status == OK })
}

func TestSQLite(t *testing.T) {
	w := newWard(t)
	w.open()
	w.well("sqlite durability")
	db, err := sql.Open("sqlite", filepath.Join(t.TempDir(), "other.db"))
	w.must(err)
	defer func() { _ = db.Close() }()
	db.SetMaxOpenConns(1) // the settings are a connection's
	p := &patient{store: &place.Store{SQL: db}}
	check := sqliteChecks()[0]
	for _, step := range []struct {
		statement string
		status    Status
		finding   string
	}{
		{"PRAGMA journal_mode = DELETE", Fail, "the journal mode is delete"},
		{"PRAGMA journal_mode = WAL", OK, "wal"},
		{"PRAGMA synchronous = NORMAL", Fail, "synchronous is 1"},
		{"PRAGMA synchronous = FULL", OK, "full"},
	} {
		_, err := db.ExecContext(t.Context(), step.statement)
		w.must(err)
		if f, err := check.run(t.Context(), p); err != nil || f.Status != step.status || !strings.Contains(f.Text, step.finding) {
			t.Errorf("%s: %+v, %v", step.statement, f, err)
		}
	}
}
