package drivertest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
)

// dedupRaceChecks check concurrent writers of one key: the second waits for the
// outcome of the first.
func dedupRaceChecks[T any]() []check[T] {
	return []check[T]{
		{row: "dedup_key_absorbs_repeats", name: "second writer, first commits", run: secondWriter[T](nil)},
		{row: "dedup_key_absorbs_repeats", name: "second writer, first rolls back", run: secondWriter[T](errBoom)},
		{row: "dedup_key_absorbs_repeats", name: "many writers, one winner", run: manyWriters[T]},
		{row: "dedup_key_absorbs_repeats", name: "keys in any order do not deadlock", run: keysInAnyOrder[T]},
	}
}

// secondWriter writes the same key in two transactions. If the database allows
// both to be open, the second must wait; if it has one writer, the second
// cannot even begin. In both cases the second must not get its answer before
// the first has ended.
func secondWriter[T any](end error) func(context.Context, tb, *env[T]) {
	return func(ctx context.Context, t tb, b *env[T]) {
		box, other := b.box(t), boxOver[T](t, b.second().Outbox, outbox.Config{})
		first, second := b.keyed("a", "k"), b.keyed("a", "k")
		type answer struct {
			receipts []outbox.Receipt
			err      error
		}
		knows := make(chan answer, 1) // the second writer's result
		done := make(chan error, 1)
		outer := ctx // without the first transaction
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			if _, err := box.WriteEach(ctx, tx, first); err != nil {
				return err
			}
			starts := make(chan struct{})
			go func() {
				close(starts)
				done <- other.InTx(outer, func(ctx context.Context, tx T) error {
					got, err := other.WriteEach(ctx, tx, second)
					knows <- answer{got, err}
					return err
				})
			}()
			<-starts
			for range 20 { // time for the second writer
				b.ready(ctx, t)
			}
			select {
			case got := <-knows:
				t.Errorf("the second writer did not wait for the first: %v, %v", got.receipts, got.err)
				knows <- got
			default:
			}
			return end
		})
		if !errors.Is(err, end) {
			t.Fatalf("the first transaction: %v", err)
		}
		if err := <-done; err != nil {
			t.Fatalf("the second transaction: %v", err)
		}
		got := <-knows
		if end == nil {
			wantReceipts(t, got.receipts, duplicateOf(first))
			b.wantReady(ctx, t, first)
		} else {
			wantReceipts(t, got.receipts, written(second))
			b.wantReady(ctx, t, second)
		}
	}
}

func manyWriters[T any](ctx context.Context, t tb, b *env[T]) {
	const writers = 6
	box := b.box(t)
	for round := range 3 {
		key := fmt.Sprintf("k%d", round)
		got := make([]outbox.Receipt, writers)
		evs := make([]waybill.Event, writers)
		var wg sync.WaitGroup
		for i := range writers {
			evs[i] = b.keyed(fmt.Sprintf("a%d", round), key)
			wg.Go(func() {
				err := box.InTx(ctx, func(ctx context.Context, tx T) error {
					r, err := box.WriteEach(ctx, tx, evs[i])
					if err == nil {
						got[i] = r[0]
					}
					return err
				})
				if err != nil {
					t.Errorf("InTx: %v", err)
				}
			})
		}
		wg.Wait()
		winner := slices.IndexFunc(got, func(r outbox.Receipt) bool { return r.Outcome == outbox.Written })
		if winner < 0 {
			t.Fatalf("no writer won: %v", got)
		}
		for i, r := range got {
			want := duplicateOf(evs[winner])
			if i == winner {
				want = written(evs[winner])
			}
			wantReceipts(t, []outbox.Receipt{r}, want)
		}
		if _, ok := find(b.ready(ctx, t), evs[winner].ID); !ok {
			t.Errorf("the winner has no row")
		}
	}
	if rows := b.ready(ctx, t); len(rows) != 3 {
		t.Errorf("3 keys gave %d rows", len(rows))
	}
}

// keysInAnyOrder takes the same keys in opposite orders: a store locks them in
// one order.
func keysInAnyOrder[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	const rounds = 10
	var wg sync.WaitGroup
	for w := range 4 {
		wg.Go(func() {
			for round := range rounds {
				var evs []waybill.Event
				for i := range 6 {
					evs = append(evs, b.keyed("a", fmt.Sprintf("k%d.%d", round, i)))
				}
				if w%2 == 1 {
					slices.Reverse(evs)
				}
				err := box.InTx(ctx, func(ctx context.Context, tx T) error { return box.Write(ctx, tx, evs...) })
				if err != nil {
					t.Errorf("InTx: %v", err)
					return
				}
			}
		})
	}
	wg.Wait()
	if rows := b.ready(ctx, t); len(rows) != rounds*6 {
		t.Errorf("%d keys gave %d rows", rounds*6, len(rows))
	}
}
