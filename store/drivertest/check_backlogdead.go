package drivertest

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// backlogDeadChecks check the dead letters of a backlog.
func backlogDeadChecks[T any]() []check[T] {
	return slices.Concat(
		inBacklog("backlog_dead_letters", slices.Concat(replayChecks[T](), deadLetterChecks[T]()),
			"repeatedly", "the hold is carried over", "many", "concurrent operators", "discard many", "unblock"),
		[]check[T]{
			{row: "backlog_dead_letters", name: "replay", run: backlogReplays[T]},
			{row: "backlog_dead_letters", name: "discard", fresh: true, run: backlogDiscards[T]},
			{row: "backlog_dead_letters", name: "dead letters of the outbox", run: backlogOfOutbox[T]},
			{row: "backlog_dead_letters", name: "purge, the oldest first", fresh: true, run: backlogPurges[T]},
		},
	)
}

// bothWays diverts events to three destinations, and makes them dead letters in
// all three. It returns their rows.
func (b *env[T]) bothWays(ctx context.Context, t tb, numbers []int, evs ...waybill.Event) []row {
	t.Helper()
	leases := b.own(ctx, t)
	rows := b.fill(ctx, t, leases, numbers, evs...)
	s := driver.Settlement{Leases: leases, Dead: readyResults(rows)}
	for i := range s.Dead {
		s.Dead[i].Attempts, s.Dead[i].Error, s.Dead[i].Holds = 3, "boom", true
	}
	for _, number := range numbers {
		wantMoved(t, settleIn(ctx, t, b.backlog(number), s), idsOf(evs)...)
	}
	b.end()
	return rows
}

// wantDead asserts which of the events are dead letters of backlogs, that they
// hold their aggregate, and that there are no others.
func (b *env[T]) wantDead(ctx context.Context, t tb, what string, evs []waybill.Event, numbers ...int) {
	t.Helper()
	for _, number := range numbers {
		recs, err := b.backlog(number).List(ctx, store.Dead, store.Filter{Holding: true}, 0, 100)
		if err != nil || !slices.Equal(recordIDs(recs), idsOf(evs)) {
			t.Errorf("%s: the dead letters of backlog %d are %v, %v, want %v", what, number, recordIDs(recs), err, idsOf(evs))
		}
	}
}

func backlogReplays[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b", "c")
	evs := []waybill.Event{b.event("a"), full(t, waybill.NewID()), b.event(""), b.event("a")}
	rows := b.bothWays(ctx, t, numbers, evs...)
	backlog := b.backlog(numbers[1])
	before := b.now(ctx, t)
	replayed, err := backlog.Replay(ctx, []waybill.ID{evs[2].ID, evs[0].ID, evs[1].ID, evs[0].ID, waybill.NewID()})
	if err != nil || len(replayed.Refused) > 0 {
		t.Errorf("Replay returned %+v, %v", replayed, err)
	}
	wantSame(t, "Replay", replayed.IDs, evs[:3]...)
	page, err := backlog.Due(ctx, b.allLanes(), 100)
	if err != nil {
		t.Fatalf("Due: %v", err)
	}
	wantIDs(t, "Due after Replay", page.Rows, evs[:3])
	for i, r := range page.Rows {
		expected := queued(rows[i], driver.Diversion{Error: "boom"})
		expected.DueAt, expected.Replay, expected.Holds = r.DueAt, 1, evs[i].Ordered()
		wantRow(t, "replayed", r, expected)
		if r.DueAt.Before(before) || r.DueAt.After(page.Now) {
			t.Errorf("replayed between %v and %v, the row is due at %v", before, page.Now, r.DueAt)
		}
	}
	b.wantDead(ctx, t, "replayed in another backlog", evs, numbers[0], numbers[2])
	b.wantDead(ctx, t, "replayed", evs[3:], numbers[1])
	if again, err := backlog.Replay(ctx, idsOf(evs[:3])); err != nil || len(again.IDs)+len(again.Refused) > 0 {
		t.Errorf("replaying twice did something: %+v, %v", again, err)
	}
	leases := b.own(ctx, t)
	wantMoved(t, settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Done: results(page.Rows), History: true}), idsOf(evs[:3])...)
	wantNotIn(ctx, t, backlog, idsOf(evs[:3])...)
	b.wantReady(ctx, t)
	for _, ev := range evs {
		b.wantState(ctx, t, ev, store.Delivered)
	}
	// A replay of what is not dead changes nothing.
	if got, err := backlog.Replay(ctx, append(idsOf(evs[:3]), waybill.NewID())); err != nil || len(got.IDs)+len(got.Refused) > 0 {
		t.Errorf("Replay of delivered events: %+v, %v", got, err)
	}
	if got, err := backlog.Replay(ctx, nil); err != nil || len(got.IDs)+len(got.Refused) > 0 {
		t.Errorf("Replay of nothing: %+v, %v", got, err)
	}
}

