//go:build linux || darwin

package doctor

import (
	"context"
	"database/sql"
	"fmt"
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
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

// master is a connection of an administrator.
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
	db.SetMaxIdleConns(0) // the server is restarted
	t.Cleanup(func() { _ = db.Close() })
	return &master{t, db}
}

// do runs statements, among them the advice of findings.
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

// onPostgres returns a ward with its own database on a server.
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

// examineRights takes rights from the role of a relay, and grants them as
// doctor says.
func (w *ward) examineRights(a *master) {
	w.t.Helper()
	w.well("rights") // the owner's
	role, before := unique(), w.flags["store.url"]
	u, err := url.Parse(before)
	w.must(err)
	u.User = url.UserPassword(role, "a-Password")
	owner := newMaster(w.t, "pgx", before)
	owner.do("CREATE ROLE " + role + " LOGIN PASSWORD 'a-Password'")
	w.t.Cleanup(func() {
		owner.do("DROP OWNED BY " + role)
		a.do("DROP ROLE " + role)
	})
	w.set("store.url", u.String())

	owner.do(w.sees("rights", Fail, "the role "+role+" may not read the tables: it lacks DELETE on waybill_audit, INSERT on waybill_audit, SELECT on waybill_audit", "GRANT DELETE, INSERT, SELECT, UPDATE ON waybill_audit, waybill_backlog, "))
	w.well("rights")
	owner.do("REVOKE ALL ON ALL TABLES IN SCHEMA public FROM "+role, "GRANT SELECT ON ALL TABLES IN SCHEMA public TO "+role)
	w.sees("rights", Warn, "the role "+role+" only reads", "run serve with another account")
	w.set("relay.enabled", "false")
	w.well("rights")
	w.set("relay.enabled", "true")
	owner.do("GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA public TO "+role, "REVOKE USAGE ON SEQUENCE waybill_outbox_seq FROM "+role)
	owner.do(w.sees("rights", Fail, "the role "+role+" cannot be a relay: it lacks USAGE on waybill_outbox_seq", "GRANT USAGE ON SEQUENCE waybill_outbox_seq TO "+role))
	w.well("rights")
	owner.do("REVOKE DELETE ON waybill_outbox FROM " + role)
	owner.do(w.sees("rights", Fail, "it lacks DELETE on waybill_outbox", "GRANT DELETE ON waybill_outbox TO "+role))
	w.well("rights")
	w.set("store.url", before)
}

