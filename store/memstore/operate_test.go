package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// put commits events and returns them as written.
func put(t *testing.T, db *memstore.Store[*memstore.Tx], evs ...waybill.Event) []waybill.Event {
	t.Helper()
	tx := memstore.BeginTx(db)
	for i := range evs {
		evs[i] = eventfill.Defaults(evs[i])
	}
	if _, err := db.Driver().Outbox.Append(t.Context(), tx, evs); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	return evs
}

// own returns the lease of lane 0, and its owner.
func own(t *testing.T, db driver.Lanes) (store.Node, driver.Lease) {
	t.Helper()
	node := store.Node{ID: waybill.NewID(), Relay: "r"}
	if _, err := db.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	leases, err := db.Acquire(t.Context(), node, []int{0}, 1)
	if err != nil || len(leases) != 1 {
		t.Fatal(leases, err)
	}
	return node, leases[0]
}

func claimed(ev waybill.Event, lease driver.Lease) []waybill.Delivery {
	return []waybill.Delivery{{Event: ev, Position: waybill.Position{Lane: lease.Lane, Epoch: lease.Epoch}, Claim: &driver.Claim{Token: lease.Token, History: true}}}
}

func wantState(t *testing.T, db driver.Inspector, id waybill.ID, want store.State) {
	t.Helper()
	if recs, err := db.Find(t.Context(), id); err != nil || len(recs) != 1 || recs[0].State != want {
		t.Errorf("the event is %v, %v; want it %v", recs, err, want)
	}
}

// One lane, one aggregate and 120,000 rows: a store that scans all rows for
// each page is too slow.
func TestManyRows(t *testing.T) {
	const n, page = 120_000, 100
	ctx := t.Context()
	db := open(t)
	for range n / 1000 {
		evs := make([]waybill.Event, 1000)
		for i := range evs {
			evs[i] = waybill.Event{ID: waybill.NewID(), Type: "t", AggregateID: "a", Payload: []byte("1")}
			if i%100 == 0 {
				evs[i].AggregateID, evs[i].Priority = "", 1
			}
		}
		put(t, db, evs...)
	}
	_, lease := own(t, db.Driver().Relay)
	agg := store.Aggregate{Type: waybill.GlobalAggregate, ID: "a"}
	seen := 0
	for after := int64(0); ; {
		rows, err := db.Driver().Relay.FetchAggregate(ctx, agg, driver.Cursor{After: after}, page)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows.Rows) == 0 {
			break
		}
		seen += len(rows.Rows)
		after = rows.Rows[len(rows.Rows)-1].Seq
	}
	if urgent, err := db.Driver().Relay.FetchPriority(ctx, []driver.Cursor{{}}, n); err != nil || seen+len(urgent.Rows) != n {
		t.Errorf("Follow saw %d rows and Urgent %d, %v; want %d", seen, len(urgent.Rows), err, n)
	}
	// Settle all but the first row: a row that stays at the front must not make
	// the rows after it expensive.
	for after := int64(1); ; {
		rows, err := db.Driver().Relay.Fetch(ctx, []driver.Cursor{{After: after}}, page)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows.Rows) == 0 {
			break
		}
		after = rows.Rows[len(rows.Rows)-1].Seq
		s := driver.Settlement{Leases: []driver.Lease{lease}, History: true}
		for _, row := range rows.Rows {
			r := driver.Result{ID: row.ID}
			if row.Seq%2 == 0 {
				s.Done = append(s.Done, r)
			} else {
				s.Retry = append(s.Retry, r)
			}
		}
		if _, err := db.Driver().Relay.Settle(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	due := 0
	for {
		rows, err := db.Driver().Relay.Due(ctx, []int{0}, page)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows.Rows) == 0 {
			break
		}
		due += len(rows.Rows)
		s := driver.Settlement{Leases: []driver.Lease{lease}, History: true}
		for _, row := range rows.Rows {
			s.Done = append(s.Done, driver.Result{ID: row.ID})
		}
		if _, err := db.Driver().Relay.Settle(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	purged := 0
	for {
		k, err := db.Driver().OutboxAdmin.Purge(ctx, store.Delivered, 0, page)
		if err != nil {
			t.Fatal(err)
		}
		if k == 0 {
			break
		}
		purged += k
	}
	if due != n/2-1 || purged != n-1 {
		t.Errorf("%d rows were due and %d purged, want %d and %d", due, purged, n/2-1, n-1)
	}
	if stats, err := db.Driver().OutboxAdmin.Stats(ctx); err != nil || stats.Ready != 1 || stats.Scheduled+stats.Failed+stats.Dead != 0 {
		t.Errorf("left are %+v, %v; want one that is ready", stats, err)
	}
}

// A transaction owns the deliveries that it has recorded as done until it ends:
// a settlement and a takeover of the lane wait.
func TestFinishIsWaitedFor(t *testing.T) {
	for name, c := range map[string]struct {
		commit bool
		want   store.State
	}{"committed": {true, store.Delivered}, "rolled back": {false, store.Dead}} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				db := open(t)
				ev := put(t, db, waybill.NewEvent("t", nil))[0]
				node, lease := own(t, db.Driver().Relay)
				tx := memstore.BeginTx(db)
				if err := db.Driver().Finisher.Finish(ctx, tx, claimed(ev, lease)); err != nil {
					t.Fatal(err)
				}
				waiting := make(map[string]chan error)
				for name, do := range map[string]func() error{
					"Settle": func() error {
						_, err := db.Driver().Relay.Settle(ctx, driver.Settlement{Leases: []driver.Lease{lease}, Dead: []driver.Result{{ID: ev.ID}}})
						return err
					},
					"Finish": func() error {
						other := memstore.BeginTx(db)
						defer other.Rollback(ctx) //nolint:errcheck // always rolled back
						return db.Driver().Finisher.Finish(ctx, other, claimed(ev, lease))
					},
				} {
					done := make(chan error, 1)
					waiting[name] = done
					go func() { done <- do() }()
				}
				synctest.Wait()
				for name, done := range waiting {
					if len(done) > 0 {
						t.Errorf("%s did not wait: %v", name, <-done)
					}
				}
				short, cancel := context.WithTimeout(ctx, time.Second)
				defer cancel()
				if err := db.Driver().Relay.Leave(short, node); !errors.Is(err, context.DeadlineExceeded) {
					t.Errorf("Leave did not wait: %v", err)
				}
				end := tx.Rollback
				if c.commit {
					end = tx.Commit
				}
				if err := end(ctx); err != nil {
					t.Fatal(err)
				}
				for name, done := range waiting {
					if err := <-done; err != nil {
						t.Errorf("%s: %v", name, err)
					}
				}
				wantState(t, db.Driver().OutboxAdmin, ev.ID, c.want)
			})
		})
	}
}

