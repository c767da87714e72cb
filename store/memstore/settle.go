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

// Settle implements [driver.Settler].
func (t *tables) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	found, err := t.settled(ctx, s)
	if err != nil {
		return driver.Settled{}, fmt.Errorf("memstore: settle: %w", err)
	}
	g := settling{rows: &t.rowSet, now: clock(), held: t.heldOf(s.Leases), found: found, moved: make([]waybill.ID, 0, len(found))}
	diverted := byID(s.Divert)
	g.each(s.Done, true, func(r *record, _ driver.Result) {
		t.deliver(r, s.History, g.now)
		for _, d := range diverted[r.ID] {
			t.divert(r.Row, d, g.now)
		}
	})
	g.each(s.Retry, false, g.retry)
	g.each(s.Dead, false, func(r *record, res driver.Result) {
		t.freeKey(r)
		g.bury(r, res)
	})
	return driver.Settled{Held: g.held, Moved: g.moved}, nil
}

// heldOf returns the lanes of the leases that are current; mu is held.
func (t *tables) heldOf(leases []driver.Lease) []int {
	held := make([]int, 0, len(leases))
	for _, lease := range leases {
		if t.holds(lease) {
			held = append(held, lease.Lane)
		}
	}
	return distinct(held)
}

// settling applies the results of a settlement to the rows of held lanes.
type settling struct {
	rows *rowSet
	now  time.Time
	held []int
	// found are the records of the results that were not applied yet, nil for
	// missing ones.
	found []*record
	moved []waybill.ID
}

// each applies results to their rows. Done results apply to rows with any
// replay number.
func (g *settling) each(results []driver.Result, done bool, move func(r *record, res driver.Result)) {
	for i, res := range results {
		r := g.found[i]
		if r != nil && !r.left && r.pending() && r.Lane == res.Lane && (done || r.Replay == res.Replay) && slices.Contains(g.held, r.Lane) {
			move(r, res)
			g.moved = append(g.moved, res.ID)
		}
	}
	g.found = g.found[len(results):]
}

// retry defers a row.
func (g *settling) retry(r *record, res driver.Result) {
	g.rows.move(r, store.Delayed, func(next *record) {
		next.Attempts, next.LastError, next.Holds = res.Attempts, driver.CutError(res.Error), res.Holds
		next.deferUntil(g.now.Add(res.Delay))
	})
}

// bury makes a row a dead letter.
func (g *settling) bury(r *record, res driver.Result) {
	g.rows.move(r, store.Dead, func(next *record) {
		next.Attempts, next.LastError, next.Holds = res.Attempts, driver.CutError(res.Error), res.Holds
		next.ended = g.now
	})
}

// settled returns the records of the done, retried and dead results, nil for
// missing ones. It waits until no open transaction has recorded any of them as
// done, because the end of that transaction decides; mu is held, but not during
// the wait.
func (t *tables) settled(ctx context.Context, s driver.Settlement) ([]*record, error) {
	for {
		found, taker := t.named(s)
		if taker == nil {
			return found, nil
		}
		if err := t.await(ctx, taker); err != nil {
			return nil, err
		}
	}
}

// named returns the records that a settlement names, or a transaction that has
// recorded one of them as done.
func (s *rowSet) named(by driver.Settlement) (found []*record, taker *txn) {
	found = make([]*record, 0, len(by.Done)+len(by.Retry)+len(by.Dead))
	for _, results := range [][]driver.Result{by.Done, by.Retry, by.Dead} {
		for _, res := range results {
			r := s.find(&res)
			if r != nil && r.taker != nil {
				return nil, r.taker
			}
			found = append(found, r)
		}
	}
	return found, nil
}

// find returns the record of a result, or nil. The record is nearly always
// among the first ones of its lane, which is faster than a lookup in a large
// map.
func (s *rowSet) find(res *driver.Result) *record {
	if res.Seq > 0 && s.has(res.Lane) {
		if r := s.queues[res.Lane].ready.near(res.Seq); r != nil && r.ID == res.ID {
			return r
		}
	}
	return s.rows[res.ID]
}

// deliver marks a pending event as delivered; mu is held.
func (t *tables) deliver(r *record, history bool, now time.Time) {
	t.freeKey(r)
	if !history {
		t.remove(r)
		t.reaches = never
		return
	}
	if r.state == store.Ready { // nearly always: no hold, no failure
		t.count[store.Ready]--
		t.count[store.Delivered]++
		r.state, r.ended, r.taker = store.Delivered, now, nil
		t.queues[r.Lane].dropReady(r)
		t.ungroup(r)
		r.group = nil
		t.history.add(r)
		return
	}
	t.move(r, store.Delivered, func(next *record) {
		next.Holds, next.LastError, next.ended = false, "", now
	})
}

// finish is a delivery that an open transaction has recorded as done.
type finish struct {
	id      waybill.ID
	lane    int
	history bool
}

// Finish implements [driver.Finisher].
func (s *backend[T]) Finish(ctx context.Context, tx T, done []waybill.Delivery) error {
	if len(done) == 0 {
		return nil
	}
	x, err := s.txnOf(ctx, tx)
	if err != nil {
		return fmt.Errorf("memstore: finish: %w", err)
	}
	if err := x.finish(ctx, done); err != nil {
		return fmt.Errorf("memstore: finish: %w", err)
	}
	return nil
}

// finish records deliveries as done; they take effect when the transaction
// commits.
func (x *txn) finish(ctx context.Context, done []waybill.Delivery) error {
	t := x.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.over {
		return waybill.ErrTxDone
	}
	for _, d := range done {
		if !t.holds(driver.LeaseOf(&d)) {
			return fmt.Errorf("lane %d: %w", d.Position.Lane, waybill.ErrLeaseLost)
		}
	}
	for _, d := range done { // no takeover of these lanes until the end
		l := &t.lanes[d.Position.Lane]
		if l.shared == nil {
			l.shared = make(map[*txn]struct{})
		}
		if _, has := l.shared[x]; !has {
			l.shared[x] = struct{}{}
			x.shares = append(x.shares, d.Position.Lane)
		}
	}
	for _, d := range done {
		r := t.rows[d.ID]
		for r != nil && r.taker != nil && r.taker != x {
			if err := x.wait(ctx, r.taker); err != nil {
				return err
			}
			r = t.rows[d.ID]
		}
		if r != nil && r.pending() && r.taker == nil && r.Lane == d.Position.Lane {
			r.taker = x
			x.finished = append(x.finished, finish{id: d.ID, lane: r.Lane, history: driver.ClaimOf(&d).History})
		}
	}
	return nil
}

// keep undoes the deliveries recorded as done after the first n; mu is held.
func (x *txn) keep(n int) {
	for _, f := range x.finished[n:] {
		if r := x.tables.rows[f.id]; r != nil && r.taker == x {
			r.taker = nil
		}
	}
	x.finished = x.finished[:n]
}
