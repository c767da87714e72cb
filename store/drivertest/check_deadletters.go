package drivertest

import (
	"context"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// deadLetterChecks check Discard and Unblock.
func deadLetterChecks[T any]() []check[T] {
	return []check[T]{
		{row: "discard", name: "discard dead letters", fresh: true, run: discards[T]},
		{row: "discard", name: "discard many", fresh: true, large: true, run: discardsMany[T]},
		{row: "unblock", name: "unblock", run: unblocks[T]},
	}
}

func discards[T any](ctx context.Context, t tb, b *env[T]) {
	dead := append(b.events(3, "a"), b.keyed("a", "k"))
	b.bury(ctx, t, func(_ int, r *driver.Result) { r.Holds = true }, dead...)
	alive := b.events(2, "a")
	alive[1].Delay = defaultLease
	b.write(ctx, t, alive...)
	never := b.event("a")
	gone, left := dead[1:], dead[:1]
	list := append(append([]waybill.Event{never, gone[0]}, gone...), alive...)
	wantSame(t, "Discard", b.discard(ctx, t, list...), gone...)
	b.wantNowhere(ctx, t, gone...)
	b.wantState(ctx, t, left[0], store.Dead)
	b.wantReady(ctx, t, alive[0])
	b.wantState(ctx, t, alive[1], store.Delayed)
	wantSame(t, "Discard of discarded events", b.discard(ctx, t, list...))
	wantSame(t, "Discard of nothing", b.discard(ctx, t))
	if held := b.heldBy(ctx, t, b.allLanes(), dead...); len(held) != 1 || held[0].ID != left[0].ID {
		t.Errorf("after Discard Holds returned %v, want that of event %s only", held, left[0].ID)
	}
	if got := b.replay(ctx, t, gone...); len(got.IDs)+len(got.Refused) > 0 {
		t.Errorf("Replay restored discarded events: %+v", got)
	}
	// The events were committed, and the outcome can no longer be known.
	b.wantUncertain(ctx, t, gone...)
	b.wantCommitted(ctx, t, true, append(left, alive...)...)
	next := b.keyed("a", "k")
	wantReceipts(t, receipts(ctx, t, b.box(t), next), written(next))
}

func discardsMany[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(1200, "a")
	b.bury(ctx, t, nil, evs...)
	wantSame(t, "Discard", b.discard(ctx, t, evs[:1100]...), evs[:1100]...)
	if n, err := b.DB.OutboxAdmin.Count(ctx, store.Dead, store.Filter{}); err != nil || n != 100 {
		t.Errorf("after Discard %d are dead, %v, want 100", n, err)
	}
}

// unblocks ends the hold of a dead letter, of a deferred event, and of a
// replayed one.
func unblocks[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(5, "a")
	rows := b.writeRows(ctx, t, evs...)
	s := driver.Settlement{Leases: b.own(ctx, t)}
	for i, row := range rows[:4] {
		// 0 dead, 1 deferred, 2 dead and replayed, 3 dead and holding
		r := result(row)
		r.Attempts, r.Error, r.Delay, r.Holds = 2, "boom", defaultLease, true
		if i == 1 {
			s.Retry = append(s.Retry, r)
		} else {
			s.Dead = append(s.Dead, r)
		}
	}
	b.settle(ctx, t, s)
	b.replay(ctx, t, evs[2])
	b.wantHolds(ctx, t, "before", evs, hold(rows[0], true), hold(rows[1], false), hold(rows[2], false), hold(rows[3], true))
	due := b.wantState(ctx, t, evs[1], store.Delayed).DueAt
	never := b.event("a")
	list := []waybill.Event{evs[0], evs[1], evs[2], evs[0], evs[4], never}
	wantSame(t, "Unblock", b.unblock(ctx, t, list...), evs[:3]...)
	b.wantHolds(ctx, t, "unblocked", evs, hold(rows[3], true))
	wantSame(t, "Unblock of unblocked events", b.unblock(ctx, t, list...))
	wantSame(t, "Unblock of nothing", b.unblock(ctx, t))
	// The events stay in their tables, unchanged.
	if rec := b.wantState(ctx, t, evs[0], store.Dead); rec.Holds || rec.Attempts != 2 || rec.LastError != "boom" || rec.Key != rows[0].Key {
		t.Errorf("unblocked, the dead letter is %+v", rec.Row)
	}
	if rec := b.wantState(ctx, t, evs[1], store.Delayed); rec.Holds || rec.Attempts != 2 || !rec.DueAt.Equal(due) || rec.Key != rows[1].Key {
		t.Errorf("unblocked, the deferred event is %+v", rec.Row)
	}
	b.awaitDue(ctx, t, evs[2].ID)
	b.wantReady(ctx, t, evs[4])
}
