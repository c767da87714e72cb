package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// replayKeyChecks check Replay with dedup keys: a dead letter has released its
// key, and needs it again.
func replayKeyChecks[T any]() []check[T] {
	return []check[T]{
		{row: "replay", name: "the dedup key is taken again", run: replayTakesKey[T]},
		{row: "replay", name: "rejected while another event has the key", run: replayRefused[T]},
		{row: "replay", name: "two dead letters with one key", run: replaySameKey[T]},
		{row: "replay", name: "concurrent writers", run: replayBesideWriters[T]},
	}
}

func replayTakesKey[T any](ctx context.Context, t tb, b *env[T]) {
	ev := b.keyed("a", "k")
	b.bury(ctx, t, nil, ev)
	wantSame(t, "Replay", b.replay(ctx, t, ev).IDs, ev)
	box := b.box(t)
	wantReceipts(t, receipts(ctx, t, box, b.keyed("b", "k")), duplicateOf(ev))
	b.wantReady(ctx, t)
	row := b.awaitDue(ctx, t, ev.ID)
	b.settle(ctx, t, driver.Settlement{Leases: b.own(ctx, t), Done: []driver.Result{result(row)}, History: true})
	next := b.keyed("b", "k")
	wantReceipts(t, receipts(ctx, t, box, next), written(next))
}

func replayRefused[T any](ctx context.Context, t tb, b *env[T]) {
	ev, free, apart := b.keyed("a", "k"), b.keyed("a", "free"), b.keyed("a", "k")
	apart.TenantID = "other"
	dead := b.bury(ctx, t, func(_ int, r *driver.Result) { r.Holds = true }, ev, free, apart)
	holder := b.keyed("b", "k")
	b.write(ctx, t, holder)
	refused := []store.Refusal{{ID: ev.ID, Holder: holder.ID}}
	replayed := b.replay(ctx, t, ev, free, apart)
	wantSame(t, "Replay", replayed.IDs, free, apart)
	if !slices.Equal(replayed.Refused, refused) {
		t.Errorf("Replay refused %v, want %v", replayed.Refused, refused)
	}
	if rec := b.wantState(ctx, t, ev, store.Dead); rec.Attempts != 3 || rec.Replay != 0 || !rec.Holds || rec.Key != dead[0].Key {
		t.Errorf("refused, the dead letter has changed: %+v", rec.Row)
	}
	// Also while the holder is deferred, and no longer after it is done.
	leases := b.own(ctx, t)
	row := b.row(ctx, t, holder.ID)
	r := result(row)
	r.Delay = defaultLease
	b.settle(ctx, t, driver.Settlement{Leases: leases, Retry: []driver.Result{r}})
	if got := b.replay(ctx, t, ev); len(got.IDs) > 0 || !slices.Equal(got.Refused, refused) {
		t.Errorf("Replay while the holder is deferred: %+v", got)
	}
	b.settle(ctx, t, driver.Settlement{Leases: leases, Done: []driver.Result{r}, History: true})
	if got := b.replay(ctx, t, ev); !slices.Equal(got.IDs, []waybill.ID{ev.ID}) || len(got.Refused) > 0 {
		t.Errorf("Replay when the holder is done: %+v", got)
	}
}

func replaySameKey[T any](ctx context.Context, t tb, b *env[T]) {
	first, second := b.keyed("a", "k"), b.keyed("a", "k")
	b.bury(ctx, t, nil, first)
	b.bury(ctx, t, nil, second)
	replayed := b.replay(ctx, t, second, first)
	wantSame(t, "Replay", replayed.IDs, first)
	if want := []store.Refusal{{ID: second.ID, Holder: first.ID}}; !slices.Equal(replayed.Refused, want) {
		t.Errorf("Replay refused %v, want %v", replayed.Refused, want)
	}
	b.wantState(ctx, t, first, store.Delayed)
	b.wantState(ctx, t, second, store.Dead)
	row := b.awaitDue(ctx, t, first.ID)
	b.settle(ctx, t, driver.Settlement{Leases: b.own(ctx, t), Done: []driver.Result{result(row)}, History: true})
	wantSame(t, "Replay of the other", b.replay(ctx, t, second).IDs, second)
}

// replayBesideWriters lets writers and an operator take the same keys
// concurrently, in any order: one of them gets each key, and none waits
// forever.
func replayBesideWriters[T any](ctx context.Context, t tb, b *env[T]) {
	const keys = 8
	for round := range 5 {
		var dead []waybill.Event
		for i := range keys {
			dead = append(dead, b.keyed("a", fmt.Sprintf("%d.%d", round, i)))
		}
		b.bury(ctx, t, nil, dead...)
		var written [2][]waybill.Event
		for w := range written {
			for _, ev := range dead {
				next := b.event("b")
				next.DedupKey = ev.DedupKey
				written[w] = append(written[w], next)
			}
		}
		slices.Reverse(written[1])
		var replayed store.Replayed
		var failed [3]error
		var wg sync.WaitGroup
		box := b.box(t)
		for w, evs := range written {
			wg.Go(func() {
				failed[w] = box.InTx(ctx, func(ctx context.Context, tx T) error { return box.Write(ctx, tx, evs...) })
			})
		}
		wg.Go(func() { replayed, failed[2] = b.DB.OutboxAdmin.Replay(ctx, idsOf(dead)) })
		wg.Wait()
		if err := errors.Join(failed[:]...); err != nil {
			t.Fatalf("round %d: writers and Replay: %v", round, err)
		}
		holder := map[string]waybill.ID{}
		rows := append(b.ready(ctx, t), b.due(ctx, t).Rows...)
		for _, row := range rows {
			if row.Event.DedupKey == "" || !slices.ContainsFunc(dead, func(ev waybill.Event) bool { return ev.DedupKey == row.Event.DedupKey }) {
				continue
			}
			if other, twice := holder[row.Event.DedupKey]; twice {
				t.Errorf("round %d: both %s and %s are pending with one key", round, other, row.ID)
			}
			holder[row.Event.DedupKey] = row.ID
		}
		for _, ev := range dead {
			id, ok := holder[ev.DedupKey]
			if !ok {
				t.Errorf("round %d: no pending event has the key %s", round, ev.DedupKey)
			}
			if slices.Contains(replayed.IDs, ev.ID) != (id == ev.ID) {
				t.Errorf("round %d: %s has the key of %s; Replay moved %v", round, id, ev.ID, replayed.IDs)
			}
			if refused := slices.Contains(replayed.Refused, store.Refusal{ID: ev.ID, Holder: id}); refused == (id == ev.ID) {
				t.Errorf("round %d: %s has the key of %s; Replay refused %v", round, id, ev.ID, replayed.Refused)
			}
		}
		b.settle(ctx, t, driver.Settlement{Leases: b.own(ctx, t), Done: results(rows), History: true})
		b.end()
	}
}
