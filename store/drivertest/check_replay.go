package drivertest

import (
	"context"
	"slices"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// replayChecks check Replay without dedup keys.
func replayChecks[T any]() []check[T] {
	return []check[T]{
		{row: "replay", name: "dead letters are due again", run: replays[T]},
		{row: "replay", name: "repeatedly", run: replaysAgain[T]},
		{row: "replay", name: "the hold is carried over", run: replayHolds[T]},
		{row: "replay", name: "events that are not dead", run: replaysNothing[T]},
		{row: "replay", name: "many", large: true, run: replaysMany[T]},
		{row: "replay", name: "concurrent operators", fresh: true, run: replayRaces[T]},
	}
}

func replays[T any](ctx context.Context, t tb, b *env[T]) {
	evs := []waybill.Event{b.event("a"), full(t, waybill.NewID()), b.event(""), b.event("a")}
	rows := b.bury(ctx, t, nil, evs...)
	before := b.now(ctx, t)
	backwards := slices.Clone(evs)
	slices.Reverse(backwards)
	replayed := b.replay(ctx, t, backwards[1:]...) // all but the last
	wantSame(t, "Replay", replayed.IDs, evs[:3]...)
	if len(replayed.Refused) > 0 {
		t.Errorf("Replay refused %v", replayed.Refused)
	}
	due := slices.DeleteFunc(b.due(ctx, t).Rows, func(r row) bool { return !slices.Contains(idsOf(evs), r.ID) })
	wantIDs(t, "Due after Replay", due, evs[:3]) // at once, in the order of seq
	for i, row := range due {
		wantEvent(t, row, evs[i])
		if row.Key != rows[i].Key || !row.CreatedAt.Equal(rows[i].CreatedAt) || row.DueAt.Before(before) || !row.DueAt.Equal(due[0].DueAt) {
			t.Errorf("replayed at %v, the row is %+v, created at %v, due at %v; it was %+v, created at %v",
				before, row.Key, row.CreatedAt, row.DueAt, rows[i].Key, rows[i].CreatedAt)
		}
		if row.Attempts != 0 || row.Replay != 1 || row.LastError != "boom" || row.Holds != evs[i].Ordered() {
			t.Errorf("replayed, the row has attempts %d, replay %d, error %q, holds %v", row.Attempts, row.Replay, row.LastError, row.Holds)
		}
	}
	for _, ev := range evs[:3] {
		if rec := b.wantState(ctx, t, ev, store.Delayed); !rec.EndedAt.IsZero() {
			t.Errorf("replayed, the event has ended at %v", rec.EndedAt)
		}
	}
	b.wantState(ctx, t, evs[3], store.Dead)
	b.wantReady(ctx, t)
	if again := b.replay(ctx, t, evs[:3]...); len(again.IDs)+len(again.Refused) > 0 {
		t.Errorf("replaying twice did something: %+v", again)
	}
	// After the delivery, the event keeps its replay number.
	leases := b.own(ctx, t)
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(due), History: true}), idsOf(evs[:3])...)
	if rec := b.wantState(ctx, t, evs[0], store.Delivered); rec.Replay != 1 {
		t.Errorf("delivered after a replay, its replay number is %d", rec.Replay)
	}
	b.wantCommitted(ctx, t, true, evs...)
}

func replaysAgain[T any](ctx context.Context, t tb, b *env[T]) {
	ev := b.event("a")
	rows := b.bury(ctx, t, nil, ev)
	leases := b.own(ctx, t)
	for i := 1; i <= 3; i++ {
		wantSame(t, "Replay", b.replay(ctx, t, ev, ev).IDs, ev)
		row := b.awaitDue(ctx, t, ev.ID)
		if row.Replay != i || row.Attempts != 0 || row.Key != rows[0].Key {
			t.Errorf("after %d replays the row is %+v", i, row)
		}
		r := result(row)
		r.Attempts, r.Error = i, "again"
		b.settle(ctx, t, driver.Settlement{Leases: leases, Dead: []driver.Result{r}})
		if rec := b.wantState(ctx, t, ev, store.Dead); rec.Replay != i || rec.Attempts != i || rec.LastError != "again" || rec.Holds {
			t.Errorf("dead after %d replays, the row is %+v", i, rec.Row)
		}
	}
}

