package drivertest

import (
	"context"
	"math/rand/v2"
	"sync"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// raceChecks check a paused owner that resumes during a takeover.
func raceChecks[T any]() []check[T] {
	return []check[T]{
		{row: "stale_owner_during_takeover", name: "settlement against takeover", run: settleAgainstTakeOver[T]},
		{row: "stale_owner_during_takeover", name: "concurrent settlements of one owner", run: settleTogether[T]},
		{row: "stale_owner_during_takeover", name: "concurrent writers and settlements", run: settleBesideWriters[T]},
	}
}

// settleAgainstTakeOver lets a stale owner settle during the takeover of its
// lane, repeatedly. The two have an order: either the settlement comes first,
// and the new owner sees its result as soon as it has the lane; or the takeover
// comes first, and the settlement is rejected. A row that existed after the
// takeover must never be moved by the stale owner.
func settleAgainstTakeOver[T any](ctx context.Context, t tb, b *env[T]) {
	rounds := 50
	if b.short {
		rounds = 20
	}
	other := b.second()
	accepted := 0
	for round := range rounds {
		ev := b.event("a")
		lane := b.laneOf(ev)
		b.write(ctx, t, ev)
		stale, heir := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, other.Relay)
		lease := b.acquire(ctx, t, b.DB.Relay, stale, lane)[0]
		b.expire(ctx, t, b.DB.Relay, stale, heir)

		s := settlement(round%3, []driver.Lease{lease},
			driver.Result{Lane: lane, ID: ev.ID, Attempts: 1, Delay: defaultLease, Error: "stale"})
		var settled driver.Settled
		var settleErr error
		var next []driver.Lease
		var seen []row
		start := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			<-start
			b.stumble(ctx)
			settled, settleErr = b.DB.Relay.Settle(ctx, s)
		})
		wg.Go(func() {
			<-start
			b.stumble(ctx)
			var err error
			if next, err = other.Relay.Acquire(ctx, heir, []int{lane}, 7); err != nil {
				t.Errorf("Acquire: %v", err)
				return
			}
			page, err := other.Relay.Fetch(ctx, []driver.Cursor{{Lane: lane}}, 100)
			if err != nil {
				t.Errorf("Fetch: %v", err)
			}
			seen = page.Rows
		})
		close(start)
		wg.Wait()
		if settleErr != nil {
			t.Fatalf("Settle: %v", settleErr)
		}
		if len(next) != 1 {
			t.Fatalf("the heir acquired %v of a lane whose owner is dead", next)
		}
		_, there := find(seen, ev.ID)
		held, moved := len(settled.Held) == 1, len(settled.Moved) == 1
		if held != moved {
			t.Errorf("round %d: the settlement held %v and moved %v", round, settled.Held, settled.Moved)
		}
		if moved == there {
			t.Errorf("round %d: after the takeover the row was there: %v; and the stale owner's settlement moved it: %v", round, there, moved)
		}
		if moved {
			accepted++
		}
		// From now on the stale owner is always rejected.
		late, err := b.DB.Relay.Settle(ctx, s)
		if err != nil {
			t.Fatalf("Settle: %v", err)
		}
		wantHeld(t, late)
		wantMoved(t, late)
		if there {
			s.Leases = next
			wantMoved(t, b.settle(ctx, t, s), ev.ID)
		}
		b.wantReady(ctx, t)
		b.end() // both nodes leave
	}
	t.Logf("in %d of %d rounds the settlement came first", accepted, rounds)
}

// stumble waits a little at random, so that the two sides meet in every order.
func (b *env[T]) stumble(ctx context.Context) {
	for range rand.IntN(3) {
		_, _ = b.DB.Relay.Fetch(ctx, []driver.Cursor{{Lane: 0}}, 1)
	}
}

// settleTogether settles the lanes of one owner from several goroutines, in any
// order of lanes.
func settleTogether[T any](ctx context.Context, t tb, b *env[T]) {
	names := b.aggregates(6)
	leases := b.own(ctx, t)
	for range 5 {
		var rows []row
		for _, name := range names {
			b.write(ctx, t, b.events(6, name)...)
		}
		rows = b.ready(ctx, t)
		moved := make([]int, 4)
		var wg sync.WaitGroup
		for w := range moved {
			wg.Go(func() {
				s := driver.Settlement{Leases: append([]driver.Lease(nil), leases...), History: true}
				rand.Shuffle(len(s.Leases), func(i, j int) { s.Leases[i], s.Leases[j] = s.Leases[j], s.Leases[i] })
				for i, row := range rows {
					if i%3 == w%3 { // the first and the last have the same key
						s.Done = append(s.Done, result(row))
					}
				}
				rand.Shuffle(len(s.Done), func(i, j int) { s.Done[i], s.Done[j] = s.Done[j], s.Done[i] })
				settled, err := b.DB.Relay.Settle(ctx, s)
				if err != nil {
					t.Errorf("Settle: %v", err)
				}
				moved[w] = len(settled.Moved)
			})
		}
		wg.Wait()
		if total := moved[0] + moved[1] + moved[2] + moved[3]; total != len(rows) {
			t.Errorf("%d rows were moved %d times", len(rows), total)
		}
		b.wantReady(ctx, t)
	}
}

// settleBesideWriters writes and delivers events concurrently: none is lost,
// none comes back.
func settleBesideWriters[T any](ctx context.Context, t tb, b *env[T]) {
	const writers, each = 3, 20
	leases := b.own(ctx, t)
	box := b.box(t)
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer wg.Wait() // no report to a finished test
	defer cancel()
	var failed sync.Once
	stop := make(chan struct{})
	for w := range writers {
		wg.Go(func() {
			for i := range each {
				ev := b.event([]string{"a", "b", ""}[w])
				if i%4 == 0 {
					// Contended by writers and settlements.
					ev.DedupKey = b.unique("k")
				}
				if err := box.InTx(ctx, func(ctx context.Context, tx T) error { return box.Write(ctx, tx, ev) }); err != nil {
					t.Errorf("InTx: %v", err)
					failed.Do(func() { close(stop) })
					return
				}
			}
		})
	}
	finished := make(chan struct{})
	go func() { wg.Wait(); close(finished) }()
	seen := map[string]bool{}
	deadline := time.After(b.patience)
	for last := false; ; {
		rows := b.ready(ctx, t)
		for _, row := range rows {
			if seen[row.ID.String()] {
				t.Fatalf("event %s came back after it was settled", row.ID)
			}
			seen[row.ID.String()] = true
		}
		if len(rows) > 0 {
			wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(rows), History: true}), rowIDs(rows)...)
		} else if last {
			break
		}
		select {
		case <-finished:
			last = true
		case <-stop:
			<-finished
			return
		case <-deadline:
			t.Fatalf("writers and settlements hold each other up")
		default:
		}
	}
	// At least all events without a key.
	if want := writers * each * 3 / 4; len(seen) < want {
		t.Errorf("%d events were delivered, want at least %d", len(seen), want)
	}
}