// The number of lanes does not change while a transaction that has written is
// open: it knows the lane of its events.
func TestSetLanesWaitsForWriters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		db, err := memstore.New(memstore.Config{Lanes: 4})
		if err != nil {
			t.Fatal(err)
		}
		ev := eventfill.Defaults(waybill.Event{Type: "t", AggregateID: "a"})
		tx := memstore.BeginTx(db)
		if _, err := db.Driver().Outbox.Append(ctx, tx, []waybill.Event{ev}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- db.Driver().OutboxAdmin.SetLanes(ctx, 7) }()
		synctest.Wait()
		if len(done) > 0 {
			t.Error("SetLanes did not wait")
		}
		if err := tx.Commit(ctx); err != nil {
			t.Fatal(err)
		}
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		recs, err := db.Driver().OutboxAdmin.Find(ctx, ev.ID)
		if want := driver.LaneOf("", waybill.GlobalAggregate, "a", 7); err != nil || len(recs) != 1 || recs[0].Lane != want {
			t.Errorf("the event is %v, %v; want it in lane %d", recs, err, want)
		}
	})
}

// Two transactions that record each other's deliveries do not wait forever.
func TestFinishDeadlock(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx := t.Context()
		db := open(t)
		evs := put(t, db, waybill.NewEvent("t", nil), waybill.NewEvent("t", nil))
		_, lease := own(t, db.Driver().Relay)
		one, two := memstore.BeginTx(db), memstore.BeginTx(db)
		for i, tx := range []*memstore.Tx{one, two} {
			if err := db.Driver().Finisher.Finish(ctx, tx, claimed(evs[i], lease)); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		go func() { done <- db.Driver().Finisher.Finish(ctx, one, claimed(evs[1], lease)) }()
		synctest.Wait()
		if err := db.Driver().Finisher.Finish(ctx, two, claimed(evs[0], lease)); err == nil {
			t.Error("the second of two that wait for each other was not refused")
		}
		if err := two.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-done, one.Commit(ctx)); err != nil {
			t.Fatal(err)
		}
		for _, ev := range evs {
			wantState(t, db.Driver().OutboxAdmin, ev.ID, store.Delivered)
		}
	})
}

