package linear

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// relayStore is the part of a store that the relay's runs call.
type relayStore interface {
	driver.Lanes
	driver.Settler
	driver.Inspector
	driver.DeadLetters
}

// relayRecorder calls a store and records the calls.
type relayRecorder struct {
	db    relayStore
	log   *history
	nodes []store.Node // the first has no id: it is the owner of a released lane
	lanes []int
	// events are the events of each lane.
	events map[int][]waybill.ID
}

// lanePart and eventPart are the names of partitions.
func lanePart(lane int) string { return fmt.Sprintf("lane %d", lane) }

func eventPart(id waybill.ID) string { return "event " + short(id) }

// partsOf returns the partitions of operations on a lane: of the lane, and of
// its events, which need the lane's lease.
func (r *relayRecorder) partsOf(lane int) []string {
	parts := []string{lanePart(lane)}
	for _, id := range r.events[lane] {
		parts = append(parts, eventPart(id))
	}
	return parts
}

// add records an operation. Operations of one call share its time; row
// separates them in a picture.
func (r *relayRecorder) add(c *client, row int, s span, in relayInput, out relayOutput, parts ...string) {
	if s.lost() && readOnly(in.op) {
		return
	}
	in.span = s
	r.log.add(c.number+row*clients, s, in, out, parts...)
}

// everywhere records an operation in all partitions.
func (r *relayRecorder) everywhere(c *client, s span, in relayInput) {
	for _, lane := range r.lanes {
		r.add(c, 0, s, in, relayOutput{}, r.partsOf(lane)...)
	}
}

func (r *relayRecorder) heartbeat(c *client, node int, lease time.Duration) {
	var m store.Membership
	s, _ := c.call(func(ctx context.Context) (err error) {
		m, err = r.db.Heartbeat(ctx, r.nodes[node], lease)
		return err
	})
	r.everywhere(c, s, relayInput{op: opBeat, node: node, live: lease > 0})
	for _, l := range m.Lanes {
		if slices.Contains(r.lanes, l.Lane) {
			owner := slices.IndexFunc(r.nodes, func(n store.Node) bool { return n.ID == l.Owner })
			r.add(c, 1, s, relayInput{op: opLook}, relayOutput{owner: owner, epoch: l.Epoch}, lanePart(l.Lane))
		}
	}
}

func (r *relayRecorder) acquire(c *client, node int, lanes []int, window int) []driver.Lease {
	var leases []driver.Lease
	s, err := c.call(func(ctx context.Context) (err error) {
		leases, err = r.db.Acquire(ctx, r.nodes[node], lanes, window)
		return err
	}, waybill.ErrLeaseLost)
	if s.lost() {
		leases = nil
	}
	for _, lane := range lanes {
		out := relayOutput{refused: errors.Is(err, waybill.ErrLeaseLost)}
		for _, l := range leases {
			if l.Lane == lane {
				out.granted = &l
			}
		}
		r.add(c, 0, s, relayInput{op: opAcquire, node: node, window: window}, out, r.partsOf(lane)...)
	}
	return leases
}

func (r *relayRecorder) release(c *client, l driver.Lease, dirty bool) {
	s, _ := c.call(func(ctx context.Context) error { return r.db.Release(ctx, []driver.Lease{l}, dirty) })
	r.add(c, 0, s, relayInput{op: opRelease, lease: l, dirty: dirty}, relayOutput{}, r.partsOf(l.Lane)...)
}

func (r *relayRecorder) leave(c *client, node int) {
	s, _ := c.call(func(ctx context.Context) error { return r.db.Leave(ctx, r.nodes[node]) })
	r.everywhere(c, s, relayInput{op: opLeave, node: node})
}

func (r *relayRecorder) settle(c *client, settlement driver.Settlement) {
	var settled driver.Settled
	s, _ := c.call(func(ctx context.Context) (err error) {
		settled, err = r.db.Settle(ctx, settlement)
		return err
	})
	for _, l := range settlement.Leases {
		held := slices.Contains(settled.Held, l.Lane)
		r.add(c, 0, s, relayInput{op: opFence, lease: l}, relayOutput{held: held}, lanePart(l.Lane))
		for state, results := range map[store.State][]driver.Result{
			store.Delivered: settlement.Done, store.Delayed: settlement.Retry, store.Dead: settlement.Dead,
		} {
			for _, res := range results {
				if res.Lane != l.Lane {
					continue
				}
				in := relayInput{
					op: opSettle, lease: l, state: state, history: settlement.History, attempts: res.Attempts, replay: res.Replay,
				}
				r.add(c, 0, s, in, relayOutput{held: held, moved: slices.Contains(settled.Moved, res.ID)}, eventPart(res.ID))
			}
		}
	}
}

// find reads an event. It reports whether the answer arrived.
func (r *relayRecorder) find(c *client, id waybill.ID) (event, bool) {
	var records []store.Record
	s, _ := c.call(func(ctx context.Context) (err error) {
		records, err = r.db.Find(ctx, id)
		return err
	})
	if s.lost() {
		return event{}, false
	}
	var found event
	switch len(records) {
	case 0:
	case 1:
		found = event{exists: true, state: records[0].State, attempts: records[0].Attempts, replay: records[0].Replay}
	default:
		c.t.Errorf("event %s is in %d tables", id, len(records))
	}
	r.add(c, 0, s, relayInput{op: opFind}, relayOutput{found: found}, eventPart(id))
	return found, true
}

func (r *relayRecorder) replay(c *client, id waybill.ID) {
	var replayed store.Replayed
	s, _ := c.call(func(ctx context.Context) (err error) {
		replayed, err = r.db.Replay(ctx, []waybill.ID{id})
		return err
	})
	r.add(c, 0, s, relayInput{op: opReplay}, relayOutput{moved: slices.Contains(replayed.IDs, id)}, eventPart(id))
}

func (r *relayRecorder) discard(c *client, id waybill.ID) {
	var ids []waybill.ID
	s, _ := c.call(func(ctx context.Context) (err error) {
		ids, err = r.db.Discard(ctx, []waybill.ID{id})
		return err
	})
	r.add(c, 0, s, relayInput{op: opDiscard}, relayOutput{moved: slices.Contains(ids, id)}, eventPart(id))
}
