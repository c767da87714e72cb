package drivertest

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// where returns the record of an event in any state, and whether there is one.
func (b *env[T]) where(ctx context.Context, t tb, id waybill.ID) (store.Record, bool) {
	t.Helper()
	find := b.Find
	if b.DB.OutboxAdmin != nil {
		find = b.DB.OutboxAdmin.Find
	}
	found, err := find(ctx, id)
	if err != nil {
		t.Fatalf("Find: %v", err)
	}
	if len(found) > 1 {
		t.Errorf("event %s is in %d places: %v", id, len(found), found)
	}
	if len(found) == 0 {
		return store.Record{}, false
	}
	if found[0].ID != id {
		t.Errorf("Find(%s) returned event %s", id, found[0].ID)
	}
	return found[0], true
}

// wantState asserts the state of an event, and returns its record.
func (b *env[T]) wantState(ctx context.Context, t tb, ev waybill.Event, want store.State) store.Record {
	t.Helper()
	rec, ok := b.where(ctx, t, ev.ID)
	switch {
	case !ok:
		t.Errorf("event %s is missing, want it %v", ev.ID, want)
	case rec.State != want:
		t.Errorf("event %s is %v, want it %v", ev.ID, rec.State, want)
	}
	return rec
}

// wantNowhere asserts that there is no trace of events.
func (b *env[T]) wantNowhere(ctx context.Context, t tb, evs ...waybill.Event) {
	t.Helper()
	for _, ev := range evs {
		if rec, ok := b.where(ctx, t, ev.ID); ok {
			t.Errorf("event %s is still %v", ev.ID, rec.State)
		}
	}
}

// wantUncertain asserts that the store does not report the events as never
// committed.
func (b *env[T]) wantUncertain(ctx context.Context, t tb, evs ...waybill.Event) {
	t.Helper()
	for _, ev := range evs {
		if yes, err := b.DB.Outbox.Committed(ctx, ev.ID); !errors.Is(err, waybill.ErrUncertain) || yes {
			t.Errorf("Committed is %v, %v for event %s, whose trace is gone; want ErrUncertain", yes, err, ev.ID)
		}
	}
}

// bury writes events and dead-letters them; change modifies the result of each.
func (b *env[T]) bury(ctx context.Context, t tb, change func(i int, r *driver.Result), evs ...waybill.Event) []row {
	t.Helper()
	rows := b.writeRows(ctx, t, evs...)
	s := driver.Settlement{Leases: b.own(ctx, t)}
	for i, row := range rows {
		r := result(row)
		r.Attempts, r.Error = 3, "boom"
		if change != nil {
			change(i, &r)
		}
		s.Dead = append(s.Dead, r)
	}
	wantMoved(t, b.settle(ctx, t, s), idsOf(evs)...)
	b.end() // the node leaves
	return rows
}

// wantSame asserts that an operator's command changed these events, in any
// order.
func wantSame(t tb, what string, got []waybill.ID, want ...waybill.Event) {
	t.Helper()
	order := func(a, b waybill.ID) int { return slices.Compare(a[:], b[:]) }
	got, ids := slices.SortedFunc(slices.Values(got), order), slices.SortedFunc(slices.Values(idsOf(want)), order)
	if !slices.Equal(got, ids) {
		t.Errorf("%s changed %v, want %v", what, few(got), few(ids))
	}
}

func (b *env[T]) replay(ctx context.Context, t tb, evs ...waybill.Event) store.Replayed {
	t.Helper()
	replayed, err := b.DB.OutboxAdmin.Replay(ctx, idsOf(evs))
	if err != nil {
		t.Fatalf("Replay: %v", err)
	}
	return replayed
}

func (b *env[T]) discard(ctx context.Context, t tb, evs ...waybill.Event) []waybill.ID {
	t.Helper()
	ids, err := b.DB.OutboxAdmin.Discard(ctx, idsOf(evs))
	if err != nil {
		t.Fatalf("Discard: %v", err)
	}
	return ids
}

func (b *env[T]) unblock(ctx context.Context, t tb, evs ...waybill.Event) []waybill.ID {
	t.Helper()
	ids, err := b.DB.OutboxAdmin.Unblock(ctx, idsOf(evs))
	if err != nil {
		t.Fatalf("Unblock: %v", err)
	}
	return ids
}

func (b *env[T]) purge(ctx context.Context, t tb, state store.State, age time.Duration, limit int) int {
	t.Helper()
	n, err := b.DB.OutboxAdmin.Purge(ctx, state, age, limit)
	if err != nil {
		t.Fatalf("Purge of rows that are %v: %v", state, err)
	}
	return n
}

// tick returns when the database's clock has advanced.
func (b *env[T]) tick(ctx context.Context, t tb) {
	t.Helper()
	start := b.now(ctx, t)
	b.await(ctx, t, "the database's clock moves", func() bool { return b.now(ctx, t).After(start) })
}
