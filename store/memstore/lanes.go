package memstore

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Heartbeat implements [store.Lanes].
func (t *tables) Heartbeat(_ context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	for _, other := range t.nodes {
		if other.Relay != n.Relay && other.ID != n.ID && other.expires.After(now) {
			return store.Membership{}, fmt.Errorf("memstore: %w: %q", waybill.ErrOtherRelay, other.Relay)
		}
	}
	t.nodes[n.ID] = node{Node: n, expires: now.Add(lease)}
	var m store.Membership
	for _, other := range t.nodes {
		if other.expires.After(now) {
			m.Nodes = append(m.Nodes, other.Node)
		}
	}
	slices.SortFunc(m.Nodes, func(a, b store.Node) int { return slices.Compare(a.ID[:], b.ID[:]) })
	for i, l := range t.lanes {
		m.Lanes = append(m.Lanes, store.LaneState{Lane: i, Owner: l.owner, Live: t.liveAt(l.owner, now), Epoch: l.epoch})
	}
	return m, nil
}

// liveAt reports whether a node's lease is running; mu is held.
func (t *tables) liveAt(id waybill.ID, now time.Time) bool {
	n, ok := t.nodes[id]
	return ok && n.expires.After(now)
}

// Acquire implements [store.Lanes].
func (t *tables) Acquire(_ context.Context, n store.Node, lanes []int, window int) ([]store.Lease, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := time.Now()
	if !t.liveAt(n.ID, now) {
		return nil, fmt.Errorf("memstore: acquire: %w: the node has no running lease", waybill.ErrLeaseLost)
	}
	var leases []store.Lease
	for _, i := range slices.Sorted(slices.Values(lanes)) {
		if i < 0 || i >= len(t.lanes) || t.liveAt(t.lanes[i].owner, now) {
			continue
		}
		l := &t.lanes[i]
		leases = append(leases, store.Lease{
			Lane: i, Epoch: l.epoch + 1, Token: waybill.NewID(), Unclean: l.dirty || !l.owner.IsZero(), Window: l.window,
		})
		*l = lane{owner: n.ID, epoch: l.epoch + 1, token: leases[len(leases)-1].Token, window: window}
	}
	return leases, nil
}

// Release implements [store.Lanes].
func (t *tables) Release(_ context.Context, leases []store.Lease, dirty bool) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, lease := range leases {
		if t.holds(lease) {
			l := &t.lanes[lease.Lane]
			l.owner, l.token, l.dirty = waybill.ID{}, waybill.ID{}, dirty
		}
	}
	return nil
}

// Leave implements [store.Lanes].
func (t *tables) Leave(_ context.Context, n store.Node) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	delete(t.nodes, n.ID)
	for i := range t.lanes {
		if l := &t.lanes[i]; l.owner == n.ID {
			l.owner, l.token, l.dirty = waybill.ID{}, waybill.ID{}, true
		}
	}
	return nil
}

// holds reports whether a lease is the lane's present one; mu is held.
func (t *tables) holds(lease store.Lease) bool {
	if lease.Lane < 0 || lease.Lane >= len(t.lanes) {
		return false
	}
	l := t.lanes[lease.Lane]
	return !l.owner.IsZero() && l.epoch == lease.Epoch && l.token == lease.Token
}

// Settle implements [store.Settler].
func (t *tables) Settle(_ context.Context, s store.Settlement) (store.Settled, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out store.Settled
	for _, lease := range s.Leases {
		if t.holds(lease) && !slices.Contains(out.Held, lease.Lane) {
			out.Held = append(out.Held, lease.Lane)
		}
	}
	slices.Sort(out.Held)
	now := clock()
	move := func(results []store.Result, to func(row *store.Row, r store.Result)) {
		for _, r := range results {
			row := t.take(r, out.Held)
			if row == nil {
				continue
			}
			to(row, r)
			out.Moved = append(out.Moved, r.ID)
		}
	}
	move(s.Done, func(row *store.Row, _ store.Result) {
		t.freeKey(row)
		if s.History {
			t.history[row.ID] = row
		} else {
			t.gap = true
		}
	})
	move(s.Retry, func(row *store.Row, r store.Result) {
		row.Attempts, row.LastError, row.Holds = r.Attempts, store.CutError(r.Error), r.Holds
		row.DueAt = now.Add(r.Delay).Truncate(time.Microsecond)
		row.Event.AvailableAt = row.DueAt
		t.delayed[row.ID] = row
	})
	move(s.Dead, func(row *store.Row, r store.Result) {
		row.Attempts, row.LastError, row.Holds = r.Attempts, store.CutError(r.Error), r.Holds
		t.freeKey(row)
		t.dead[row.ID] = row
	})
	return out, nil
}

// take removes a row from where it is pending, if its lane is held; mu is held.
func (t *tables) take(r store.Result, held []int) *store.Row {
	row := t.outbox[r.ID]
	if row == nil {
		row = t.delayed[r.ID]
	}
	if row == nil || row.Lane != r.Lane || !slices.Contains(held, r.Lane) {
		return nil
	}
	delete(t.outbox, r.ID)
	delete(t.delayed, r.ID)
	return row
}

// freeKey gives a settled event's dedup key back; mu is held.
func (t *tables) freeKey(row *store.Row) {
	if k := keyOf(row.Event); row.Event.DedupKey != "" && t.dedup[k] == row.ID {
		delete(t.dedup, k)
	}
}
