package drivertest

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/store/driver"
)

// delayChecks check that no event is delivered before its time, by the
// database's clock.
func delayChecks[T any]() []check[T] {
	return []check[T]{
		{row: "delays", name: "delay", run: delay[T]},
		{row: "delays", name: "available at", run: availableAt[T]},
		{row: "delays", name: "available in the past", run: availableInThePast[T]},
		{row: "delays", name: "far away", run: farAway[T]},
		{row: "delays", name: "far away and settled", suite: relaySuite, run: farAwaySettled[T]},
	}
}

func delay[T any](ctx context.Context, t tb, b *env[T]) {
	ready, soon := b.event("a"), b.event("a")
	soon.Delay = 100 * time.Millisecond
	b.write(ctx, t, soon, ready)
	b.wantReady(ctx, t, ready) // never through Fetch, even if due
	b.wantCommitted(ctx, t, true, soon)
	row := b.awaitDue(ctx, t, soon.ID)
	wantEvent(t, row, soon)
	// The bound is loose, because a statement may read the clock more than
	// once.
	if got := row.DueAt.Sub(row.CreatedAt); got < soon.Delay/2 {
		t.Errorf("an event with a delay of %v, written at %v, was due at %v", soon.Delay, row.CreatedAt, row.DueAt)
	}
	if !row.Event.AvailableAt.Equal(row.DueAt) || !inMicrosUTC(row.DueAt) {
		t.Errorf("DueAt is %v and AvailableAt %v, want the same time in UTC without nanoseconds", row.DueAt, row.Event.AvailableAt)
	}
	if row.Attempts != 0 || row.Holds || row.LastError != "" || row.Replay != 0 {
		t.Errorf("an event that was never tried has attempts %d, holds %v, error %q", row.Attempts, row.Holds, row.LastError)
	}
	rows := b.wantReady(ctx, t, ready)
	if len(rows) == 1 && rows[0].Seq <= row.Seq {
		t.Errorf("the delayed event was written first and has seq %d, the ready one %d", row.Seq, rows[0].Seq)
	}
}

func availableAt[T any](ctx context.Context, t tb, b *env[T]) {
	ev := b.event("a")
	ev.AvailableAt = b.now(ctx, t).Add(150*time.Millisecond + 789*time.Nanosecond).In(time.FixedZone("", -3600))
	b.write(ctx, t, ev)
	row := b.awaitDue(ctx, t, ev.ID) // asserts that the row is not early
	wantEvent(t, row, ev)
	if want := eventfill.Defaults(ev).AvailableAt; !row.DueAt.Equal(want) || !row.Event.AvailableAt.Equal(want) {
		t.Errorf("DueAt is %v and AvailableAt %v, want %v", row.DueAt, row.Event.AvailableAt, want)
	}
	if !inMicrosUTC(row.DueAt) || !inMicrosUTC(row.Event.AvailableAt) {
		t.Errorf("DueAt is %v and AvailableAt %v, want UTC", row.DueAt, row.Event.AvailableAt)
	}
	b.wantReady(ctx, t)
}

func availableInThePast[T any](ctx context.Context, t tb, b *env[T]) {
	now := b.now(ctx, t)
	var evs []waybill.Event
	for _, at := range []time.Time{now.Add(-time.Hour), now, time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC)} {
		ev := b.event("a")
		ev.AvailableAt = at
		evs = append(evs, ev)
	}
	b.write(ctx, t, evs...)
	for _, row := range b.wantReady(ctx, t, evs...) {
		if !row.DueAt.IsZero() || !row.Event.AvailableAt.IsZero() {
			t.Errorf("a ready row has DueAt %v and AvailableAt %v, want none", row.DueAt, row.Event.AvailableAt)
		}
	}
}

// writeFarAway writes events that are not due for a long time.
func (b *env[T]) writeFarAway(ctx context.Context, t tb) (evs []waybill.Event) {
	t.Helper()
	for _, d := range []time.Duration{time.Hour, 24 * time.Hour, 100 * 365 * 24 * time.Hour} {
		ev := b.event("a")
		ev.Delay = d
		evs = append(evs, ev)
	}
	last := b.event("a")
	last.AvailableAt = time.Date(9999, 12, 31, 23, 59, 59, 0, time.UTC)
	evs = append(evs, last)
	b.write(ctx, t, evs...)
	return evs
}

// farAway checks that the rows exist, and that no read returns them.
func farAway[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.writeFarAway(ctx, t)
	b.wantReady(ctx, t)
	due := b.due(ctx, t)
	for _, ev := range evs {
		if _, early := find(due.Rows, ev.ID); early {
			t.Errorf("an event with the delay %v is due at once", ev.Delay)
		}
	}
	b.wantCommitted(ctx, t, true, evs...)
}

// farAwaySettled settles the events by id, in whatever table they are.
func farAwaySettled[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.writeFarAway(ctx, t)
	leases := b.own(ctx, t)
	var done []driver.Result
	for _, ev := range evs {
		done = append(done, driver.Result{Lane: b.laneOf(ev), ID: ev.ID})
	}
	settled := b.settle(ctx, t, driver.Settlement{Leases: leases, Done: done, History: true})
	wantMoved(t, settled, idsOf(evs)...)
	b.wantCommitted(ctx, t, true, evs...)
}
