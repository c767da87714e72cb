package drivertest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// laneChecks check the ownership of lanes.
func laneChecks[T any]() []check[T] {
	return []check[T]{
		{row: "membership", name: "membership", run: membership[T]},
		{row: "membership", name: "a node that renews", run: renews[T]},
		{row: "one_relay_per_outbox", name: "another relay is rejected", run: otherRelay[T]},
		{row: "one_relay_per_outbox", name: "another relay after the first has left", run: nextRelay[T]},
		{row: "one_relay_per_outbox", name: "the outbox remembers its sink", run: remembersSink[T], fresh: true, roles: []string{"SinkGuard"}},
		{row: "one_relay_per_outbox", name: "a takeover waits for the running relay", run: takesSinkOver[T], fresh: true, roles: []string{"SinkGuard"}},
		{row: "acquire_free_lanes", name: "only free lanes", run: acquiresFree[T]},
		{row: "acquire_free_lanes", name: "a new epoch and token every time", run: acquiresAnew[T]},
		{row: "acquire_free_lanes", name: "a node that is not live", run: acquiresDead[T]},
		{row: "release_lanes", name: "release", run: releases[T]},
		{row: "release_lanes", name: "a stale lease releases nothing", run: releasesStale[T]},
		{row: "leave", name: "leave", run: leaves[T]},
	}
}

// states returns the state of every lane, as a witness sees it.
func (b *env[T]) states(ctx context.Context, t tb, witness store.Node) []store.LaneState {
	t.Helper()
	m := b.beat(ctx, t, b.DB.Relay, witness, defaultLease)
	lanes := slices.SortedFunc(slices.Values(m.Lanes), func(a, b store.LaneState) int { return a.Lane - b.Lane })
	if len(lanes) != b.lanes {
		t.Fatalf("Heartbeat returned %d lanes, want %d", len(lanes), b.lanes)
	}
	return lanes
}

func nodeIDs(nodes []store.Node) []waybill.ID {
	var ids []waybill.ID
	for _, n := range nodes {
		ids = append(ids, n.ID)
	}
	slices.SortFunc(ids, func(a, b waybill.ID) int { return slices.Compare(a[:], b[:]) })
	return ids
}

func wantNodes(t tb, got []store.Node, want ...store.Node) {
	t.Helper()
	if !slices.Equal(nodeIDs(got), nodeIDs(want)) {
		t.Errorf("live are %v, want %v", got, want)
	}
	for _, n := range got {
		if n.Relay != relayName {
			t.Errorf("node %s has the relay name %q, want %q", n.ID, n.Relay, relayName)
		}
	}
}

func membership[T any](ctx context.Context, t tb, b *env[T]) {
	one := b.node(ctx, t, b.DB.Relay)
	m := b.beat(ctx, t, b.DB.Relay, one, defaultLease)
	wantNodes(t, m.Nodes, one)
	seen := map[int]bool{}
	for _, l := range m.Lanes {
		seen[l.Lane] = true
		if !l.Owner.IsZero() || l.Live || l.Lane < 0 || l.Lane >= b.lanes {
			t.Errorf("no node owns a lane, and a lane is %+v", l)
		}
	}
	if len(seen) != b.lanes || len(m.Lanes) != b.lanes {
		t.Errorf("Heartbeat returned %d lanes, %d of them different, want %d", len(m.Lanes), len(seen), b.lanes)
	}
	two := b.node(ctx, t, b.second().Relay)
	wantNodes(t, b.beat(ctx, t, b.DB.Relay, one, defaultLease).Nodes, one, two)
	leases := b.acquire(ctx, t, b.second().Relay, two, b.lanes-1)
	for _, l := range b.states(ctx, t, one) {
		owned := l.Lane == b.lanes-1
		if owned != (l.Owner == two.ID) || owned != l.Live || owned && l.Epoch != leases[0].Epoch {
			t.Errorf("lane %d belongs to %s (live: %v), epoch %d; node %s has the lease %+v", l.Lane, l.Owner, l.Live, l.Epoch, two.ID, leases[0])
		}
	}
	// A node that is not live is not a member, but keeps its lanes until they
	// are taken.
	b.expire(ctx, t, b.DB.Relay, two, one)
	wantNodes(t, b.beat(ctx, t, b.DB.Relay, one, defaultLease).Nodes, one)
	if l := b.states(ctx, t, one)[b.lanes-1]; l.Live || l.Owner != two.ID || l.Epoch != leases[0].Epoch {
		t.Errorf("the lane of a node that died is %+v, want it not live, still with its owner %s", l, two.ID)
	}
}

