package memstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Heartbeat implements [driver.Lanes].
func (t *tables) Heartbeat(_ context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
	counted, err := driver.DecodeRollup(n.Rollup)
	if err != nil {
		return store.Membership{}, fmt.Errorf("memstore: heartbeat: %w", err)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, other := range t.nodes {
		if other.Relay != n.Relay && other.ID != n.ID && other.expires.After(now) {
			return store.Membership{}, fmt.Errorf("memstore: %w: %q", waybill.ErrOtherRelay, other.Relay)
		}
	}
	t.nodes[n.ID] = node{Node: store.Node{ID: n.ID, Relay: n.Relay}, expires: now.Add(lease), report: n.Report}
	t.countUp(counted)
	return t.membership(now), nil
}

// membership returns the live nodes without their reports, and the lane owners;
// mu is held.
func (t *tables) membership(now time.Time) store.Membership {
	var m store.Membership
	for _, n := range t.nodes {
		if n.expires.After(now) {
			m.Nodes = append(m.Nodes, n.Node)
		}
	}
	slices.SortFunc(m.Nodes, func(a, b store.Node) int { return slices.Compare(a.ID[:], b.ID[:]) })
	for i, l := range t.lanes {
		m.Lanes = append(m.Lanes, store.LaneState{Lane: i, Owner: l.owner, Live: t.liveAt(l.owner, now), Epoch: l.epoch})
	}
	return m
}

// liveAt reports whether a node's lease is valid; mu is held.
func (t *tables) liveAt(id waybill.ID, now time.Time) bool {
	n, ok := t.nodes[id]
	return ok && n.expires.After(now)
}

// Acquire implements [driver.Lanes].
func (t *tables) Acquire(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	free := func(i int, l *lane) bool { return slices.Contains(lanes, i) && !t.liveAt(l.owner, time.Now()) }
	if err := t.quiet(ctx, free); err != nil {
		return nil, fmt.Errorf("memstore: acquire: %w", err)
	}
	if !t.liveAt(n.ID, time.Now()) {
		return nil, fmt.Errorf("memstore: acquire: %w: the node has no valid lease", waybill.ErrLeaseLost)
	}
	var leases []driver.Lease
	for i := range t.lanes {
		l := &t.lanes[i]
		if !free(i, l) || len(l.shared) > 0 {
			// The owner's lease has just expired.
			continue
		}
		leases = append(leases, driver.Lease{
			Lane: i, Epoch: l.epoch + 1, Token: waybill.NewID(), Unclean: l.dirty || !l.owner.IsZero(), Window: l.window,
		})
		*l = lane{owner: n.ID, epoch: l.epoch + 1, token: leases[len(leases)-1].Token, window: window}
	}
	return leases, nil
}

// Release implements [driver.Lanes].
func (t *tables) Release(ctx context.Context, leases []driver.Lease, dirty bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	given := func(i int, _ *lane) bool {
		return slices.ContainsFunc(leases, func(lease driver.Lease) bool { return lease.Lane == i && t.holds(lease) })
	}
	if err := t.quiet(ctx, given); err != nil {
		return fmt.Errorf("memstore: release: %w", err)
	}
	t.free(given, dirty)
	return nil
}

// Leave implements [driver.Lanes].
func (t *tables) Leave(ctx context.Context, n store.Node) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	owned := func(_ int, l *lane) bool { return l.owner == n.ID }
	if err := t.quiet(ctx, owned); err != nil {
		return fmt.Errorf("memstore: leave: %w", err)
	}
	delete(t.nodes, n.ID)
	t.free(owned, true)
	return nil
}

// free takes lanes from their owners; mu is held.
func (t *tables) free(which func(i int, l *lane) bool, dirty bool) {
	for i := range t.lanes {
		if l := &t.lanes[i]; which(i, l) {
			l.owner, l.token, l.dirty = waybill.ID{}, waybill.ID{}, dirty
		}
	}
}

// quiet returns once no open transaction has checked the fence of these lanes;
// mu is held, but not during the wait.
func (t *tables) quiet(ctx context.Context, which func(i int, l *lane) bool) error {
	for {
		x := t.sharer(which)
		if x == nil {
			return nil
		}
		if err := t.await(ctx, x); err != nil {
			return err
		}
	}
}

func (t *tables) sharer(which func(i int, l *lane) bool) *txn {
	for i := range t.lanes {
		if l := &t.lanes[i]; len(l.shared) > 0 && which(i, l) {
			for x := range l.shared {
				return x
			}
		}
	}
	return nil
}

// holds reports whether a lease is the lane's current one; mu is held.
func (t *tables) holds(lease driver.Lease) bool {
	if !t.has(lease.Lane) {
		return false
	}
	l := t.lanes[lease.Lane]
	return !l.owner.IsZero() && l.epoch == lease.Epoch && l.token == lease.Token
}
