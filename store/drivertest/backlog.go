package drivertest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// ownDestinations removes all destinations after each check: checks that share
// tables begin with an empty registry.
func ownDestinations[T any](all []check[T]) []check[T] {
	for i := range all {
		run := all[i].run
		all[i].run = func(ctx context.Context, t tb, b *env[T]) {
			defer b.removeDestinations(ctx, t)
			run(ctx, t, b)
		}
	}
	return all
}

func (b *env[T]) removeDestinations(ctx context.Context, t tb) {
	t.Helper()
	b.end() // nodes leave: no destination is removed while a relay is live
	for _, d := range b.registered(ctx, t) {
		if _, err := b.DB.Backlogs.RemoveDestination(ctx, d.Name); err != nil {
			t.Errorf("RemoveDestination: %v", err)
		}
	}
}

// registered returns all destinations.
func (b *env[T]) registered(ctx context.Context, t tb) []store.Destination {
	t.Helper()
	all, err := b.DB.Backlogs.AddDestinations(ctx)
	if err != nil {
		t.Errorf("AddDestinations without names: %v", err)
	}
	return all
}

// register registers destinations and returns their numbers.
func (b *env[T]) register(ctx context.Context, t tb, names ...string) []int {
	t.Helper()
	all, err := b.DB.Backlogs.AddDestinations(ctx, names...)
	if err != nil {
		t.Fatalf("AddDestinations(%q): %v", names, err)
	}
	numbers := make([]int, len(names))
	for i, name := range names {
		at := slices.IndexFunc(all, func(d store.Destination) bool { return d.Name == name })
		if at < 0 {
			t.Fatalf("AddDestinations(%q) returned %+v", names, all)
		}
		numbers[i] = all[at].Number
	}
	return numbers
}

func (b *env[T]) backlog(number int) driver.Backlog { return b.DB.Backlogs.Backlog(number) }

// backlogOf registers one destination and returns its number and its backlog.
func (b *env[T]) backlogOf(ctx context.Context, t tb, name string) (int, driver.Backlog) {
	t.Helper()
	number := b.register(ctx, t, name)[0]
	return number, b.backlog(number)
}

// spread returns a diversion of each row to each destination, without an
// attempt.
func spread(rows []row, numbers ...int) []driver.Diversion {
	var all []driver.Diversion
	for _, row := range rows {
		for _, number := range numbers {
			all = append(all, driver.Diversion{Destination: number, ID: row.ID})
		}
	}
	return all
}

// divert settles rows as done, with history, and copies them to the backlogs.
func (b *env[T]) divert(ctx context.Context, t tb, leases []driver.Lease, rows []row, diversions ...driver.Diversion) {
	t.Helper()
	s := driver.Settlement{Leases: leases, Done: results(rows), History: true, Divert: diversions}
	wantMoved(t, b.settle(ctx, t, s), rowIDs(rows)...)
}

// fill writes events, and diverts them to destinations. It returns their rows
// in the backlog of the first one.
func (b *env[T]) fill(ctx context.Context, t tb, leases []driver.Lease, numbers []int, evs ...waybill.Event) []row {
	t.Helper()
	rows := b.writeRows(ctx, t, evs...)
	b.divert(ctx, t, leases, rows, spread(rows, numbers...)...)
	left := slices.DeleteFunc(b.readyIn(ctx, t, b.backlog(numbers[0])), func(r row) bool { return !slices.Contains(idsOf(evs), r.ID) })
	wantIDs(t, "Fetch from the backlog", left, evs)
	if len(left) != len(evs) {
		t.Fatalf("%d diverted events gave %d rows", len(evs), len(left))
	}
	return left
}

// wantBacklog asserts that exactly these rows are ready in a backlog, in the
// order of seq.
func (b *env[T]) wantBacklog(ctx context.Context, t tb, what string, number int, want ...row) {
	t.Helper()
	wantRows(t, what, b.readyIn(ctx, t, b.backlog(number)), want)
}

// wantEmpty asserts that backlogs have no row in any state.
func (b *env[T]) wantEmpty(ctx context.Context, t tb, what string, numbers ...int) {
	t.Helper()
	for _, number := range numbers {
		for _, state := range states {
			recs, err := b.backlog(number).List(ctx, state, store.Filter{}, 0, 10)
			if err != nil || len(recs) > 0 {
				t.Errorf("%s: in backlog %d there are rows %v that are %v, %v; want none", what, number, recordIDs(recs), state, err)
			}
		}
	}
}

