package sqlitestore_test

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// run executes plain SQL on the store's own handle.
func run(t testing.TB, db *sqlitestore.Store, text string, args ...any) {
	t.Helper()
	if _, err := db.DB().ExecContext(t.Context(), text, args...); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
}

// value returns the single value of a query.
func value[V any](t testing.TB, db *sqlitestore.Store, text string, args ...any) V {
	t.Helper()
	var v V
	if err := db.DB().QueryRowContext(t.Context(), text, args...).Scan(&v); err != nil {
		t.Fatalf("%s: %v", text, err)
	}
	return v
}

// TestSightings reads the aggregates of rows with default or empty columns:
// Sweep returns the same aggregates as a read of whole rows.
func TestSightings(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	run(t, db, `INSERT INTO waybill_outbox (type, payload, aggregate_type, aggregate_id, tenant_id) VALUES
('A', '1', '__GLOBAL__', NULL, NULL), ('A', '1', 'order', '', 't'), ('A', '1', '', 'x', NULL), ('A', '1', 'order', 'x', ''), ('A', '1', 'order', 'x', 't')`)
	want := []store.Aggregate{{}, {}, {Type: waybill.GlobalAggregate, ID: "x"}, {Type: "order", ID: "x"}, {Tenant: "t", Type: "order", ID: "x"}}
	seen, err := db.Driver().Relay.Sweep(t.Context(), []driver.Cursor{{UpTo: 100}}, 100)
	if err != nil || len(seen) != len(want) {
		t.Fatalf("Sweep: %+v, %v", seen, err)
	}
	rows := fetch(t, db.Driver().Relay)
	for i, agg := range want {
		if seen[i].Aggregate != agg || seen[i].Key != rows[i].Key || driver.AggregateOf(&rows[i].Event) != agg {
			t.Errorf("row %d: %+v, read whole %+v; want %+v", i, seen[i], rows[i], agg)
		}
		var follow []store.Key
		if !agg.IsZero() {
			follow = []store.Key{rows[i].Key}
		}
		page, err := db.Driver().Relay.FetchAggregate(t.Context(), agg, driver.Cursor{}, 100)
		if err != nil || len(page.Rows) != len(follow) || len(follow) > 0 && page.Rows[0].Key != follow[0] {
			t.Errorf("Follow %+v: %+v, %v; want %v", agg, page.Rows, err, follow)
		}
	}
}

// TestFollowStretch reads an aggregate in pages, within bounds.
func TestFollowStretch(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	for range 5 {
		write(t, box, placed("1"))
		write(t, box, waybill.Event{Type: "Other", AggregateType: "order", AggregateID: "o-2", Payload: []byte("2")})
	}
	all := fetch(t, db.Driver().Relay)
	agg := driver.AggregateOf(&all[0].Event)
	page, err := db.Driver().Relay.FetchAggregate(t.Context(), agg, driver.Cursor{After: all[0].Seq, UpTo: all[6].Seq}, 2)
	if err != nil || len(page.Rows) != 2 || page.Rows[0].Key != all[2].Key || page.Rows[1].Key != all[4].Key || page.Now.IsZero() {
		t.Errorf("the first page: %+v, %v", page, err)
	}
	page, err = db.Driver().Relay.FetchAggregate(t.Context(), agg, driver.Cursor{After: all[4].Seq, UpTo: all[6].Seq}, 2)
	if err != nil || len(page.Rows) != 1 || page.Rows[0].Key != all[6].Key {
		t.Errorf("the second page: %+v, %v", page, err)
	}
	if page, err := db.Driver().Relay.FetchAggregate(t.Context(), agg, driver.Cursor{Lane: 1}, 2); err != nil || len(page.Rows) != 0 {
		t.Errorf("another lane: %+v, %v", page, err)
	}
}

// TestUrgentPlan: the second scan must not read events without a priority.
func TestUrgentPlan(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	for _, step := range plan(t, db, db.Statements()["urgent"], []any{0, 1, 1}) {
		if !strings.Contains(step, "waybill_outbox_priority_idx") {
			t.Errorf("the plan is %q", step)
		}
	}
}

// TestNextDue: the page reports the next due time, whether or not the page is
// full.
func TestNextDue(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	page, err := db.Driver().Relay.Due(t.Context(), []int{0}, 10)
	if err != nil || !page.Next.IsZero() {
		t.Errorf("without rows: %+v, %v", page, err)
	}
	soon := time.Now().Add(time.Hour).Truncate(time.Microsecond).UTC()
	for _, at := range []time.Time{soon.Add(time.Minute), soon} {
		ev := placed("1")
		ev.AvailableAt = at
		write(t, box, ev)
	}
	write(t, box, placed("1"))
	write(t, box, placed("1"))
	var past []driver.Result
	for _, row := range fetch(t, db.Driver().Relay) {
		past = append(past, driver.Result{ID: row.ID, Attempts: 1})
	}
	settle(t, db, driver.Settlement{Leases: owner(t, db), Retry: past, Durable: true})
	page, err = db.Driver().Relay.Due(t.Context(), []int{0}, 1)
	if err != nil || len(page.Rows) != 1 || !page.Next.Equal(soon) {
		t.Errorf("%d rows, next %v, %v; want 1 and %v", len(page.Rows), page.Next, err, soon)
	}
	if page, err := db.Driver().Relay.Due(t.Context(), []int{1}, 1); err != nil || !page.Next.IsZero() {
		t.Errorf("another lane: %+v, %v", page, err)
	}
}

// TestHolds reads holds of both tables in the order of seq.
func TestHolds(t *testing.T) {
	db := open(t, sqlitestore.Config{})
	box := newBox(t, db.Driver().Outbox)
	for range 4 {
		write(t, box, placed("1"))
	}
	rows := fetch(t, db.Driver().Relay)
	result := func(i int, holds bool) []driver.Result {
		return []driver.Result{{ID: rows[i].ID, Attempts: 1, Holds: holds}}
	}
	leases := owner(t, db)
	settle(t, db, driver.Settlement{Leases: leases, Dead: result(0, true), Retry: result(1, true)})
	settle(t, db, driver.Settlement{Leases: leases, Dead: result(2, false), Retry: result(3, false)})
	holds, err := db.Driver().Relay.Holds(t.Context(), []int{0})
	agg := driver.AggregateOf(&rows[0].Event)
	want := []driver.Hold{{Key: rows[0].Key, Aggregate: agg, Dead: true}, {Key: rows[1].Key, Aggregate: agg}}
	if err != nil || !slices.Equal(holds, want) {
		t.Errorf("Holds: %+v, %v; want %+v", holds, err, want)
	}
	if holds, err := db.Driver().Relay.Holds(t.Context(), []int{1}); err != nil || len(holds) != 0 {
		t.Errorf("of another lane: %+v, %v", holds, err)
	}
}
