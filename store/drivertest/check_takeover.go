package drivertest

import (
	"context"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// takeOverChecks check lanes that change their owner without being released.
func takeOverChecks[T any]() []check[T] {
	return []check[T]{
		{row: "takeover_from_a_dead_node", name: "from a node that died", run: takesOver[T]},
		{row: "takeover_from_a_dead_node", name: "repeatedly", run: takesOverAgain[T]},
		{row: "one_winner_per_lane", name: "two nodes race", run: nodesRace[T]},
	}
}

func takesOver[T any](ctx context.Context, t tb, b *env[T]) {
	one, two := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, b.second().Relay)
	ev := b.event("a")
	lane := b.laneOf(ev)
	b.write(ctx, t, ev)
	leases, err := b.DB.Relay.Acquire(ctx, one, []int{lane}, 123)
	if err != nil || len(leases) != 1 {
		t.Fatalf("Acquire: %v, %v", leases, err)
	}
	old := leases[0]
	if got, err := b.second().Relay.Acquire(ctx, two, []int{lane}, 7); err != nil || len(got) > 0 {
		t.Errorf("a lane whose owner is live was taken: %v, %v", got, err)
	}
	b.expire(ctx, t, b.DB.Relay, one, two)
	next := b.acquire(ctx, t, b.second().Relay, two, lane)[0]
	if !next.Unclean || next.Window != 123 || next.Epoch != old.Epoch+1 || next.Token == old.Token {
		t.Errorf("taken over from %+v with window 123: %+v, want it unclean, with that window, fenced anew", old, next)
	}
	// The first node comes back: its lease is gone, although it is live.
	b.beat(ctx, t, b.DB.Relay, one, defaultLease)
	settled, err := b.DB.Relay.Settle(ctx, driver.Settlement{
		Leases: []driver.Lease{old}, Done: []driver.Result{{Lane: lane, ID: ev.ID}}, History: true,
	})
	if err != nil {
		t.Fatalf("Settle: %v", err)
	}
	wantHeld(t, settled)
	wantMoved(t, settled)
	b.wantReady(ctx, t, ev)
	if got, err := b.DB.Relay.Acquire(ctx, one, []int{lane}, 7); err != nil || len(got) > 0 {
		t.Errorf("the first owner took back a lane that is not free: %v, %v", got, err)
	}
	// The window of the new lease is the last owner's, not an earlier one's.
	if err := b.second().Relay.Leave(ctx, two); err != nil {
		t.Fatalf("Leave: %v", err)
	}
	if again := b.acquire(ctx, t, b.DB.Relay, one, lane)[0]; !again.Unclean || again.Window != 7 || again.Epoch != next.Epoch+1 {
		t.Errorf("taken over from %+v: %+v", next, again)
	}
}

// takesOverAgain passes one lane through a series of nodes that die.
func takesOverAgain[T any](ctx context.Context, t tb, b *env[T]) {
	witness := b.node(ctx, t, b.DB.Relay)
	var last driver.Lease
	for i := range 6 {
		n := b.node(ctx, t, b.DB.Relay)
		leases, err := b.DB.Relay.Acquire(ctx, n, []int{0}, 100+i)
		if err != nil || len(leases) != 1 {
			t.Fatalf("Acquire: %v, %v", leases, err)
		}
		lease := leases[0]
		if i > 0 && (!lease.Unclean || lease.Window != 99+i || lease.Epoch != last.Epoch+1 || lease.Token == last.Token) {
			t.Errorf("takeover %d from %+v: %+v", i, last, lease)
		}
		if i > 0 { // only the new owner can settle
			for _, l := range []driver.Lease{last, lease} {
				settled, err := b.DB.Relay.Settle(ctx, driver.Settlement{Leases: []driver.Lease{l}})
				if err != nil {
					t.Fatalf("Settle: %v", err)
				}
				if (len(settled.Held) == 1) != (l == lease) {
					t.Errorf("Settle with %+v held %v; the present lease is %+v", l, settled.Held, lease)
				}
			}
		}
		last = lease
		b.expire(ctx, t, b.DB.Relay, n, witness)
	}
}

// nodesRace acquires all lanes from several nodes concurrently, free lanes and
// lanes of a dead owner.
func nodesRace[T any](ctx context.Context, t tb, b *env[T]) {
	dbs := []driver.Roles[T]{b.DB, b.second(), b.DB}
	witness := b.node(ctx, t, b.DB.Relay)
	epochs := map[int]int64{}
	for _, l := range b.states(ctx, t, witness) {
		epochs[l.Lane] = l.Epoch
	}
	for round := range 8 {
		nodes := make([]store.Node, len(dbs))
		won := make([][]driver.Lease, len(dbs))
		for i, db := range dbs {
			nodes[i] = b.node(ctx, t, db.Relay)
		}
		start := make(chan struct{})
		var wg sync.WaitGroup
		for i, db := range dbs {
			wg.Go(func() {
				lanes := b.allLanes()
				if i == 1 { // rows must be locked in one order
					for x, y := 0, len(lanes)-1; x < y; x, y = x+1, y-1 {
						lanes[x], lanes[y] = lanes[y], lanes[x]
					}
				}
				<-start
				var err error
				if won[i], err = db.Relay.Acquire(ctx, nodes[i], lanes, 7); err != nil {
					t.Errorf("Acquire: %v", err)
				}
			})
		}
		close(start)
		wg.Wait()
		owner := map[int]waybill.ID{}
		for i, leases := range won {
			for _, l := range leases {
				if winner, twice := owner[l.Lane]; twice {
					t.Errorf("round %d: both %s and %s won lane %d", round, winner, nodes[i].ID, l.Lane)
				}
				if l.Epoch != epochs[l.Lane]+1 {
					t.Errorf("round %d: lane %d has epoch %d behind %d", round, l.Lane, l.Epoch, epochs[l.Lane])
				}
				owner[l.Lane], epochs[l.Lane] = nodes[i].ID, l.Epoch
			}
		}
		for _, l := range b.states(ctx, t, witness) {
			if l.Owner != owner[l.Lane] || !l.Live || l.Epoch != epochs[l.Lane] {
				t.Errorf("round %d: lane %+v was won by %s with epoch %d", round, l, owner[l.Lane], epochs[l.Lane])
			}
		}
		if len(owner) != b.lanes {
			t.Fatalf("round %d: %d of %d lanes have a winner", round, len(owner), b.lanes)
		}
		for i, db := range dbs {
			// Half of the nodes release the lanes, the others die.
			if round%2 == 0 {
				if err := db.Relay.Release(ctx, won[i], false); err != nil {
					t.Fatalf("Release: %v", err)
				}
				continue
			}
			b.expire(ctx, t, db.Relay, nodes[i], witness)
		}
	}
}
