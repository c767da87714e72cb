package drivertest

import (
	"context"
	"errors"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
)

// committedChecks check the outcome of writes.
func committedChecks[T any]() []check[T] {
	return []check[T]{
		{row: "committed_resolves", name: "pending", run: committedPending[T]},
		{row: "committed_resolves", name: "in every state", suite: relaySuite, run: committedAnywhere[T]},
		{row: "committed_resolves", name: "no trace without history", suite: relaySuite, fresh: true, run: committedNoTrace[T]},
	}
}

// askCommitted asserts that another process knows five events that were written
// and not others, whenever the returned function is called.
func (b *env[T]) askCommitted(ctx context.Context, t tb) (ask func(when string)) {
	t.Helper()
	box := boxOver[T](t, b.second().Outbox, outbox.Config{})
	evs := b.events(5, "a")
	evs[4].Delay = defaultLease
	b.write(ctx, t, evs...)
	unknown := []waybill.Event{b.event("a"), {ID: waybill.ID{0: 1}}}
	return func(when string) {
		t.Helper()
		for _, ev := range evs {
			if yes, err := box.Committed(ctx, ev.ID); err != nil || !yes {
				t.Errorf("%s: Committed is %v, %v for a committed event", when, yes, err)
			}
		}
		b.wantCommitted(ctx, t, false, unknown...)
	}
}

func committedPending[T any](ctx context.Context, t tb, b *env[T]) {
	b.askCommitted(ctx, t)("pending")
}

func committedAnywhere[T any](ctx context.Context, t tb, b *env[T]) {
	ask := b.askCommitted(ctx, t)
	rows := b.ready(ctx, t)
	if len(rows) != 4 {
		t.Fatalf("%d rows are ready, want 4", len(rows))
	}
	retry := result(rows[1])
	retry.Delay = defaultLease
	b.settle(ctx, t, driver.Settlement{
		Leases: b.own(ctx, t), History: true,
		Done: results(rows[:1]), Retry: []driver.Result{retry}, Dead: results(rows[2:3]),
	})
	ask("done, deferred, dead and pending")
}

// committedNoTrace delivers an event without a trace: afterwards a missing
// event proves nothing.
func committedNoTrace[T any](ctx context.Context, t tb, b *env[T]) {
	kept, gone := b.event("a"), b.event("a")
	unknown := b.event("a")
	b.write(ctx, t, kept, gone)
	b.wantCommitted(ctx, t, false, unknown)
	row := b.row(ctx, t, gone.ID)
	b.settle(ctx, t, driver.Settlement{Leases: b.own(ctx, t), Done: []driver.Result{result(row)}})
	for name, db := range map[string]driver.Resolver{"the store": b.DB.Outbox, "another process": b.second().Outbox} {
		for _, ev := range []waybill.Event{gone, unknown, b.event("a")} {
			if yes, err := db.Committed(ctx, ev.ID); !errors.Is(err, waybill.ErrUncertain) || yes {
				t.Errorf("%s: Committed is %v, %v for an event whose trace may be gone, want ErrUncertain", name, yes, err)
			}
		}
		if yes, err := db.Committed(ctx, kept.ID); err != nil || !yes {
			t.Errorf("%s: Committed is %v, %v for a pending event", name, yes, err)
		}
	}
}
