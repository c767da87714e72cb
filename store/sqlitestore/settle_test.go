package sqlitestore_test

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// owner makes a node live and acquires the lane for it.
func owner(t testing.TB, db *sqlitestore.Store) []driver.Lease {
	t.Helper()
	node := store.Node{ID: waybill.NewID(), Relay: "test"}
	if _, err := db.Driver().Relay.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	leases, err := db.Driver().Relay.Acquire(t.Context(), node, []int{0}, 100)
	if err != nil || len(leases) != 1 {
		t.Fatal(leases, err)
	}
	return leases
}

func settle(t testing.TB, db *sqlitestore.Store, s driver.Settlement) driver.Settled {
	t.Helper()
	settled, err := db.Driver().Relay.Settle(t.Context(), s)
	if err != nil {
		t.Fatal(err)
	}
	return settled
}

// TestSettleSizes settles every number of events around the sizes of the
// prepared statements, some of them from the table of delayed events, some
// twice, some that do not exist.
func TestSettleSizes(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	leases := owner(t, db)
	want := 0
	for _, n := range []int{1, 2, 7, 8, 9, 16, 17, 63, 64, 65, 150} {
		var done []driver.Result
		for i := range n {
			id := write(t, box, placed("1"))
			done = append(done, driver.Result{ID: id})
			if i%5 == 1 {
				settle(t, db, driver.Settlement{Leases: leases, Retry: []driver.Result{{ID: id, Attempts: 1, Error: "boom"}}})
			}
		}
		want += n
		asked := append([]driver.Result{{ID: waybill.NewID()}}, done...)
		asked = append(asked, done[n/2])
		settled := settle(t, db, driver.Settlement{Leases: leases, Done: asked, History: true})
		if len(settled.Moved) != n {
			t.Errorf("%d events: %d moved", n, len(settled.Moved))
		}
		for i, id := range settled.Moved {
			if id != done[i].ID {
				t.Fatalf("%d events: moved in another order than asked", n)
			}
		}
		if left := len(fetch(t, db.Driver().Relay)); left != 0 {
			t.Errorf("%d events: %d are left", n, left)
		}
	}
	var kept, retried int
	if err := db.DB().QueryRowContext(t.Context(),
		`SELECT count(*), sum(attempts) FROM waybill_history`).Scan(&kept, &retried); err != nil || kept != want {
		t.Errorf("%d events in the history, %v, want %d", kept, err, want)
	}
	if retried == 0 {
		t.Error("the history does not know of the attempts")
	}
}

// TestOneIDTwice gives two rows one id, as a faulty producer may: the lane
// never stops.
func TestOneIDTwice(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	leases := owner(t, db)
	id := write(t, box, placed("1"))
	result := []driver.Result{{ID: id, Attempts: 1, Error: "boom", Delay: time.Hour}}
	again := func() {
		if _, err := db.DB().ExecContext(t.Context(), `INSERT INTO waybill_outbox (type, payload, id) VALUES ('Again', '2', ?)`, id[:]); err != nil {
			t.Fatal(err)
		}
	}
	settle(t, db, driver.Settlement{Leases: leases, Retry: result})
	again()
	// This moves the row that is already delayed.
	settle(t, db, driver.Settlement{Leases: leases, Retry: result})
	settle(t, db, driver.Settlement{Leases: leases, Dead: result})
	settle(t, db, driver.Settlement{Leases: leases, Dead: result})
	again()
	settle(t, db, driver.Settlement{Leases: leases, Done: result, History: true})
	again()
	settle(t, db, driver.Settlement{Leases: leases, Done: result, History: true})
	if n := len(fetch(t, db.Driver().Relay)); n != 0 {
		t.Errorf("%d rows are left", n)
	}
}
