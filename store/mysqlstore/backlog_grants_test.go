package mysqlstore_test

import (
	"context"
	"database/sql"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// A relay's account needs no right on the tables themselves for anything that
// relays and operators do with destinations, and a reader sees everything.
func TestBacklogGrants(t *testing.T) { onBoth(t, testBacklogGrants) }

func testBacklogGrants(t *testing.T) {
	root, name := openDB(t, nil)
	a := &accounts{t, root, name, "b" + name[len(name)-8:] + "_"}
	if _, err := newStore(t, root).Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	a.as("writer", "a-long-password-2")
	node, relayDB := a.as("relay", "a-long-password-3")
	reader, readerDB := a.as("reader", "a-long-password-4")
	a.as("consumer", "a-long-password-5")
	a.grant("sql mysql-grants")
	a.grant("sql mysql-procedures")

	_, leases := own(t, node)
	grantedBacklogs(t, node, leases)
	denied(t, relayDB, "DROP TABLE waybill_backlog", "ALTER TABLE waybill_destination COMMENT = ''")
	b := reader.Driver().Backlogs.Backlog(1)
	if _, err := reader.Driver().Backlogs.AddDestinations(t.Context()); err != nil {
		t.Errorf("the destinations: %v", err)
	}
	if _, err := b.Stats(t.Context()); err != nil {
		t.Errorf("Stats: %v", err)
	}
	if _, err := b.Occupied(t.Context()); err != nil {
		t.Errorf("Occupied: %v", err)
	}
	if _, err := b.CountHistory(t.Context(), driver.HistoryQuery{}); err != nil {
		t.Errorf("CountHistory: %v", err)
	}
	for _, state := range []store.State{store.Ready, store.Delayed, store.Dead} {
		if _, err := b.List(t.Context(), state, store.Filter{}, 0, 10); err != nil {
			t.Errorf("List: %v", err)
		}
	}
	denied(t, readerDB, "DELETE FROM waybill_backlog", "UPDATE waybill_destination SET reason = ''")
}

// grantedBacklogs does everything that changes destinations and backlogs.
func grantedBacklogs(t *testing.T, s *mysqlstore.Store, leases []driver.Lease) {
	t.Helper()
	must := func(what string, err error) {
		t.Helper()
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
	}
	roles := s.Driver()
	_, err := roles.Backlogs.AddDestinations(t.Context(), "a", "b")
	must("AddDestinations", err)
	box := newBox(t, s)
	evs := []waybill.Event{event("x"), event("y"), event("z")}
	must("InTx", box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error { return box.Write(ctx, tx, evs...) }))
	rows := ready(t, s)
	settle(t, s, driver.Settlement{Leases: leases, Done: results(rows), History: true, Divert: diversions(rows, 1)})
	all := results(rows)
	settleIn(t, s, 1, driver.Settlement{Leases: leases, Done: all[:1], Retry: all[1:2], Dead: all[2:], History: true})
	b := roles.Backlogs.Backlog(1)
	_, err = b.Due(t.Context(), allLanes(), 10)
	must("Due", err)
	_, err = b.Replay(t.Context(), []waybill.ID{all[2].ID})
	must("Replay", err)
	_, err = b.Unblock(t.Context(), []waybill.ID{all[2].ID})
	must("Unblock", err)
	_, err = b.Discard(t.Context(), []waybill.ID{all[2].ID})
	must("Discard", err)
	_, err = b.PurgeDead(t.Context(), time.Hour, 10)
	must("PurgeDead", err)
	_, err = b.Refill(t.Context(), driver.HistoryQuery{}, driver.HistoryCursor{}, 10)
	must("Refill", err)
	_, err = roles.Backlogs.PauseDestination(t.Context(), "a", "why")
	must("PauseDestination", err)
	_, err = roles.Backlogs.ResumeDestination(t.Context(), "a")
	must("ResumeDestination", err)
	must("ProbeDestination", roles.Backlogs.ProbeDestination(t.Context(), "a"))
	must("Restored", roles.Restorer.Restored(t.Context(), true)) // ends the node
	_, err = roles.Backlogs.RemoveDestination(t.Context(), "b")
	must("RemoveDestination", err)
}
