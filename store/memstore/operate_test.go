package memstore_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/memstore"
)

// put commits events and returns them as written.
func put(t *testing.T, db *memstore.Store[*memstore.Tx], evs ...waybill.Event) []waybill.Event {
	t.Helper()
	tx := memstore.BeginTx(db)
	for i := range evs {
		evs[i] = evs[i].Complete()
	}
	if _, err := db.Append(t.Context(), tx, evs); err != nil {
		t.Fatal(err)
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	return evs
}

// own returns the lease of lane 0, and its owner.
func own(t *testing.T, db store.Lanes) (store.Node, store.Lease) {
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

func claimed(ev waybill.Event, lease store.Lease) []waybill.Delivery {
	claim := waybill.NewClaim(waybill.Position{Lane: lease.Lane, Epoch: lease.Epoch}, lease.Token)
	return []waybill.Delivery{{Event: ev, Claim: claim.WithHistory(true)}}
}

func wantState(t *testing.T, db store.Inspector, id waybill.ID, want store.State) {
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
	_, lease := own(t, db)
	agg := store.Aggregate{Type: waybill.GlobalAggregate, ID: "a"}
	seen := 0
	for after := int64(0); ; {
		rows, err := db.FetchAggregate(ctx, agg, store.Cursor{After: after}, page)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows.Rows) == 0 {
			break
		}
		seen += len(rows.Rows)
		after = rows.Rows[len(rows.Rows)-1].Seq
	}
	if urgent, err := db.FetchPriority(ctx, []store.Cursor{{}}, n); err != nil || seen+len(urgent.Rows) != n {
		t.Errorf("Follow saw %d rows and Urgent %d, %v; want %d", seen, len(urgent.Rows), err, n)
	}
	// Settle all but the first row: a row that stays at the front must not make
	// the rows after it expensive.
	for after := int64(1); ; {
		rows, err := db.Fetch(ctx, []store.Cursor{{After: after}}, page)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows.Rows) == 0 {
			break
		}
		after = rows.Rows[len(rows.Rows)-1].Seq
		s := store.Settlement{Leases: []store.Lease{lease}, History: true}
		for _, row := range rows.Rows {
			r := store.Result{ID: row.ID}
			if row.Seq%2 == 0 {
				s.Done = append(s.Done, r)
			} else {
				s.Retry = append(s.Retry, r)
			}
		}
		if _, err := db.Settle(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	due := 0
	for {
		rows, err := db.Due(ctx, []int{0}, page)
		if err != nil {
			t.Fatal(err)
		}
		if len(rows.Rows) == 0 {
			break
		}
		due += len(rows.Rows)
		s := store.Settlement{Leases: []store.Lease{lease}, History: true}
		for _, row := range rows.Rows {
			s.Done = append(s.Done, store.Result{ID: row.ID})
		}
		if _, err := db.Settle(ctx, s); err != nil {
			t.Fatal(err)
		}
	}
	purged := 0
	for {
		k, err := db.Purge(ctx, store.Delivered, 0, page)
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
	if stats, err := db.Stats(ctx); err != nil || stats.Ready != 1 || stats.Scheduled+stats.Failed+stats.Dead != 0 {
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
				node, lease := own(t, db)
				tx := memstore.BeginTx(db)
				if err := db.Finish(ctx, tx, claimed(ev, lease)); err != nil {
					t.Fatal(err)
				}
				waiting := make(map[string]chan error)
				for name, do := range map[string]func() error{
					"Settle": func() error {
						_, err := db.Settle(ctx, store.Settlement{Leases: []store.Lease{lease}, Dead: []store.Result{{ID: ev.ID}}})
						return err
					},
					"Finish": func() error {
						other := memstore.BeginTx(db)
						defer other.Rollback(ctx) //nolint:errcheck // always rolled back
						return db.Finish(ctx, other, claimed(ev, lease))
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
				if err := db.Leave(short, node); !errors.Is(err, context.DeadlineExceeded) {
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
				wantState(t, db, ev.ID, c.want)
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
		ev := waybill.Event{Type: "t", AggregateID: "a"}.Complete()
		tx := memstore.BeginTx(db)
		if _, err := db.Append(ctx, tx, []waybill.Event{ev}); err != nil {
			t.Fatal(err)
		}
		done := make(chan error, 1)
		go func() { done <- db.SetLanes(ctx, 7) }()
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
		recs, err := db.Find(ctx, ev.ID)
		if want := store.LaneOf("", waybill.GlobalAggregate, "a", 7); err != nil || len(recs) != 1 || recs[0].Lane != want {
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
		_, lease := own(t, db)
		one, two := memstore.BeginTx(db), memstore.BeginTx(db)
		for i, tx := range []*memstore.Tx{one, two} {
			if err := db.Finish(ctx, tx, claimed(evs[i], lease)); err != nil {
				t.Fatal(err)
			}
		}
		done := make(chan error, 1)
		go func() { done <- db.Finish(ctx, one, claimed(evs[1], lease)) }()
		synctest.Wait()
		if err := db.Finish(ctx, two, claimed(evs[0], lease)); err == nil {
			t.Error("the second of two that wait for each other was not refused")
		}
		if err := two.Rollback(ctx); err != nil {
			t.Fatal(err)
		}
		if err := errors.Join(<-done, one.Commit(ctx)); err != nil {
			t.Fatal(err)
		}
		for _, ev := range evs {
			wantState(t, db, ev.ID, store.Delivered)
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
				_, lease := own(t, db)
				if _, err := db.Settle(ctx, store.Settlement{Leases: []store.Lease{lease}, Dead: []store.Result{{ID: dead.ID}}}); err != nil {
					t.Fatal(err)
				}
				tx := memstore.BeginTx(db)
				writer := keyed("k")
				if _, err := db.Append(ctx, tx, writer); err != nil {
					t.Fatal(err)
				}
				var replayed store.Replayed
				done := make(chan error, 1)
				go func() {
					var err error
					replayed, err = db.Replay(ctx, []waybill.ID{dead.ID})
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
		settle func(store.Result) store.Settlement
		want   store.State
	}{
		"done": {func(r store.Result) store.Settlement {
			return store.Settlement{Done: []store.Result{r, r}, Dead: []store.Result{r}}
		}, store.Delivered},
		"retry": {func(r store.Result) store.Settlement {
			r.Delay = time.Hour
			return store.Settlement{Retry: []store.Result{r, r}, Dead: []store.Result{r}}
		}, store.Delayed},
	} {
		t.Run(name, func(t *testing.T) {
			db := open(t)
			ev := put(t, db, waybill.NewEvent("t", nil))[0]
			_, lease := own(t, db)
			twice := c.settle(store.Result{ID: ev.ID})
			twice.History, twice.Leases = true, []store.Lease{lease}
			settled, err := db.Settle(t.Context(), twice)
			if err != nil {
				t.Fatal(err)
			}
			if len(settled.Moved) != 1 {
				t.Errorf("%d were moved", len(settled.Moved))
			}
			wantState(t, db, ev.ID, c.want)
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
	_, lease := own(t, db)
	page, err := db.Fetch(t.Context(), []store.Cursor{{}}, len(evs))
	if err != nil || len(page.Rows) != len(evs) {
		t.Fatalf("%d rows, %v", len(page.Rows), err)
	}
	var done []store.Result
	for i, row := range page.Rows {
		res := store.Result{ID: row.ID, Seq: row.Seq}
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
	settled, err := db.Settle(t.Context(), store.Settlement{History: true, Leases: []store.Lease{lease}, Done: done})
	if err != nil || len(settled.Moved) != 32 {
		t.Errorf("%d were moved, %v", len(settled.Moved), err)
	}
	for i, row := range page.Rows {
		want := store.Delivered
		if i%5 == 4 {
			want = store.Ready
		}
		wantState(t, db, row.ID, want)
	}
}
