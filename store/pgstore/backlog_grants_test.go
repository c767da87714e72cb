package pgstore_test

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// The grants of docs/operating.md are what destinations need: the relay's role
// registers and removes them, diverts, and settles and refills backlogs; the
// reader's role reads them.
func TestDocumentedGrantsOfDestinations(t *testing.T) {
	schema, as := rolesOf(t)
	open := func(role string) driver.Backlogs {
		t.Helper()
		db, err := pgstore.New(as(role), pgstore.Config{Schema: schema})
		if err != nil {
			t.Fatal(err)
		}
		return db.Driver().Backlogs
	}
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Errorf("%s: %v", what, err)
		}
	}
	pool := as("relay")
	db, err := pgstore.New(pool, pgstore.Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	roles := db.Driver()
	register(t, db, "a", "b")
	ev := deliver(t, db)
	lease, leave := acquire(t, roles.Relay)
	backlog := roles.Backlogs.Backlog(2)
	refill := func(want int) {
		t.Helper()
		got, err := backlog.Refill(t.Context(), driver.HistoryQuery{}, driver.HistoryCursor{}, 10)
		if err != nil || got.Copied != want {
			t.Errorf("Refill: %+v, %v; want %d copies", got, err, want)
		}
	}
	settle := func(what string, s driver.Settlement) {
		t.Helper()
		s.Leases = []driver.Lease{lease}
		if got, err := backlog.Settle(t.Context(), s); err != nil || len(got.Moved) != 1 {
			t.Errorf("%s: %+v, %v", what, got, err)
		}
	}
	result := func(replay int) []driver.Result {
		return []driver.Result{{Lane: lease.Lane, ID: ev.ID, Replay: replay}}
	}
	refill(1)
	settle("retry", driver.Settlement{Retry: result(1)})
	settle("dead", driver.Settlement{Dead: result(1)})
	must("Unblock", second(backlog.Unblock(t.Context(), []waybill.ID{ev.ID})))
	must("Replay", second(backlog.Replay(t.Context(), []waybill.ID{ev.ID})))
	settle("done", driver.Settlement{Done: result(2), History: true})
	refill(1)
	settle("dead again", driver.Settlement{Dead: result(1)})
	must("Discard", second(backlog.Discard(t.Context(), []waybill.ID{ev.ID})))
	must("PurgeDead", second(backlog.PurgeDead(t.Context(), time.Hour, 10)))
	must("Occupied", second(backlog.Occupied(t.Context())))
	must("PauseDestination", second(roles.Backlogs.PauseDestination(t.Context(), "b", "why")))
	must("ProbeDestination", roles.Backlogs.ProbeDestination(t.Context(), "b"))
	must("ResumeDestination", second(roles.Backlogs.ResumeDestination(t.Context(), "b")))
	refill(1)
	leave()

	reader := open("reader")
	must("AddDestinations without names", second(reader.AddDestinations(t.Context())))
	look := reader.Backlog(2)
	must("Stats", second(look.Stats(t.Context())))
	must("Find", second(look.Find(t.Context(), ev.ID)))
	must("CountHistory", second(look.CountHistory(t.Context(), driver.HistoryQuery{})))
	for _, state := range []store.State{store.Ready, store.Delayed, store.Dead} {
		must("List", second(look.List(t.Context(), state, store.Filter{}, 0, 10)))
	}
	refused(
		t, as("reader"), schema, `DELETE FROM waybill_backlog`, `UPDATE waybill_destination SET reason = ''`, `DELETE FROM waybill_backlog_dead`,
	)
	refused(t, as("writer"), schema, `SELECT * FROM waybill_backlog`, `INSERT INTO waybill_destination VALUES (3, 'x')`)

	if n, err := roles.Backlogs.RemoveDestination(t.Context(), "b"); err != nil || n != 1 {
		t.Errorf("RemoveDestination: %d, %v", n, err)
	}
	// Only the owner of the sequence can raise it.
	if err := roles.Restorer.Restored(t.Context(), false); err == nil {
		t.Error("the relay's role may call Restored")
	}
	refused(t, pool, schema, `SELECT setval('waybill_outbox_seq', 1)`)
}