// backlogDiscards discards dead letters of one destination: the outbox has
// recorded their events.
func backlogDiscards[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b", "c")
	dead := append(b.events(3, "a"), b.keyed("a", "k"))
	b.bothWays(ctx, t, numbers, dead...)
	leases := b.own(ctx, t)
	alive := b.events(2, "a")
	rows := b.fill(ctx, t, leases, numbers, alive...)
	backlog := b.backlog(numbers[1])
	retry := readyResult(rows[1])
	retry.Delay = defaultLease
	settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Retry: []driver.Result{retry}})
	list := append(idsOf(append(dead[1:], alive...)), dead[1].ID, waybill.NewID())
	for i, want := range [][]waybill.Event{dead[1:], nil} {
		got, err := backlog.Discard(ctx, list)
		if err != nil {
			t.Fatalf("Discard %d: %v", i, err)
		}
		wantSame(t, "Discard", got, want...)
	}
	wantNotIn(ctx, t, backlog, idsOf(dead[1:])...)
	b.wantDead(ctx, t, "discarded", dead[:1], numbers[1])
	b.wantDead(ctx, t, "discarded in another backlog", dead, numbers[0], numbers[2])
	wantIn(ctx, t, backlog, alive[0].ID, store.Ready)
	wantIn(ctx, t, backlog, alive[1].ID, store.Delayed)
	if got, err := backlog.Discard(ctx, nil); err != nil || len(got) > 0 {
		t.Errorf("Discard of nothing: %v, %v", got, err)
	}
	// The history covers what it covered before.
	b.wantCommitted(ctx, t, true, append(dead, alive...)...)
	b.wantCommitted(ctx, t, false, b.event("a"))
}

// backlogOfOutbox gives a backlog the ids of events that are dead, or deferred,
// in the outbox only.
func backlogOfOutbox[T any](ctx context.Context, t tb, b *env[T]) {
	_, backlog := b.backlogOf(ctx, t, "a")
	evs := b.events(2, "a")
	b.bury(ctx, t, func(_ int, r *driver.Result) { r.Holds = true }, evs...)
	if got, err := backlog.Replay(ctx, idsOf(evs)); err != nil || len(got.IDs)+len(got.Refused) > 0 {
		t.Errorf("Replay in a backlog replayed %+v, %v, which are dead letters of the outbox", got, err)
	}
	for what, do := range map[string]func(context.Context, []waybill.ID) ([]waybill.ID, error){"Discard": backlog.Discard, "Unblock": backlog.Unblock} {
		if got, err := do(ctx, idsOf(evs)); err != nil || len(got) > 0 {
			t.Errorf("%s in a backlog changed %v, %v, which are dead letters of the outbox", what, got, err)
		}
	}
	b.tick(ctx, t)
	if n, err := backlog.PurgeDead(ctx, 0, 100); err != nil || n > 0 {
		t.Errorf("PurgeDead of a backlog deleted %d, %v; it has no dead letters", n, err)
	}
	for _, ev := range evs {
		if rec := b.wantState(ctx, t, ev, store.Dead); !rec.Holds {
			t.Errorf("commands of a backlog changed a dead letter of the outbox: %+v", rec.Row)
		}
	}
	b.discard(ctx, t, evs...)
}

// backlogPurges kills events one after another, in an order other than that of
// seq.
func backlogPurges[T any](ctx context.Context, t tb, b *env[T]) {
	numbers := b.register(ctx, t, "a", "b", "c")
	evs := b.events(7, "a")
	leases := b.own(ctx, t)
	rows := b.fill(ctx, t, leases, numbers, evs...)
	order := []int{3, 0, 4, 1, 2}
	for _, number := range []int{numbers[0], numbers[2], numbers[1]} {
		for _, i := range order {
			s := driver.Settlement{Leases: leases, Dead: readyResults(rows[i : i+1])}
			s.Dead[0].Holds = i%2 == 0
			wantMoved(t, settleIn(ctx, t, b.backlog(number), s), rows[i].ID)
			b.tick(ctx, t)
		}
	}
	backlog := b.backlog(numbers[1])
	retry := readyResult(rows[5])
	settleIn(ctx, t, backlog, driver.Settlement{Leases: leases, Retry: []driver.Result{retry}})
	if n, err := backlog.PurgeDead(ctx, time.Hour, 100); err != nil || n > 0 {
		t.Errorf("PurgeDead of what was dead an hour ago deleted %d, %v", n, err)
	}
	for len(order) > 0 {
		part := order[:min(2, len(order))]
		order = order[len(part):]
		if n, err := backlog.PurgeDead(ctx, 0, 2); err != nil || n != len(part) {
			t.Errorf("PurgeDead of 2 deleted %d, %v, want %d", n, err, len(part))
		}
		for _, i := range part {
			wantNotIn(ctx, t, backlog, evs[i].ID)
		}
		for _, i := range order {
			wantIn(ctx, t, backlog, evs[i].ID, store.Dead)
		}
	}
	if n, err := backlog.PurgeDead(ctx, 0, 2); err != nil || n > 0 {
		t.Errorf("PurgeDead of nothing deleted %d, %v", n, err)
	}
	wantIn(ctx, t, backlog, evs[5].ID, store.Delayed)
	wantIn(ctx, t, backlog, evs[6].ID, store.Ready)
	for _, number := range []int{numbers[0], numbers[2]} {
		if n, err := b.backlog(number).Count(ctx, store.Dead, store.Filter{}); err != nil || n != 5 {
			t.Errorf("dead letters of another backlog were purged, and %d are left, %v, want 5", n, err)
		}
	}
	b.wantCommitted(ctx, t, true, evs...)
	b.wantCommitted(ctx, t, false, b.event("a")) // the history covers what it covered before
}
