package linear

import (
	"context"
	"slices"
	"sync"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

const (
	// lanesPerRun is the number of lanes of a run on a store that can have
	// several.
	lanesPerRun = 2
	// eventsPerLane is the number of events of each lane of a run.
	eventsPerLane = 3
)

// relayTarget is a store for one run, and the lanes of the run, which no other
// run has used.
type relayTarget struct {
	db     relayStore
	lanes  []int
	faults faults
	// write commits events.
	write func(ctx context.Context, evs ...waybill.Event) error
}

// relayOver returns the target of a store.
func relayOver[T any](t *testing.T, db driver.Roles[T], f faults, lanes ...int) relayTarget {
	t.Helper()
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	return relayTarget{
		db: struct {
			driver.Relay
			driver.OutboxAdmin
		}{db.Relay, db.OutboxAdmin},
		lanes: lanes, faults: f,
		write: func(ctx context.Context, evs ...waybill.Event) error {
			return box.InTx(ctx, func(ctx context.Context, tx T) error { return box.Write(ctx, tx, evs...) })
		},
	}
}

// runRelay runs clients against a store with new events and returns their
// history.
func runRelay(t *testing.T, target relayTarget, seed uint64) *history {
	t.Helper()
	log := newHistory()
	r := &relayRecorder{db: target.db, log: log, nodes: []store.Node{{}}, lanes: target.lanes, events: make(map[int][]waybill.ID)}
	for range clients {
		r.nodes = append(r.nodes, store.Node{ID: waybill.NewID(), Relay: "linear"})
	}
	for !r.full() {
		target.fill(t, r)
	}
	b := &board{recorder: r, seen: make(map[waybill.ID]event), leases: make(map[int][]driver.Lease)}
	run(t, seed, log, target.faults, b.step)
	return log
}

// full reports whether every lane has enough events.
func (r *relayRecorder) full() bool {
	return !slices.ContainsFunc(r.lanes, func(lane int) bool { return len(r.events[lane]) < eventsPerLane })
}

// fill writes events and keeps those of the run's lanes.
func (target *relayTarget) fill(t *testing.T, r *relayRecorder) {
	t.Helper()
	var evs []waybill.Event
	for range 20 {
		id := waybill.NewID()
		evs = append(evs, waybill.Event{ID: id, Type: "Tested", Payload: []byte("{}"), AggregateType: "thing", AggregateID: id.String()})
	}
	if err := target.write(t.Context(), evs...); err != nil {
		t.Fatal(err)
	}
	for _, ev := range evs {
		records, err := target.db.Find(t.Context(), ev.ID)
		if err != nil || len(records) != 1 {
			t.Fatalf("the written event was found %d times: %v", len(records), err)
		}
		lane := records[0].Lane
		if slices.Contains(r.lanes, lane) && len(r.events[lane]) < eventsPerLane {
			r.events[lane] = append(r.events[lane], ev.ID)
		}
	}
}

// board holds what the clients know: every client may use the leases and the
// reads of every other one, as a process that was paused does.
type board struct {
	recorder *relayRecorder

	mu     sync.Mutex
	seen   map[waybill.ID]event
	leases map[int][]driver.Lease
}

// step makes one call. A node's own calls are made by one client, one after the
// other, as a relay makes them.
func (b *board) step(c *client) {
	r, node := b.recorder, c.number+1
	switch n := c.rng.IntN(100); {
	case n < 13:
		r.heartbeat(c, node, long)
	case n < 17:
		r.heartbeat(c, node, over)
	case n < 36:
		asked := r.lanes
		if c.chance(1, 2) {
			asked = []int{pick(c, r.lanes)}
		}
		b.keep(r.acquire(c, node, asked, 1+c.rng.IntN(9)))
	case n < 38:
		r.leave(c, node)
	case n < 44:
		if l, ok := b.lease(c, pick(c, r.lanes)); ok {
			r.release(c, l, c.chance(1, 2))
		}
	case n < 74:
		b.settle(c)
	case n < 92:
		b.find(c, pick(c, r.events[pick(c, r.lanes)]))
	case n < 98:
		r.replay(c, pick(c, r.events[pick(c, r.lanes)]))
	default:
		r.discard(c, pick(c, r.events[pick(c, r.lanes)]))
	}
}

func (b *board) keep(leases []driver.Lease) {
	b.mu.Lock()
	defer b.mu.Unlock()
	for _, l := range leases {
		b.leases[l.Lane] = append(b.leases[l.Lane], l)
	}
}

// lease returns a lease of a lane: nearly always the last one, sometimes an
// earlier one, and rarely one that no store assigned.
func (b *board) lease(c *client, lane int) (driver.Lease, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	known := b.leases[lane]
	if len(known) == 0 {
		return driver.Lease{}, false
	}
	l := known[len(known)-1]
	switch n := c.rng.IntN(10); {
	case n < 2:
		l = pick(c, known)
	case n == 2:
		l.Token = waybill.NewID()
	case n == 3 && c.chance(1, 2):
		l.Epoch++
	}
	return l, true
}

func (b *board) find(c *client, id waybill.ID) {
	if found, ok := b.recorder.find(c, id); ok {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.seen[id] = found
	}
}

// settle settles one or two events of some lanes. A settlement with a delivered
// event names no other event of any lane: pgstore searches the event in a
// second statement if the event is not in the table where the client saw it.
func (b *board) settle(c *client) {
	asked := b.recorder.lanes
	done := c.chance(1, 8)
	if done || c.chance(2, 3) {
		asked = []int{pick(c, asked)}
	}
	s := driver.Settlement{History: c.chance(1, 2)}
	for _, lane := range asked {
		l, ok := b.lease(c, lane)
		if !ok {
			continue
		}
		s.Leases = append(s.Leases, l)
		ids := b.recorder.events[lane]
		first := c.rng.IntN(len(ids))
		res := b.result(lane, ids[first])
		switch {
		case done:
			s.Done = append(s.Done, res)
			continue
		case c.chance(1, 4):
			s.Dead = append(s.Dead, res)
		default:
			s.Retry = append(s.Retry, res)
		}
		if second := c.rng.IntN(len(ids)); second != first {
			s.Retry = append(s.Retry, b.result(lane, ids[second]))
		}
	}
	if len(s.Leases) > 0 {
		b.recorder.settle(c, s)
	}
}

// result returns the result of an event's next attempt.
func (b *board) result(lane int, id waybill.ID) driver.Result {
	b.mu.Lock()
	defer b.mu.Unlock()
	seen := b.seen[id]
	return driver.Result{
		Lane: lane, ID: id, Late: seen.state == store.Delayed, Replay: seen.replay, Attempts: seen.attempts + 1, Delay: long, Error: "unavailable",
	}
}
