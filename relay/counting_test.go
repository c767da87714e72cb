package relay_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// countGate is a store that delays the counts of suspects: the first until the
// test releases it, the others until more rows have been read. It records
// settlements that name an event twice.
type countGate struct {
	driver.Relay
	open chan struct{}

	mu       sync.Mutex
	counts   int
	answered bool                // the first count is
	due      map[waybill.ID]bool // deferred rows that were read
	reads    int
	twice    []waybill.ID
}

func (g *countGate) Settle(ctx context.Context, set driver.Settlement) (driver.Settled, error) {
	g.mu.Lock()
	seen := make(map[waybill.ID]bool)
	for _, list := range [][]driver.Result{set.Done, set.Retry, set.Dead} {
		for _, r := range list {
			if seen[r.ID] {
				g.twice = append(g.twice, r.ID)
			}
			seen[r.ID] = true
		}
	}
	if set.Durable {
		g.counts++
	}
	first := set.Durable && g.counts == 1
	g.mu.Unlock()
	switch {
	case first:
		<-g.open
	case set.Durable:
		g.awaitReads()
	}
	settled, err := g.Relay.Settle(ctx, set)
	g.mu.Lock()
	defer g.mu.Unlock()
	g.answered = g.answered || first
	return settled, err
}

func (g *countGate) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	p, err := g.Relay.Due(ctx, lanes, limit)
	g.mu.Lock()
	defer g.mu.Unlock()
	for i := range p.Rows {
		g.due[p.Rows[i].ID] = true
	}
	return p, err
}

func (g *countGate) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	g.mu.Lock()
	g.reads++
	g.mu.Unlock()
	return g.Relay.Fetch(ctx, from, limit)
}

// is evaluates a condition under the lock.
func (g *countGate) is(ok func() bool) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	return ok()
}

// awaitReads returns when everything that has been answered by now has been
// handled: reads run one after another, and each is handled before the next.
func (g *countGate) awaitReads() {
	var from int
	g.is(func() bool { from = g.reads; return true })
	tick := time.NewTicker(time.Millisecond)
	defer tick.Stop()
	for !g.is(func() bool { return g.reads >= from+5 }) {
		<-tick.C
	}
}

// TestHoldDuringACount: while the attempt of a suspect is being counted, an
// operator replays a dead letter that comes before it. The suspect is not
// forgotten, which would settle two under one id. The suspect is not mistaken
// for the next one, which would then not be counted. The suspect waits for the
// replayed event.
func TestHoldDuringACount(t *testing.T) {
	for _, late := range []bool{false, true} {
		t.Run(fmt.Sprint("its delivery ends after the count: ", late), func(t *testing.T) { holdDuringACount(t, late) })
	}
}

func holdDuringACount(t *testing.T, late bool) {
	f := newFixtureOf(t, memstore.Config{Lanes: 1})
	first, second, other := event("a", 1), event("a", 2), event("b", 1)
	for _, ev := range []*waybill.Event{&first, &second, &other} {
		ev.ID = waybill.NewID()
	}
	state := func(id waybill.ID) store.Record {
		found, err := f.db.Driver().OutboxAdmin.Find(context.Background(), id)
		if err != nil || len(found) != 1 {
			t.Errorf("%v: %v, %v", id, err, found)
			return store.Record{}
		}
		return found[0]
	}
	f.write(first)
	stop := f.start(relay.SinkFunc(func(context.Context, waybill.Delivery) error { return waybill.Permanent(errors.New("never")) }), relay.Config{})
	await(t, "it is dead", func() bool { return state(first.ID).State == store.Dead })
	if err := stop(); err != nil {
		t.Fatal(err)
	}
	f.write(second, other)
	f.abandonLane()

	g := &countGate{Relay: f.db.Driver().Relay, open: make(chan struct{}), due: make(map[waybill.ID]bool)}
	var done atomic.Bool
	sink := relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		switch {
		case d.ID == first.ID:
			if late {
				await(t, "the count is answered", func() bool { return g.is(func() bool { return g.answered }) })
				g.awaitReads()
			}
			done.Store(true)
		case d.ID == second.ID && !done.Load():
			t.Error("the second event is delivered before the first")
		case d.ID == other.ID && state(d.ID).Attempts != d.Attempt:
			t.Error("the attempt of another suspect is not counted")
		}
		return nil
	})
	r, err := relay.New(testroles.Of[any](g), sink, relay.Config{PollInterval: time.Millisecond, Lease: time.Minute, Heartbeat: time.Second})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- r.Run(ctx) }()
	await(t, "the second is being counted", func() bool { return g.is(func() bool { return g.counts == 1 }) })
	if _, err := f.db.Driver().OutboxAdmin.Replay(t.Context(), []waybill.ID{first.ID}); err != nil {
		t.Fatal(err)
	}
	await(t, "the first is read", func() bool { return g.is(func() bool { return g.due[first.ID] }) })
	g.awaitReads()
	close(g.open)
	await(t, "all are settled", func() bool {
		s, err := f.db.Driver().OutboxAdmin.Stats(t.Context())
		return err == nil && s.Ready+s.Failed+s.Scheduled+s.Dead == 0
	})
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
	if len(g.twice) > 0 {
		t.Errorf("settled twice at a time: %v", g.twice)
	}
	for _, id := range []waybill.ID{first.ID, second.ID, other.ID} {
		if row := state(id); row.State != store.Delivered {
			t.Errorf("%v is %v: %s", id, row.State, row.LastError)
		}
	}
}

// abandonLane leaves the only lane to an owner that has crashed.
func (f *fixture) abandonLane() {
	f.Helper()
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	_, beat := f.db.Driver().Relay.Heartbeat(f.Context(), node, time.Minute)
	_, acquired := f.db.Driver().Relay.Acquire(f.Context(), node, []int{0}, 64)
	if err := errors.Join(beat, acquired, f.db.Driver().Relay.Leave(f.Context(), node)); err != nil {
		f.Fatal(err)
	}
}