func TestPostgres(t *testing.T) {
	w, a, name := onPostgres(t, testserver.Postgres(t))
	st := w.open()
	w.well("store")
	w.well("clock")

	const commit = "synchronous_commit"
	w.well(commit)
	a.do("ALTER DATABASE " + name + " SET synchronous_commit = off")
	a.do(w.sees(commit, Fail, "a crash rolls back", "SET synchronous_commit = on"))
	a.do(w.sees(commit, Warn, "for the role ALL", "ALTER ROLE ALL IN DATABASE "+name))
	w.well(commit)
	role := unique()
	a.do("CREATE ROLE " + role)
	t.Cleanup(func() { a.do("DROP ROLE " + role) })
	a.do("ALTER ROLE " + role + " IN DATABASE " + name + " SET synchronous_commit = off")
	a.do(w.sees(commit, Warn, "is off for the role "+role, "ALTER ROLE "+role+" IN DATABASE "+name))
	w.well(commit)
	a.do("ALTER ROLE " + role + " SET synchronous_commit = FALSE")
	a.do(w.sees(commit, Warn, "is false for the role "+role, "ALTER ROLE "+role+" SET"))
	w.well(commit)
	before := w.flags["store.url"]
	w.set("store.url", before+"&synchronous_commit=off")
	w.sees(commit, Fail, "a crash rolls back", "from store.url")
	w.set("store.url", before)
	w.well(commit)

	w.well("primary")
	a.do("ALTER DATABASE " + name + " SET default_transaction_read_only = on")
	a.do(w.sees("primary", Fail, "read only", "default_transaction_read_only = off"))
	w.well("primary")
	a.do("ALTER DATABASE " + name + " RESET default_transaction_read_only")

	w.examineRights(a)

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

// TestPostgresServer checks settings of a whole server, on a private one.
func TestPostgresServer(t *testing.T) {
	server := private.Start(t, testserver.PostgresName)
	w, a, name := onPostgres(t, server.DSN)
	w.open()
	const safety = "crash safety"
	w.well(safety)
	w.must(server.Kill(t.Context()))
	stop := startAs(t, server, syscall.SIGINT, replaced(server.Argv, "fsync=on", "fsync=off")...)
	w.await("the server", func() bool { return w.look("store").Status == OK })
	w.sees(safety, Fail, "fsync is off", "start the server without -c fsync=off")
	stop()
	stop = startAs(t, server, syscall.SIGINT, without(without(server.Argv, "fsync=on"), "full_page_writes=on")...)
	w.await("the server", func() bool { return w.look("store").Status == OK })
	for _, name := range []string{"fsync", "full_page_writes"} {
		w.well(safety)
		a.do("ALTER SYSTEM SET "+name+" = off", "SELECT pg_reload_conf()")
		a.do(w.awaits(safety, Fail, name+" is off", "ALTER SYSTEM SET "+name+" = on"))
		w.awaits(safety, OK, "", "")
	}

	w.well("replication slots")
	a.do("SELECT pg_create_physical_replication_slot('unused', true)")
	a.do(w.sees("replication slots", Warn, "no reader is connected to slot unused", "pg_drop_replication_slot('unused')"))
	w.well("replication slots")
	standbys(w, newMaster(t, "pgx", server.DSN+"&synchronous_commit=local"), name)

	// A server that waits for a primary is a replica.
	stop()
	w.must(os.WriteFile(filepath.Join(server.Data, "standby.signal"), nil, 0o644)) //nolint:gosec // the server runs as another user
	w.must(server.Restart(t.Context()))
	w.await("the replica", func() bool { return w.look("store").Status == OK })
	w.sees("primary", Fail, "the server is a replica", "add target_session_attrs=read-write")
	replica, err := url.Parse(server.DSN)
	w.must(err)
	another := private.Start(t, testserver.PostgresName)
	both := fmt.Sprintf("postgres://%s@%s,127.0.0.1:%d/postgres?sslmode=disable", replica.User, replica.Host, another.Port)
	before := w.flags["store.url"]
	w.set("store.url", both)
	w.sees("primary", Fail, "the server is a replica", "add target_session_attrs=read-write")
	w.set("store.url", both+"&target_session_attrs=read-write")
	w.well("primary")
	w.set("store.url", before)
	a.do("SELECT pg_promote()")
	w.await("the primary", func() bool { return w.look("primary").Status == OK })
}

// standbys checks synchronous_commit with synchronous standbys, on which every
// commit would wait because they do not exist: the connection of a has
// synchronous_commit=local.
func standbys(w *ward, a *master, database string) {
	w.t.Helper()
	const commit = "synchronous_commit"
	w.well(commit)
	a.do("ALTER DATABASE "+database+" SET synchronous_commit = local", "ALTER SYSTEM SET synchronous_standby_names = 'elsewhere'")
	w.well(commit) // no standbys yet
	a.do("SELECT pg_reload_conf()")
	a.do(w.awaits(commit, Warn, "a failover rolls back", "SET synchronous_commit = on"))
	a.do(w.sees(commit, Warn, "is local for the role ALL", "ALTER ROLE ALL IN DATABASE "+database))
	w.well(commit)
	before := w.flags["store.url"]
	w.set("store.url", before+"&synchronous_commit=local")
	w.sees(commit, Warn, "a failover rolls back", "from store.url")
	w.set("store.url", before)
	w.well(commit)
	a.do("ALTER SYSTEM RESET synchronous_standby_names", "SELECT pg_reload_conf()")
}

// without returns a command line without a -c setting.
func without(argv []string, setting string) []string {
	i := slices.Index(argv, setting)
	return slices.Delete(slices.Clone(argv), i-1, i+1)
}

func replaced(argv []string, setting, by string) []string {
	out := slices.Clone(argv)
	out[slices.Index(out, setting)] = by
	return out
}

// startAs restarts a private server with another command line: settings of the
// command line cannot be changed otherwise. The signal stops the server quickly
// and cleanly.
func startAs(t *testing.T, server manage.Server, end syscall.Signal, argv ...string) (stop func()) {
	t.Helper()
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), argv[0], argv[1:]...) //nolint:gosec // the server's command line
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
		_ = cmd.Process.Signal(end)
		_ = cmd.Wait()
	})
	t.Cleanup(stop)
	return stop
}

// TestMySQLServer uses a private server, because it changes global settings.
func TestMySQLServer(t *testing.T) {
	for _, name := range []string{testserver.MariaDBName, testserver.MySQLName} {
		t.Run(name, func(t *testing.T) { examineMySQL(t, private.Start(t, name)) })
	}
}

