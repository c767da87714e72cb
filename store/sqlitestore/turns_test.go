package sqlitestore

import (
	"context"
	"errors"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// TestTurns lets writers arrive, wait, give up and leave in every order: there
// are never two at a time, and no writer is skipped.
func TestTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns turns
		var inside atomic.Int32
		var served, gaveUp atomic.Int32
		var wg sync.WaitGroup
		for i := range 500 {
			wg.Go(func() {
				rng := rand.New(rand.NewPCG(1, uint64(i)))
				ms := func(n int64) time.Duration { return time.Duration(rng.Int64N(n)) * time.Millisecond }
				time.Sleep(ms(1000)) //nolint:forbidigo // synctest's time
				ctx, cancel := context.WithTimeout(t.Context(), ms(400))
				defer cancel()
				if err := turns.take(ctx, ms(400)); err != nil {
					if !errors.Is(err, errWaited) && !errors.Is(err, context.DeadlineExceeded) {
						t.Error(err)
					}
					gaveUp.Add(1)
					return
				}
				if inside.Add(1) != 1 {
					t.Error("two have the turn")
				}
				time.Sleep(ms(10)) //nolint:forbidigo // synctest's time
				inside.Add(-1)
				served.Add(1)
				turns.give()
			})
		}
		wg.Wait()
		if turns.taken || turns.waiting() != 0 {
			t.Errorf("at the end: taken %v, %d waiting", turns.taken, turns.waiting())
		}
		if served.Load() == 0 || gaveUp.Load() == 0 {
			t.Errorf("%d served, %d gave up: the test shows nothing", served.Load(), gaveUp.Load())
		}
	})
}

// TestTurnsInOrder: the queue is first in, first out.
func TestTurnsInOrder(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var turns turns
		if err := turns.take(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		var order []int
		for i := range 10 {
			go func() {
				if err := turns.take(t.Context(), time.Hour); err != nil {
					t.Error(err)
				}
				order = append(order, i) // only one goroutine has the turn
				turns.give()
			}()
			synctest.Wait()
		}
		turns.give()
		synctest.Wait()
		for i, got := range order {
			if got != i {
				t.Fatalf("served in the order %v", order)
			}
		}
		if len(order) != 10 {
			t.Errorf("%d served, want 10", len(order))
		}
	})
}