func renews[T any](ctx context.Context, t tb, b *env[T]) {
	one, witness := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, b.DB.Relay)
	lease := b.acquire(ctx, t, b.DB.Relay, one, 0)[0]
	b.expire(ctx, t, b.DB.Relay, one, witness)
	b.beat(ctx, t, b.DB.Relay, one, defaultLease)
	// The node renews in time: it still owns the lane, under the same lease.
	l := b.states(ctx, t, witness)[0]
	if !l.Live || l.Owner != one.ID || l.Epoch != lease.Epoch {
		t.Errorf("after the node came back its lane is %+v, want it live, with epoch %d", l, lease.Epoch)
	}
	settled, err := b.DB.Relay.Settle(ctx, driver.Settlement{Leases: []driver.Lease{lease}})
	if err != nil {
		t.Fatalf("Settle: %v", err)
	}
	wantHeld(t, settled, 0)
}

func otherRelay[T any](ctx context.Context, t tb, b *env[T]) {
	one := b.node(ctx, t, b.DB.Relay)
	b.acquire(ctx, t, b.DB.Relay, one, 0)
	before := b.states(ctx, t, one)
	stranger := store.Node{ID: waybill.NewID(), Relay: "another"}
	b.laterDo(func(ctx context.Context) error { return b.DB.Relay.Leave(ctx, stranger) })
	for range 2 {
		_, err := b.second().Relay.Heartbeat(ctx, stranger, defaultLease)
		if !errors.Is(err, waybill.ErrOtherRelay) {
			t.Fatalf("Heartbeat of another relay returned %v, want ErrOtherRelay", err)
		}
		if !strings.Contains(err.Error(), relayName) {
			t.Errorf("the error %q does not name the relay that is at work", err)
		}
	}
	m := b.beat(ctx, t, b.DB.Relay, one, defaultLease)
	wantNodes(t, m.Nodes, one)
	if got := b.states(ctx, t, one); !slices.Equal(got, before) {
		t.Errorf("a relay that was refused has changed the lanes: %v, before %v", got, before)
	}
	if leases, err := b.DB.Relay.Acquire(ctx, stranger, b.allLanes(), 1); !errors.Is(err, waybill.ErrLeaseLost) || len(leases) > 0 {
		t.Errorf("a relay that was refused acquired %v, %v, want ErrLeaseLost", leases, err)
	}
}

func nextRelay[T any](ctx context.Context, t tb, b *env[T]) {
	old := store.Node{ID: waybill.NewID(), Relay: "old"}
	next := store.Node{ID: waybill.NewID(), Relay: "new"}
	b.beat(ctx, t, b.DB.Relay, old, defaultLease)
	if err := b.DB.Relay.Leave(ctx, old); err != nil {
		t.Fatalf("Leave: %v", err)
	}
	// A node that dies instead of leaving.
	b.beat(ctx, t, b.DB.Relay, old, time.Millisecond)
	b.await(ctx, t, "a relay of another name may start", func() bool {
		_, err := b.DB.Relay.Heartbeat(ctx, next, defaultLease)
		if err != nil && !errors.Is(err, waybill.ErrOtherRelay) {
			t.Fatalf("Heartbeat: %v", err)
		}
		return err == nil
	})
	if err := b.DB.Relay.Leave(ctx, next); err != nil {
		t.Fatalf("Leave: %v", err)
	}
}

