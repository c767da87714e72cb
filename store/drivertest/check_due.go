package drivertest

import (
	"cmp"
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// dueChecks check deferred rows that are due.
func dueChecks[T any]() []check[T] {
	return []check[T]{
		{row: "due", name: "due in order", run: dueInOrder[T]},
		{row: "due", name: "due of these lanes only", run: dueLanes[T]},
	}
}

// dueInOrder defers events so that the first written one is due last.
func dueInOrder[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(6, "a")
	never := b.event("a")
	b.write(ctx, t, append(evs, never)...)
	rows := b.wantReady(ctx, t, append(evs, never)...)
	if len(rows) != 7 {
		return
	}
	var retry []driver.Result
	for i, row := range rows {
		r := result(row)
		r.Delay = time.Duration(60-10*i) * time.Millisecond
		if i == 6 {
			r.Delay = defaultLease
		}
		retry = append(retry, r)
	}
	leases := b.own(ctx, t)
	began := b.due(ctx, t).Now
	b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: retry})
	ended := b.due(ctx, t).Now
	b.wantReady(ctx, t)
	mine := func(rows []row) []waybill.ID {
		return rowIDs(slices.DeleteFunc(rows, func(r row) bool { return !slices.Contains(idsOf(evs), r.ID) }))
	}
	b.await(ctx, t, "six events become due", func() bool { return len(mine(b.due(ctx, t).Rows)) == 6 })
	page := b.due(ctx, t)
	for i, row := range page.Rows {
		if i > 0 {
			if before := page.Rows[i-1]; row.DueAt.Before(before.DueAt) || row.DueAt.Equal(before.DueAt) && row.Seq < before.Seq {
				t.Errorf("Due returned %v, seq %d behind %v, seq %d", row.DueAt, row.Seq, before.DueAt, before.Seq)
			}
		}
		if row.ID == never.ID {
			t.Errorf("Due returned an event that was deferred for a long time")
		}
		if i := slices.Index(idsOf(evs), row.ID); i >= 0 {
			lo, hi := began.Add(retry[i].Delay-time.Microsecond), ended.Add(retry[i].Delay+time.Microsecond)
			if row.DueAt.Before(lo) || row.DueAt.After(hi) {
				t.Errorf("event %d is due at %v, want %v to %v", i, row.DueAt, lo, hi)
			}
		}
	}
	// A busy server may take longer from one row of the settlement to the next
	// than their delays differ.
	ordered := slices.SortedFunc(slices.Values(page.Rows), func(x, y row) int {
		return cmp.Or(x.DueAt.Compare(y.DueAt), cmp.Compare(x.Seq, y.Seq))
	})
	want := mine(ordered)
	if got := mine(page.Rows); !slices.Equal(got, want) {
		t.Errorf("Due returned %v, want the longest due first: %v", got, want)
	}
	first, err := b.DB.Relay.Due(ctx, b.allLanes(), 2)
	if err != nil {
		t.Fatalf("Due: %v", err)
	}
	if got := rowIDs(first.Rows); !slices.Equal(got, want[:2]) {
		t.Errorf("Due of 2 returned %v, want %v", got, want[:2])
	}
	// Reading changes nothing; settling does.
	done := driver.Settlement{Leases: leases, History: true}
	for _, row := range rows {
		done.Done = append(done.Done, result(row))
	}
	wantMoved(t, b.settle(ctx, t, done), rowIDs(rows)...)
	if left := mine(b.due(ctx, t).Rows); len(left) > 0 {
		t.Errorf("settled events are still due: %v", left)
	}
}

func dueLanes[T any](ctx context.Context, t tb, b *env[T]) {
	var evs []waybill.Event
	for _, name := range b.aggregates(3) {
		ev := b.event(name)
		ev.Delay = time.Millisecond
		evs = append(evs, ev)
	}
	b.write(ctx, t, evs...)
	for _, ev := range evs {
		b.awaitDue(ctx, t, ev.ID)
	}
	for _, ev := range evs {
		page, err := b.DB.Relay.Due(ctx, []int{b.laneOf(ev)}, 100)
		if err != nil {
			t.Fatalf("Due: %v", err)
		}
		for _, row := range page.Rows {
			if row.Lane != b.laneOf(ev) {
				t.Errorf("Due of lane %d returned a row of lane %d", b.laneOf(ev), row.Lane)
			}
		}
		if _, ok := find(page.Rows, ev.ID); !ok {
			t.Errorf("Due of lane %d does not return its event", b.laneOf(ev))
		}
	}
	// Rows that are due stay where they are until they are settled.
	leases := b.own(ctx, t)
	var done []driver.Result
	for _, ev := range evs {
		done = append(done, driver.Result{Lane: b.laneOf(ev), ID: ev.ID})
	}
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Done: done, History: true}), idsOf(evs)...)
	for _, row := range b.due(ctx, t).Rows {
		if slices.Contains(idsOf(evs), row.ID) {
			t.Errorf("a settled event is still due")
		}
	}
}
