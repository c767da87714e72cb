//go:build linux || darwin

package process_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/internal/e2e/process/server"
	"github.com/waybillhq/waybill/store"
)

// forgetful is an env on a server of its own that writes to disk only when a
// commit waits for it: asynchronous commits are lost in a crash. Nodes on it
// must be quiet, because a heartbeat makes the server write everything before
// it.
type forgetful struct {
	*env
	server *server.Postgres
}

func newForgetful(t *testing.T) *forgetful {
	t.Helper()
	pg := server.Start(t)
	conn, err := pgx.Connect(t.Context(), pg.DSN)
	if err != nil {
		t.Fatal(err)
	}
	for _, statement := range []string{`ALTER SYSTEM SET wal_writer_delay = '10s'`, `SELECT pg_reload_conf()`} {
		if _, err := conn.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	if err := conn.Close(t.Context()); err != nil {
		t.Fatal(err)
	}
	return &forgetful{newEnv(t, place{Database: "postgres", Source: pg.DSN, Lanes: 1}), pg}
}

// quiet is a node that has a long lease and rarely renews it.
func quiet(name string, script map[string]act) spec {
	return spec{Name: name, Lease: time.Minute, Heartbeat: 15 * time.Second, Backoff: time.Minute, Script: script}
}

// crash crashes the server and restarts it.
func (b *forgetful) crash() {
	b.Helper()
	if err := b.server.Crash(b.Context()); err != nil {
		b.Fatal(err)
	}
	if err := b.server.Restart(b.Context()); err != nil {
		b.Fatal(err)
	}
	b.await("the pool has got rid of its dead connections", func() bool {
		_, err := b.db.Stats(b.Context())
		return err == nil
	})
}

// TestOrderAfterAServerCrash: the order holds when the server crashes and loses
// commits that did not wait for the disk: an event that had failed and was
// deferred is ready again, as if it had never been tried, and must not be
// overtaken by the events that waited for it.
func TestOrderAfterAServerCrash(t *testing.T) {
	b := newForgetful(t)
	a := b.start(quiet("A", map[string]act{"x/0": {Error: "no"}}))
	b.awaitNodes(1)
	b.add("x/0", "x/1")
	b.await("x/0 is deferred", func() bool { return b.find("x/0").State == store.Delayed })
	b.crash()
	if s := b.find("x/0").State; s != store.Ready {
		b.Skipf("something has made the server write in time: x/0 is %s", s)
	}
	b.await("the relay goes on", func() bool { return b.count(journal.Begin, "A", "x/0") > 1 || b.count(journal.Begin, "A", "x/1") > 0 })
	b.wantOrder()
	if !a.Alive() {
		b.Error("the relay has ended")
	}
}

// TestReplayAfterAServerCrash: a dead letter stays dead when the server
// crashes, because its successors may have been delivered.
func TestReplayAfterAServerCrash(t *testing.T) {
	b := newForgetful(t)
	b.start(quiet("A", map[string]act{"x/0": {Permanent: true, Error: "never"}}))
	b.awaitNodes(1)
	b.add("x/0", "x/1")
	b.await("x/1 is delivered", func() bool { return b.count(journal.OK, "A", "x/1") == 1 })
	b.crash()
	if r := b.find("x/0"); r.State != store.Dead {
		b.Errorf("x/0 is %s again", r.State)
	}
	b.awaitEmpty()
	if n := b.count(journal.Begin, "", "x/0"); n != 1 {
		b.Errorf("x/0 was delivered %d times, want once", n)
	}
}

// TestSuspectsAfterAServerCrash: the attempt of a suspect is on disk before it
// is delivered. Otherwise an event that kills server and process would never
// become dead.
func TestSuspectsAfterAServerCrash(t *testing.T) {
	b := newForgetful(t)
	a := b.start(spec{Name: "A", Script: map[string]act{"x/0": {Gate: "never"}}})
	b.add("x/0")
	b.await("it is with A", func() bool { return b.count(journal.Begin, "A", "x/0") == 1 })
	a.Kill()
	b.start(quiet("B", map[string]act{"x/0": {Gate: "never"}}))
	b.await("it is with B", func() bool { return b.count(journal.Begin, "B", "x/0") == 1 })
	b.crash()
	if r := b.find("x/0"); r.State != store.Delayed || r.Attempts != 1 {
		b.Errorf("x/0 is %s with %d attempts, want the one that B has begun", r.State, r.Attempts)
	}
}