func acquiresFree[T any](ctx context.Context, t tb, b *env[T]) {
	one, two := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, b.second().Relay)
	half := b.allLanes()[:max(1, b.lanes/2)]
	mine := b.acquire(ctx, t, b.DB.Relay, one, half...)
	for _, l := range mine {
		if !slices.Contains(half, l.Lane) || l.Epoch <= 0 || l.Token.IsZero() {
			t.Errorf("the lease %+v is not of the lanes %v, or not fenced", l, half)
		}
	}
	leases, err := b.second().Relay.Acquire(ctx, two, b.allLanes(), 7)
	if err != nil {
		t.Fatalf("Acquire: %v", err)
	}
	var got []int
	for _, l := range leases {
		got = append(got, l.Lane)
	}
	slices.Sort(got)
	if want := b.allLanes()[len(half):]; !slices.Equal(got, want) {
		t.Errorf("the second node acquired %v, want %v: the rest is not free", got, want)
	}
	// Neither node gets lanes that it already has, lanes of the other node, or
	// lanes that do not exist.
	for _, n := range []store.Node{one, two} {
		leases, err := b.DB.Relay.Acquire(ctx, n, append(b.allLanes(), b.lanes, b.lanes+7, -1), 7)
		if err != nil || len(leases) > 0 {
			t.Errorf("Acquire of lanes that are not free returned %v, %v", leases, err)
		}
	}
	if leases, err := b.DB.Relay.Acquire(ctx, one, nil, 7); err != nil || len(leases) > 0 {
		t.Errorf("Acquire of no lanes returned %v, %v", leases, err)
	}
	for _, l := range b.states(ctx, t, one) {
		want := two.ID
		if slices.Contains(half, l.Lane) {
			want = one.ID
		}
		if l.Owner != want || !l.Live {
			t.Errorf("lane %d belongs to %s (live: %v), want %s", l.Lane, l.Owner, l.Live, want)
		}
	}
}

func acquiresAnew[T any](ctx context.Context, t tb, b *env[T]) {
	n := b.node(ctx, t, b.DB.Relay)
	epoch := b.states(ctx, t, n)[0].Epoch
	tokens := map[waybill.ID]bool{}
	for i := range 5 {
		lease := b.acquire(ctx, t, b.DB.Relay, n, 0)[0]
		if lease.Epoch != epoch+1 || tokens[lease.Token] || lease.Token.IsZero() {
			t.Errorf("acquisition %d gave %+v behind epoch %d: want the next epoch and a new token", i, lease, epoch)
		}
		if i > 0 && (lease.Unclean || lease.Window != 7) {
			t.Errorf("after a release in good order the lease is %+v, want it clean, with the last owner's window 7", lease)
		}
		tokens[lease.Token], epoch = true, lease.Epoch
		if got := b.states(ctx, t, n)[0]; got.Epoch != epoch || got.Owner != n.ID || !got.Live {
			t.Errorf("Heartbeat shows %+v for the lease %+v", got, lease)
		}
		if err := b.DB.Relay.Release(ctx, []driver.Lease{lease}, false); err != nil {
			t.Fatalf("Release: %v", err)
		}
		if got := b.states(ctx, t, n)[0]; !got.Owner.IsZero() || got.Live || got.Epoch != epoch {
			t.Errorf("a released lane is %+v, want it without an owner, at epoch %d", got, epoch)
		}
	}
}

func acquiresDead[T any](ctx context.Context, t tb, b *env[T]) {
	witness := b.node(ctx, t, b.DB.Relay)
	unknown := store.Node{ID: waybill.NewID(), Relay: relayName}
	expired := b.node(ctx, t, b.DB.Relay)
	b.expire(ctx, t, b.DB.Relay, expired, witness)
	left := b.node(ctx, t, b.DB.Relay)
	if err := b.DB.Relay.Leave(ctx, left); err != nil {
		t.Fatalf("Leave: %v", err)
	}
	before := b.states(ctx, t, witness)
	for name, n := range map[string]store.Node{"unknown": unknown, "expired": expired, "gone": left} {
		leases, err := b.DB.Relay.Acquire(ctx, n, b.allLanes(), 7)
		if !errors.Is(err, waybill.ErrLeaseLost) || len(leases) > 0 {
			t.Errorf("a node that is %s acquired %v, %v, want ErrLeaseLost", name, leases, err)
		}
	}
	if got := b.states(ctx, t, witness); !slices.Equal(got, before) {
		t.Errorf("nodes that are not live have changed the lanes: %v, before %v", got, before)
	}
}

