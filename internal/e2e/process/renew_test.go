//go:build linux || darwin

package process_test

import (
	"context"
	"database/sql"
	"syscall"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/store"
)

// TestRenewedWhileTakenOver: an owner that was stopped renews its expired lease
// while another node's takeover is waiting for a settlement. The response to
// the heartbeat says that the lane is still owned; then the takeover continues.
// Events that the new owner has deferred must not be overtaken by the old
// owner's reads.
//
// SQLite cannot show it: there a takeover waits before it has read anything.
func TestRenewedWhileTakenOver(t *testing.T) {
	for _, d := range []struct {
		name    string
		make    func(*testing.T) place
		lock    string
		waiting string
	}{
		{
			"postgres", postgresPlace, `SELECT 1 FROM {lane} FOR SHARE`,
			`SELECT count(*) > 0 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%{schema}%' AND query LIKE '%lane%'`,
		},
		{
			"mariadb", mariadbPlace, `SELECT 1 FROM {lane} LOCK IN SHARE MODE`,
			`SELECT count(*) > 0 FROM information_schema.processlist
				WHERE db = database() AND info LIKE 'UPDATE%lane%' AND state LIKE 'Updat%' AND time_ms > 50`,
		},
		{
			"mysql", mysqlPlace, `SELECT 1 FROM {lane} LOCK IN SHARE MODE`,
			`SELECT count(*) > 0 FROM performance_schema.data_lock_waits AS w JOIN performance_schema.data_locks AS l
				ON l.engine_lock_id = w.requesting_engine_lock_id WHERE l.object_schema = database() AND l.object_name = 'waybill_lane'`,
		},
	} {
		t.Run(d.name, func(t *testing.T) {
			t.Parallel()
			at := d.make(t)
			at.Lanes = 1 // and A, which came first, keeps it
			b := newEnv(t, at)
			renewed(b, at.handle(t), at.fill(d.lock), at.fill(d.waiting))
		})
	}
}

func renewed(b *env, db *sql.DB, lock, waiting string) {
	// A reads rarely, so that it does not read x/1 while x/1 is ready, and
	// checks its lanes once a second.
	a := b.start(spec{Name: "A", Lease: 4 * time.Second, Heartbeat: 1200 * time.Millisecond, Poll: 600 * time.Millisecond})
	b.add("x/0")
	b.awaitEmpty()
	b.await("A has got used to reading rarely", func() bool { return time.Since(b.journal()[1].At) > 3*a.spec.Poll })
	a.pause()
	// A transaction locks the lane's row for a moment, as a settlement does.
	tx, err := db.BeginTx(b.Context(), nil)
	if err != nil {
		b.Fatal(err)
	}
	defer tx.Rollback() //nolint:errcheck // of a test that failed
	if _, err := tx.ExecContext(b.Context(), lock); err != nil {
		b.Fatal(err)
	}
	b.await("A's lease has run out", func() bool { return len(b.stats().Nodes) == 0 })
	// B does not check its lanes soon, or it would give the lane back to A,
	// whose turn it is.
	b.start(spec{
		Name: "B", Lease: time.Minute, Heartbeat: 15 * time.Second, Poll: 10 * time.Millisecond, Backoff: time.Minute,
		Script: map[string]act{"x/1": {Error: "B says no"}},
	})
	b.await("B waits for the lane", func() bool {
		var yes bool
		if err := db.QueryRowContext(context.Background(), waiting).Scan(&yes); err != nil {
			b.Fatal(err)
		}
		return yes
	})
	a.signal(syscall.SIGCONT)
	// A heartbeat may also have to wait, or be refused. The pause is for its
	// response.
	b.await("A has sent a heartbeat", func() bool {
		return len(b.stats().Nodes) == 2 || a.says("lane was lost") || a.says("operation=heartbeat")
	})
	sent := time.Now()
	b.await("A has its answer", func() bool { return time.Since(sent) > 100*time.Millisecond })
	if err := tx.Rollback(); err != nil {
		b.Fatal(err)
	}
	b.add("x/1")
	b.await("x/1 was tried", func() bool { return b.count(journal.Begin, "", "x/1") > 0 && b.find("x/1").State != store.Ready })
	b.add("x/2")
	added := time.Now()
	b.await("A has read x/2, or knows that it must not", func() bool {
		return b.count(journal.Begin, "A", "") > 1 || time.Since(added) > 2*a.spec.Heartbeat
	})
	b.wantOrder()
	b.wantEpochs()
}