// replayHolds replays dead letters that block their aggregate and ones that do
// not.
func replayHolds[T any](ctx context.Context, t tb, b *env[T]) {
	evs := append(b.events(2, "a"), b.event(""))
	rows := b.bury(ctx, t, func(i int, r *driver.Result) { r.Holds = i == 0 }, evs...)
	b.wantHolds(ctx, t, "dead", evs, hold(rows[0], true))
	b.replay(ctx, t, evs...)
	b.wantHolds(ctx, t, "replayed", evs, hold(rows[0], false), hold(rows[1], false))
}

// replaysNothing replays events that are ready, deferred, delivered, or never
// existed.
func replaysNothing[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(3, "a")
	rows := b.writeRows(ctx, t, evs...)
	r := result(rows[1])
	r.Delay, r.Attempts = defaultLease, 4
	b.settle(ctx, t, driver.Settlement{Leases: b.own(ctx, t), Retry: []driver.Result{r}, Done: results(rows[2:]), History: true})
	never := b.event("a")
	for _, list := range [][]waybill.Event{append(evs, never), nil} {
		if got := b.replay(ctx, t, list...); len(got.IDs)+len(got.Refused) > 0 {
			t.Errorf("Replay changed events that are not dead: %+v", got)
		}
	}
	b.wantReady(ctx, t, evs[0])
	if rec := b.wantState(ctx, t, evs[1], store.Delayed); rec.Attempts != 4 || rec.Replay != 0 {
		t.Errorf("Replay changed a deferred row: %+v", rec.Row)
	}
	b.wantState(ctx, t, evs[2], store.Delivered)
	b.wantNowhere(ctx, t, never)
}

func replaysMany[T any](ctx context.Context, t tb, b *env[T]) {
	var evs []waybill.Event
	for i, names := 0, b.aggregates(5); i < 1200; i++ {
		ev := b.event(names[i%len(names)])
		if i%2 == 0 {
			ev.DedupKey = b.unique(ev.ID.String())
		}
		evs = append(evs, ev)
	}
	b.bury(ctx, t, nil, evs...)
	wantSame(t, "Replay", b.replay(ctx, t, evs...).IDs, evs...)
	wantIDs(t, "Due after Replay", slices.DeleteFunc(b.due(ctx, t).Rows, func(r row) bool { return r.Replay == 0 }), evs)
}

// replayRaces replays and discards the same dead letters concurrently: one of
// the operators changes each.
func replayRaces[T any](ctx context.Context, t tb, b *env[T]) {
	for round := range 4 {
		var evs []waybill.Event
		for i := range 12 {
			ev := b.event("a")
			if i%2 == 0 {
				ev.DedupKey = b.unique(ev.ID.String())
			}
			evs = append(evs, ev)
		}
		b.bury(ctx, t, nil, evs...)
		got := make([][]waybill.ID, 4)
		var wg sync.WaitGroup
		for i := range got {
			db := []driver.Roles[T]{b.DB, b.second()}[i%2]
			ids := idsOf(evs)
			if i >= 2 {
				slices.Reverse(ids)
			}
			wg.Go(func() {
				if i == 3 && round%2 == 0 {
					var err error
					if got[i], err = db.OutboxAdmin.Discard(ctx, ids); err != nil {
						t.Errorf("Discard: %v", err)
					}
					return
				}
				replayed, err := db.OutboxAdmin.Replay(ctx, ids)
				if err != nil || len(replayed.Refused) > 0 {
					t.Errorf("Replay: %+v, %v", replayed, err)
				}
				got[i] = replayed.IDs
			})
		}
		wg.Wait()
		wantSame(t, "together, three replays and a discard", slices.Concat(got...), evs...)
		s := driver.Settlement{Leases: b.own(ctx, t), History: true}
		for _, ev := range evs {
			if rec, ok := b.where(ctx, t, ev.ID); ok {
				if rec.Replay != 1 || rec.State != store.Delayed {
					t.Errorf("replayed by one of three, event %s is %v, replay %d", ev.ID, rec.State, rec.Replay)
				}
				s.Done = append(s.Done, result(rec.Row))
			}
		}
		b.settle(ctx, t, s)
		b.end()
	}
}