func releases[T any](ctx context.Context, t tb, b *env[T]) {
	one, two := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, b.second().Relay)
	for _, dirty := range []bool{false, true, false} {
		lease := b.acquire(ctx, t, b.DB.Relay, one, 0)[0]
		if err := b.DB.Relay.Release(ctx, []driver.Lease{lease}, dirty); err != nil {
			t.Fatalf("Release: %v", err)
		}
		next := b.acquire(ctx, t, b.second().Relay, two, 0)[0]
		if next.Unclean != dirty || next.Window != 7 || next.Epoch != lease.Epoch+1 || next.Token == lease.Token {
			t.Errorf("after a release (dirty: %v) of %+v the next lease is %+v", dirty, lease, next)
		}
		if err := b.second().Relay.Release(ctx, []driver.Lease{next}, false); err != nil {
			t.Fatalf("Release: %v", err)
		}
	}
	if err := b.DB.Relay.Release(ctx, nil, true); err != nil {
		t.Errorf("Release of nothing: %v", err)
	}
}

func releasesStale[T any](ctx context.Context, t tb, b *env[T]) {
	one, two := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, b.second().Relay)
	old := b.acquire(ctx, t, b.DB.Relay, one, 0)[0]
	if err := b.DB.Relay.Release(ctx, []driver.Lease{old}, false); err != nil {
		t.Fatalf("Release: %v", err)
	}
	held := b.acquire(ctx, t, b.second().Relay, two, 0)[0]
	guessed, wrongEpoch := held, held
	guessed.Token = waybill.NewID()
	wrongEpoch.Epoch--
	beyond := driver.Lease{Lane: b.lanes + 3, Epoch: 1, Token: waybill.NewID()}
	for _, stale := range []driver.Lease{old, guessed, wrongEpoch, beyond, {Lane: 0}} {
		for _, dirty := range []bool{true, false} {
			if err := b.DB.Relay.Release(ctx, []driver.Lease{stale}, dirty); err != nil {
				t.Errorf("Release of a lease that is not held any more: %v, want it passed over", err)
			}
		}
	}
	if got := b.states(ctx, t, one)[0]; got.Owner != two.ID || got.Epoch != held.Epoch {
		t.Errorf("a stale lease released the lane: %+v", got)
	}
	settled, err := b.DB.Relay.Settle(ctx, driver.Settlement{Leases: []driver.Lease{held}})
	if err != nil {
		t.Fatalf("Settle: %v", err)
	}
	wantHeld(t, settled, 0)
	// A held lease among leases that are not held.
	if err := b.DB.Relay.Release(ctx, []driver.Lease{old, held, guessed}, false); err != nil {
		t.Fatalf("Release: %v", err)
	}
	if next := b.acquire(ctx, t, b.DB.Relay, one, 0)[0]; next.Unclean {
		t.Errorf("a stale lease made the lane dirty: %+v", next)
	}
}

func leaves[T any](ctx context.Context, t tb, b *env[T]) {
	one, two := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, b.second().Relay)
	all := b.allLanes()
	half := all[:max(1, b.lanes/2)]
	mine := b.acquire(ctx, t, b.DB.Relay, one, half...)
	var others []driver.Lease
	if len(half) < len(all) {
		others = b.acquire(ctx, t, b.second().Relay, two, all[len(half):]...)
	}
	for range 2 { // twice is the same as once
		if err := b.DB.Relay.Leave(ctx, one); err != nil {
			t.Fatalf("Leave: %v", err)
		}
	}
	m := b.beat(ctx, t, b.second().Relay, two, defaultLease)
	wantNodes(t, m.Nodes, two)
	for _, l := range b.states(ctx, t, two) {
		if slices.Contains(half, l.Lane) != l.Owner.IsZero() {
			t.Errorf("after one of two nodes left, lane %d belongs to %s", l.Lane, l.Owner)
		}
	}
	settled, err := b.DB.Relay.Settle(ctx, driver.Settlement{Leases: slices.Concat(mine, others)})
	if err != nil {
		t.Fatalf("Settle: %v", err)
	}
	wantHeld(t, settled, all[len(half):]...)
	for _, lease := range b.acquire(ctx, t, b.second().Relay, two, half...) {
		// At once, without waiting for a lease to end.
		if !lease.Unclean || lease.Window != 7 {
			t.Errorf("after its owner left the lane is %+v, want it unclean, with window 7", lease)
		}
	}
}