func examineMySQL(t *testing.T, server manage.Server) {
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
	w.well("binary log") // MariaDB has none, and MySQL's default is safe
	w.well("writable")
	a.do("SET GLOBAL read_only = 1")
	a.do(w.sees("writable", Fail, "read only", "SET GLOBAL read_only = 0"))
	w.well("writable")

	w.well("galera")
	w.well("engine")
	a.do("ALTER TABLE " + name + ".waybill_job_sent ENGINE = MyISAM")
	a.do(w.sees("engine", Fail, "job_sent` is not InnoDB", "ENGINE = InnoDB"))
	w.well("engine")

	w.well("privileges")
	a.do("CREATE USER relay@'127.0.0.1' IDENTIFIED BY 'a-Password'", "GRANT ALL ON "+name+".* TO relay@'127.0.0.1'")
	w.set("store.url", address("relay", "a-Password"))
	a.do(w.sees("privileges", Fail, "PROCESS", "GRANT PROCESS ON *.* TO 'relay'@'127.0.0.1'"))
	w.well("privileges")

	w.well("procedures")
	a.do("REVOKE ALL ON "+name+".* FROM relay@'127.0.0.1'", "GRANT SELECT, INSERT, UPDATE, DELETE ON "+name+".* TO relay@'127.0.0.1'")
	a.do(w.sees("procedures", Fail, "lacks EXECUTE on waybill_heartbeat_counts, waybill_settle,", "GRANT EXECUTE ON PROCEDURE `"+name+"`.`waybill_settle` TO 'relay'@'127.0.0.1'"))
	w.well("procedures")
	a.do("GRANT ALL ON " + name + ".* TO relay@'127.0.0.1'")

	w.tune = func(p *patient) { p.long = 0 }
	tx, err := st.SQL.BeginTx(t.Context(), nil)
	w.must(err)
	_, err = tx.ExecContext(t.Context(), "DELETE FROM waybill_job_sent")
	w.must(err)
	a.do(w.sees("old transactions", Warn, "are not purged", "KILL "))
	_ = tx.Rollback()
	w.await("the transaction to end", func() bool { return w.look("old transactions").Status == OK })

	w.tune = nil
	examineMySQLCDC(w, a, server) // leaves a binary log
	for _, value := range []string{"0", "100"} {
		a.do("SET GLOBAL sync_binlog = " + value)
		a.do(w.sees("binary log", Warn, "sync_binlog is "+value, "SET GLOBAL sync_binlog = 1"))
		w.well("binary log")
	}
}

// TestGalera checks a node of a Galera cluster.
func TestGalera(t *testing.T) {
	server := private.Galera(t)
	cfg, err := mysql.ParseDSN(server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	a := newMaster(t, "mysql", server.DSN)
	w := newWard(t, "store.url", (&url.URL{Scheme: "mysql", User: url.UserPassword(cfg.User, cfg.Passwd), Host: cfg.Addr, Path: "/" + cfg.DBName}).String())
	w.open()
	w.sees("galera", Fail, "a relay refuses it", "store.one-node to true")
	w.set("store.one-node", "true")
	for _, value := range []string{"0", "3"} {
		a.do("SET GLOBAL wsrep_sync_wait = " + value)
		a.do(w.sees("galera", Warn, "wsrep_sync_wait is "+value, "SET GLOBAL wsrep_sync_wait = 7"))
		w.well("galera")
	}
}

// TestSQLite checks a file that another program has opened: this program always
// opens it with safe settings.
func TestSQLite(t *testing.T) {
	const check = "sqlite durability"
	w := newWard(t)
	w.open()
	w.well(check)
	path := filepath.Join(t.TempDir(), "other.db")
	var db *sql.DB
	reopen := func(parameters string) {
		t.Helper()
		opened, err := sql.Open("sqlite", "file:"+path+parameters)
		w.must(err)
		t.Cleanup(func() { _ = opened.Close() })
		opened.SetMaxOpenConns(1) // a statement may change a connection's settings
		db = opened
	}
	w.instead = func(c Check) Finding {
		f, err := c.run(t.Context(), &patient{store: &connect.Store{SQL: db}})
		w.must(err)
		return f
	}
	reopen("?_journal_mode=DELETE&_synchronous=FULL")
	advice := w.sees(check, Fail, "the journal mode is delete", "PRAGMA journal_mode = WAL")
	_, err := db.ExecContext(t.Context(), strings.Split(advice, "'")[1])
	w.must(err)
	w.well(check)
	reopen("?_synchronous=NORMAL")
	w.sees(check, Fail, "synchronous is 1", "_synchronous=FULL")
	reopen("?_synchronous=FULL")
	w.well(check)
}
