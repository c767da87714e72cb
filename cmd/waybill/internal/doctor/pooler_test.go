//go:build linux || darwin

package doctor

import (
	"context"
	"slices"
	"syscall"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/relay"
)

// TestPooler checks poolers of both modes, with and without the settings for
// transaction mode.
func TestPooler(t *testing.T) {
	w, _, _ := onPostgres(t, testserver.Postgres(t))
	w.open()
	own := w.flags["store.url"]
	finds := func(text string) {
		t.Helper()
		w.well("pooler")
		if f := w.look("pooler"); f.Text != text {
			t.Errorf("the finding is %q, want %q", f.Text, text)
		}
	}
	finds("no pooler: connections go to the server")
	w.set("store.url", private.PgBouncer(t, own, "session"))
	finds("store.url leads through a pooler in session mode, as far as can be seen")
	through := private.PgBouncer(t, own, "transaction")
	w.set("store.url", through)
	w.sees("pooler", Fail, "loses prepared statements", "default_query_exec_mode=exec")
	w.set("store.url", through+"&default_query_exec_mode=exec")
	w.sees("pooler", Warn, "store.listen-url is not set", "set store.listen-url")
	w.set("store.listen-url", through+"&default_query_exec_mode=exec")
	w.sees("pooler", Warn, "store.listen-url leads through a pooler in transaction mode, too", "set store.listen-url")
	w.set("store.listen-url", "postgres://waybill@127.0.0.1:1/waybill")
	w.sees("pooler", Fail, "store.listen-url does not answer", "set store.listen-url")
	w.set("store.listen-url", own)
	finds("store.url leads through a pooler in transaction mode, and store.listen-url leads to the server")
	w.set("relay.enabled", "false", "store.listen-url", "")
	finds("store.url leads through a pooler in transaction mode; no relay listens")
}

// TestPoolerPrepares checks that a pooler with prepared statements needs no
// setting.
func TestPoolerPrepares(t *testing.T) {
	w, _, _ := onPostgres(t, testserver.Postgres(t))
	w.open()
	own := w.flags["store.url"]
	w.set("store.url", private.NewPgBouncer(t, own, "transaction", "max_prepared_statements = 100"), "store.listen-url", own)
	w.well("pooler")
}

// TestPostgresCDC sets up change data capture in the order of the findings.
func TestPostgresCDC(t *testing.T) {
	server := private.Start(t, testserver.PostgresName)
	w, _, _ := onPostgres(t, server.DSN)
	w.open()
	w.well("cdc") // disabled
	w.set("cdc.enabled", "true", "relay.enabled", "false")

	w.must(server.Kill(t.Context()))
	stop := startAs(t, server, syscall.SIGINT, replaced(server.Argv, "wal_level=logical", "wal_level=replica")...)
	w.await("the server", func() bool { return w.look("store").Status == OK })
	w.sees("cdc", Fail, "wal_level is replica", "ALTER SYSTEM SET wal_level")
	stop()
	w.must(server.Restart(t.Context()))
	w.await("the server", func() bool { return w.look("store").Status == OK })

	own, err := pgx.Connect(t.Context(), w.flags["store.url"])
	w.must(err)
	defer func() { _ = own.Close(t.Context()) }()
	_, err = own.Exec(t.Context(), w.sees("cdc", Fail, "no publication contains the inserts", "CREATE PUBLICATION"))
	w.must(err)
	w.sees("cdc", Fail, "no logical replication slot", "start the reader")
	_, err = own.Exec(t.Context(), `SELECT pg_create_logical_replication_slot('reader', 'pgoutput')`)
	w.must(err)
	w.sees("cdc", Fail, "no reader is connected to reader", "start the reader")

	reader, err := pgx.Connect(t.Context(), w.flags["store.url"]+"&replication=database&default_query_exec_mode=simple_protocol")
	w.must(err)
	const start = `START_REPLICATION SLOT reader LOGICAL 0/0 (proto_version '1', publication_names 'waybill_cdc')`
	reading := reader.PgConn().Exec(t.Context(), start)
	w.await("the reader", func() bool { return w.look("cdc").Status == OK })
	w.tune = func(p *patient) { p.lag = -1 }
	w.sees("cdc", Warn, "of log behind", "the reader's log")
	w.tune = nil
	w.well("cdc")
	w.must(reader.PgConn().Conn().Close())
	_ = reading.Close()
}

// TestRelayBesideCDC checks that a relay beside change data capture is a
// failure, because it deletes events before they are read; the age of events is
// no finding then.
func TestRelayBesideCDC(t *testing.T) {
	w := newWard(t)
	st := w.open()
	_, err := st.Send(t.Context(), waybill.NewEvent("OrderPlaced", 1))
	w.must(err)
	w.sees("relay", Fail, "no relay is alive", "waybill serve")
	w.set("cdc.enabled", "true", "relay.enabled", "false")
	w.well("enabled")
	w.well("relay")
	w.well("waiting")
	taken := relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil })
	stop := w.runRelay(st, w.settings().Relay.Name, taken, relay.Continue)
	w.awaits("relay", Fail, "a relay is alive, and cdc.enabled is on", "stop the relay")
	stop()
	w.well("relay")
}

// examineMySQLCDC checks a server without a binary log, and one with a format
// that a reader cannot use.
func examineMySQLCDC(w *ward, a *master, server manage.Server) {
	w.t.Helper()
	w.well("cdc")
	w.set("cdc.enabled", "true", "relay.enabled", "false")
	w.sees("cdc", Fail, "no binary log exists", "--log-bin")
	w.must(server.Kill(w.t.Context()))
	startAs(w.t, server, syscall.SIGTERM, append(slices.Clone(server.Argv), "--log-bin=binlog", "--sync-binlog=0")...)
	w.await("the server", func() bool { return w.look("store").Status == OK })
	for _, change := range [][2]string{{"binlog_format", "STATEMENT"}, {"binlog_row_image", "MINIMAL"}} {
		a.do("SET GLOBAL " + change[0] + " = '" + change[1] + "'")
		a.do(w.awaits("cdc", Fail, change[0]+" is "+change[1], "SET GLOBAL "+change[0]))
	}
	w.well("cdc")
	w.set("cdc.enabled", "false", "relay.enabled", "true")
}