// A dead letter is replayed after the writer that has its key has ended, and
// not before.
func TestReplayWaitsForWriters(t *testing.T) {
	for _, commit := range []bool{true, false} {
		t.Run(fmt.Sprint("commit ", commit), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				ctx := t.Context()
				db := open(t)
				dead := put(t, db, keyed("k")...)[0]
				_, lease := own(t, db.Driver().Relay)
				if _, err := db.Driver().Relay.Settle(ctx, driver.Settlement{Leases: []driver.Lease{lease}, Dead: []driver.Result{{ID: dead.ID}}}); err != nil {
					t.Fatal(err)
				}
				tx := memstore.BeginTx(db)
				writer := keyed("k")
				if _, err := db.Driver().Outbox.Append(ctx, tx, writer); err != nil {
					t.Fatal(err)
				}
				var replayed store.Replayed
				done := make(chan error, 1)
				go func() {
					var err error
					replayed, err = db.Driver().OutboxAdmin.Replay(ctx, []waybill.ID{dead.ID})
					done <- err
				}()
				synctest.Wait()
				if len(done) > 0 {
					t.Error("Replay did not wait")
				}
				end := tx.Rollback
				if commit {
					end = tx.Commit
				}
				if err := errors.Join(end(ctx), <-done); err != nil {
					t.Fatal(err)
				}
				refused := len(replayed.Refused) == 1 && replayed.Refused[0] == store.Refusal{ID: dead.ID, Holder: writer[0].ID}
				if refused != commit || (len(replayed.IDs) == 1) == commit {
					t.Errorf("replayed: %+v", replayed)
				}
			})
		})
	}
}

// An event that a settlement names twice is moved once: the first result
// counts.
func TestSettledOnce(t *testing.T) {
	for name, c := range map[string]struct {
		settle func(driver.Result) driver.Settlement
		want   store.State
	}{
		"done": {func(r driver.Result) driver.Settlement {
			return driver.Settlement{Done: []driver.Result{r, r}, Dead: []driver.Result{r}}
		}, store.Delivered},
		"retry": {func(r driver.Result) driver.Settlement {
			r.Delay = time.Hour
			return driver.Settlement{Retry: []driver.Result{r, r}, Dead: []driver.Result{r}}
		}, store.Delayed},
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			ev := put(t, db, waybill.NewEvent("t", nil))[0]
			_, lease := own(t, db.Driver().Relay)
			twice := c.settle(driver.Result{ID: ev.ID})
			twice.History, twice.Leases = true, []driver.Lease{lease}
			settled, err := db.Driver().Relay.Settle(t.Context(), twice)
			if err != nil {
				t.Fatal(err)
			}
			if len(settled.Moved) != 1 {
				t.Errorf("%d were moved", len(settled.Moved))
			}
			wantState(t, db.Driver().OutboxAdmin, ev.ID, c.want)
		})
	}
}

// A settlement finds an event by its id; the seq is only a hint.
func TestSettledByID(t *testing.T) {
	db := open(t)
	var evs []waybill.Event
	for range 40 {
		evs = append(evs, put(t, db, waybill.NewEvent("t", nil))...)
	}
	_, lease := own(t, db.Driver().Relay)
	page, err := db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{}}, len(evs))
	if err != nil || len(page.Rows) != len(evs) {
		t.Fatalf("%d rows, %v", len(page.Rows), err)
	}
	var done []driver.Result
	for i, row := range page.Rows {
		res := driver.Result{ID: row.ID, Seq: row.Seq}
		switch i % 5 {
		case 1: // seq of another event
			res.Seq = page.Rows[(i+7)%len(page.Rows)].Seq
		case 2: // unused seq
			res.Seq = 1 << 40
		case 3:
			res.Seq = 0
		case 4: // unknown event
			res.ID = waybill.NewID()
		}
		done = append(done, res)
	}
	settled, err := db.Driver().Relay.Settle(t.Context(), driver.Settlement{History: true, Leases: []driver.Lease{lease}, Done: done})
	if err != nil || len(settled.Moved) != 32 {
		t.Errorf("%d were moved, %v", len(settled.Moved), err)
	}
	for i, row := range page.Rows {
		want := store.Delivered
		if i%5 == 4 {
			want = store.Ready
		}
		wantState(t, db.Driver().OutboxAdmin, row.ID, want)
	}
}
