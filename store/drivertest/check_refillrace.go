package drivertest

import (
	"context"
	"fmt"
	"slices"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// refillRaceChecks check refills beside other changes.
func refillRaceChecks[T any]() []check[T] {
	return []check[T]{
		{row: "refill", name: "concurrent refills", fresh: true, run: refillsTogether[T]},
		{row: "refill", name: "while the backlog is drained", fresh: true, run: refillsWhileDrained[T]},
		{row: "refill", name: "while its destination is removed", fresh: true, run: refillsWhileRemoved[T]},
		{row: "refill", name: "while the lanes change", fresh: true, run: refillsWhileLanesChange[T]},
	}
}

// refillsTogether refills one backlog from several operators.
func refillsTogether[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	var evs []waybill.Event
	for _, name := range b.aggregates(4) {
		evs = append(evs, b.events(15, name)...)
	}
	b.deliver(ctx, t, evs)
	leases := b.own(ctx, t)
	for round := range 4 {
		copied := make([]int, 4)
		var wg sync.WaitGroup
		for i := range copied {
			db := []driver.Roles[T]{b.DB, b.second()}[i%2].Backlogs.Backlog(number)
			wg.Go(func() {
				b.stumble(ctx)
				_, n, _, err := refillAll(ctx, db, driver.HistoryQuery{}, 11)
				if copied[i] = n; err != nil {
					t.Errorf("Refill beside others: %v", err)
				}
			})
		}
		wg.Wait()
		if total := copied[0] + copied[1] + copied[2] + copied[3]; total != len(evs) {
			t.Errorf("round %d: %d events were copied %v times", round, len(evs), copied)
		}
		rows := b.emptied(ctx, t, leases, backlog)
		wantIDs(t, "Fetch after concurrent refills", rows, evs)
	}
}

// refillsWhileDrained refills a backlog while its rows are settled. An event
// that was settled may be copied again, but none has two rows.
func refillsWhileDrained[T any](ctx context.Context, t tb, b *env[T]) {
	number, backlog := b.backlogOf(ctx, t, "a")
	evs := b.events(40, "a")
	b.deliver(ctx, t, evs)
	leases := b.own(ctx, t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		defer close(stop)
		for range 15 {
			if _, err := b.second().Backlogs.Backlog(number).Refill(ctx, driver.HistoryQuery{}, driver.HistoryCursor{}, 100); err != nil {
				t.Errorf("Refill beside settlements: %v", err)
				return
			}
		}
	})
	defer wg.Wait()
	for running := true; running; {
		select {
		case <-stop:
			running = false
		default:
		}
		s := driver.Settlement{Leases: leases, History: false}
		for i, r := range b.readyIn(ctx, t, backlog) {
			res := readyResult(r)
			res.Attempts, res.Delay = 1, defaultLease
			switch i % 3 {
			case 0:
				s.Done = append(s.Done, res)
			case 1:
				s.Retry = append(s.Retry, res)
			default:
				s.Dead = append(s.Dead, res)
			}
		}
		settleIn(ctx, t, backlog, s)
	}
	seen := map[waybill.ID]store.State{}
	for _, state := range states {
		recs, err := backlog.List(ctx, state, store.Filter{}, 0, 1000)
		if err != nil {
			t.Fatalf("List: %v", err)
		}
		for _, rec := range recs {
			if other, twice := seen[rec.ID]; twice {
				t.Errorf("event %s is %v and %v in one backlog", rec.ID, other, state)
			}
			seen[rec.ID] = state
		}
	}
}

// refillsWhileRemoved removes a destination during its refill: a later
// destination with its number has no row of it.
func refillsWhileRemoved[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(60, "a")
	b.deliver(ctx, t, evs)
	refilled := 0
	for round := range 10 {
		number, backlog := b.backlogOf(ctx, t, fmt.Sprintf("d%d", round))
		var wg sync.WaitGroup
		copied := 0
		wg.Go(func() {
			b.stumble(ctx)
			// An error is allowed: the destination may be gone.
			_, copied, _, _ = refillAll(ctx, backlog, driver.HistoryQuery{}, 7)
		})
		wg.Go(func() {
			b.stumble(ctx)
			if _, err := b.second().Backlogs.RemoveDestination(ctx, fmt.Sprintf("d%d", round)); err != nil {
				t.Errorf("RemoveDestination beside a refill: %v", err)
			}
		})
		wg.Wait()
		if copied > 0 {
			refilled++
		}
		if again, _ := b.backlogOf(ctx, t, "next"); again != number {
			t.Errorf("round %d: the number %d is not free: a destination got %d", round, number, again)
		}
		b.wantEmpty(ctx, t, "a new destination, whose number was removed during a refill", number)
		b.removeDestination(ctx, t, "next", 0)
	}
	t.Logf("in %d of 10 rounds the refill copied events before the removal", refilled)
}

// refillsWhileLanesChange changes the number of lanes during a refill: every
// row ends up in the lane of its event.
func refillsWhileLanesChange[T any](ctx context.Context, t tb, b *env[T]) {
	_, backlog := b.backlogOf(ctx, t, "a")
	var evs []waybill.Event
	for i := range 60 {
		evs = append(evs, b.event([]string{"a", "b", "c", "d", ""}[i%5]))
	}
	b.deliver(ctx, t, evs)
	for _, n := range b.numbers() {
		var wg sync.WaitGroup
		wg.Go(func() {
			b.stumble(ctx)
			if _, _, _, err := refillAll(ctx, backlog, driver.HistoryQuery{}, 7); err != nil {
				t.Errorf("Refill beside SetLanes: %v", err)
			}
		})
		b.stumble(ctx)
		err := b.second().OutboxAdmin.SetLanes(ctx, n)
		wg.Wait()
		if err != nil {
			t.Fatalf("SetLanes(%d) beside a refill: %v", n, err)
		}
		b.lanes = n
		rows := b.readyIn(ctx, t, backlog)
		for _, r := range rows {
			b.wantLane(t, r)
		}
		if ids := idsOf(evs); !slices.Equal(rowIDs(rows), ids) {
			t.Errorf("with %d lanes, %d of %d refilled events are in these lanes", n, len(rows), len(ids))
		}
		b.emptied(ctx, t, b.own(ctx, t), backlog)
		b.end()
	}
}