// wantRows asserts that rows are equal in every field.
func wantRows(t tb, what string, got, want []row) {
	t.Helper()
	if !slices.Equal(rowIDs(got), rowIDs(want)) {
		t.Errorf("%s: there are the %d rows %v, want these %d: %v", what, len(got), few(rowIDs(got)), len(want), few(rowIDs(want)))
		return
	}
	for i := range got {
		wantRow(t, what, got[i], want[i])
	}
}

// wantRow asserts that two rows are equal in every field.
func wantRow(t tb, what string, got, expected row) {
	t.Helper()
	for _, diff := range differences(got.Event, expected.Event) {
		t.Errorf("%s: event %s: %s", what, expected.ID, diff)
	}
	if !got.Event.AvailableAt.Equal(got.DueAt) {
		t.Errorf("%s: event %s is due at %v, but available at %v", what, expected.ID, got.DueAt, got.Event.AvailableAt)
	}
	got.Event, expected.Event = waybill.Event{}, waybill.Event{}
	want(t, what+": the row of event "+expected.ID.String(), got, expected)
}

// queued returns a row of the outbox as it is expected in a backlog.
func queued(r row, d driver.Diversion) row {
	r.Attempts, r.LastError, r.Final, r.Holds = d.Attempts, driver.CutError(d.Error), d.Final, false
	r.DueAt, r.Event.AvailableAt = time.Time{}, time.Time{}
	return r
}

// readyResult is the result of a row that is ready in a backlog, which can have
// a due time.
func readyResult(r row) driver.Result {
	res := result(r)
	res.Late = false
	return res
}

func readyResults(rows []row) []driver.Result {
	rs := make([]driver.Result, len(rows))
	for i, row := range rows {
		rs[i] = readyResult(row)
	}
	return rs
}

// settleIn settles in a backlog, and fails the test unless all lanes of the
// leases were held.
func settleIn(ctx context.Context, t tb, backlog driver.Backlog, s driver.Settlement) driver.Settled {
	t.Helper()
	settled, err := backlog.Settle(ctx, s)
	if err != nil {
		t.Fatalf("Settle: %v", err)
	}
	lanes := make([]int, len(s.Leases))
	for i, l := range s.Leases {
		lanes[i] = l.Lane
	}
	wantHeld(t, settled, lanes...)
	return settled
}

// recordIn returns the record of an event in a backlog, and whether there is
// one.
func recordIn(ctx context.Context, t tb, backlog driver.Backlog, id waybill.ID) (store.Record, bool) {
	t.Helper()
	found, err := backlog.Find(ctx, id)
	if err != nil {
		t.Fatalf("Find: %v", err)
	}
	if len(found) > 1 || len(found) == 1 && found[0].ID != id {
		t.Errorf("Find of event %s in a backlog returned %v", id, recordIDs(found))
	}
	if len(found) == 0 {
		return store.Record{}, false
	}
	return found[0], true
}

// wantIn asserts the state of an event in a backlog, and returns its record.
func wantIn(ctx context.Context, t tb, backlog driver.Backlog, id waybill.ID, want store.State) store.Record {
	t.Helper()
	rec, ok := recordIn(ctx, t, backlog, id)
	switch {
	case !ok:
		t.Errorf("event %s is missing in the backlog, want it %v", id, want)
	case rec.State != want:
		t.Errorf("event %s is %v in the backlog, want it %v", id, rec.State, want)
	}
	return rec
}

// wantNotIn asserts that there is no row of events in a backlog.
func wantNotIn(ctx context.Context, t tb, backlog driver.Backlog, ids ...waybill.ID) {
	t.Helper()
	for _, id := range ids {
		if rec, ok := recordIn(ctx, t, backlog, id); ok {
			t.Errorf("event %s is %v in the backlog, want no row", id, rec.State)
		}
	}
}

// byEnd is the order of refills.
func byEnd(x, y store.Record) int {
	return cmp.Or(x.EndedAt.Compare(y.EndedAt), slices.Compare(x.ID[:], y.ID[:]))
}
