package relaytest

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// stopChecks are the checks of stopping, and of crashed owners.
func stopChecks[T any]() []check[T] {
	return []check[T]{
		{name: "graceful_stop", run: graceful[T]},
		{name: "fair_share", run: fairShare[T]},
		{name: "run_twice", run: runTwice[T]},
		{name: "drain_timeout", run: drainTimeout[T]},
		{name: "restarts_in_an_outage", run: restartsInOutage[T]},
		{name: "rebalances_in_an_outage", run: rebalancesInOutage[T]},
		{name: "owner_died", run: ownerDied[T]},
		{name: "stale_owner", run: staleOwner[T]},
	}
}

// graceful: deliveries in flight finish and are settled, the lanes are
// released, and another node acquires them soon.
func graceful[T any](b *env[T]) {
	g := newGate()
	evs := []waybill.Event{event("a", 0), event("a", 1), event("b", 2)}
	b.write(evs...)
	cfg := b.quick()
	cfg.DrainTimeout, cfg.Lease, cfg.Heartbeat = time.Minute, time.Hour, 100*time.Millisecond
	run := b.start(g.sink(), cfg)
	b.await("two are with the sink", func() bool { return g.count() == 2 })
	r := &recorder{}
	other := cfg
	b.startOn(b.second().Relay, r.sink(), other)
	b.await("the other is there", func() bool { return len(b.stats().Nodes) == 2 })
	b.stopWith(run, g, 2)
	// With a lease of an hour, only released lanes can be acquired.
	b.awaitEmpty()
	if n := g.count(); n != 2 {
		b.Errorf("the first relay delivered %d events, want the 2 that were in flight", n)
	}
	b.wantOnce(r, []waybill.Event{evs[1]})
	b.await("every lane has an owner", func() bool {
		return !slices.ContainsFunc(b.stats().Lanes, func(l store.LaneState) bool { return !l.Live })
	})
}

// stopWith stops a relay that has n events in flight; its sink releases them
// when the relay takes no more events.
func (b *env[T]) stopWith(run *running, g *gate, n int) {
	b.Helper()
	stopped := make(chan error, 1)
	go func() { stopped <- run.stop() }()
	b.await("it has stopped taking work", func() bool { return len(b.logs.find("relay stopping")) == 1 })
	g.let(n)
	if err := <-stopped; err != nil {
		b.Fatal(err)
	}
}

// fairShare: nodes that join get their share, also from a running relay; when
// they leave, the remaining node gets all lanes.
func fairShare[T any](b *env[T]) {
	total := len(b.stats().Lanes)
	if total < 4 {
		b.Skipf("the store has %d lanes", total)
	}
	owned := func() map[waybill.ID]int {
		out := make(map[waybill.ID]int)
		for _, l := range b.stats().Lanes {
			if l.Live {
				out[l.Owner]++
			}
		}
		return out
	}
	fair := func(nodes int) func() bool {
		return func() bool {
			own := owned()
			sum := 0
			for _, n := range own {
				if n < total/nodes || n > total/nodes+1 {
					return false
				}
				sum += n
			}
			return len(own) == nodes && sum == total
		}
	}
	r := &recorder{}
	b.startOn(b.DB.Relay, r.sink(), b.quick())
	b.await("one has all", fair(1))
	two := b.startOn(b.second().Relay, r.sink(), b.quick())
	b.await("two have half each", fair(2))
	three := b.startOn(b.second().Relay, r.sink(), b.quick())
	b.await("three have a third each", fair(3))
	for _, run := range []*running{two, three} {
		if err := run.stop(); err != nil {
			b.Fatal(err)
		}
	}
	b.await("one has all again", fair(1))
}

// runTwice: a second Run is an error, and a relay can run again after it has
// stopped.
func runTwice[T any](b *env[T]) {
	r := &recorder{}
	rel, err := relay.New(b.DB, r.sink(), b.quick())
	if err != nil {
		b.Fatal(err)
	}
	for range 2 {
		ctx, cancel := context.WithCancel(b.Context())
		done := make(chan error, 1)
		go func() { done <- rel.Run(ctx) }()
		b.await("it runs", func() bool { return len(b.stats().Nodes) == 1 })
		if err := rel.Run(ctx); err == nil {
			b.Error("a second Run returned nil")
		}
		cancel()
		if err := <-done; err != nil {
			b.Errorf("Run: %v", err)
		}
		b.await("it has left", func() bool { return len(b.stats().Nodes) == 0 })
	}
}

// drainTimeout: events whose deliveries do not finish stay pending, uncounted,
// and are delivered after a restart.
func drainTimeout[T any](b *env[T]) {
	var ended error
	r := &recorder{}
	stuck := relay.SinkFunc(func(ctx context.Context, d waybill.Delivery) error {
		_ = r.take(d)
		<-ctx.Done()
		ended = context.Cause(ctx)
		return ctx.Err()
	})
	cfg := b.quick()
	cfg.Workers, cfg.DrainTimeout = 1, 50*time.Millisecond
	evs := []waybill.Event{event("a", 0), event("b", 1)}
	run := b.start(stuck, cfg)
	b.write(evs...)
	b.await("one is with the sink", func() bool { return r.count() == 1 })
	if err := run.stop(); err != nil {
		b.Fatal(err)
	}
	if ended == nil {
		b.Error("the sink's context did not end")
	}
	if s := b.stats(); s.Ready != 2 || s.Failed != 0 || s.MaxAttempts != 0 || s.Dead != 0 {
		b.Errorf("the outbox: %s; want 2 ready, uncounted", b.picture())
	}
	r2 := &recorder{}
	b.start(r2.sink(), b.quick())
	b.awaitEmpty()
	b.wantOnce(r2, evs)
}

// restartsInOutage: a destination hangs, and the relay is restarted again and
// again: no attempt is spent, also of an event that is suspect from the
// beginning.
func restartsInOutage[T any](b *env[T]) {
	evs := []waybill.Event{event("a", 0), event("", 1)}
	b.write(evs...)
	b.abandonLanes()
	cfg := b.quick()
	cfg.MaxAttempts, cfg.DrainTimeout = 2, 50*time.Millisecond
	for range 4 {
		r := &recorder{}
		run := b.start(relay.SinkFunc(func(ctx context.Context, d waybill.Delivery) error {
			_ = r.take(d)
			<-ctx.Done()
			return waybill.Unavailable(context.Cause(ctx))
		}), cfg)
		b.await("one is with the sink", func() bool { return r.count() > 0 })
		if err := run.stop(); err != nil {
			b.Fatal(err)
		}
		if s := b.stats(); s.MaxAttempts != 0 || s.Dead != 0 {
			b.Errorf("up to %d attempts spent, %d dead; want none", s.MaxAttempts, s.Dead)
		}
	}
	r := &recorder{}
	b.start(r.sink(), cfg)
	b.awaitEmpty()
	b.wantOnce(r, evs)
}

// rebalancesInOutage: a destination hangs, and the lanes move to other nodes
// again and again: no attempt is spent, also of an event whose attempt was
// counted before its delivery.
func rebalancesInOutage[T any](b *env[T]) {
	evs := []waybill.Event{event("a", 0), event("", 1)}
	b.write(evs...)
	b.abandonLanes()
	cfg := b.quick()
	cfg.MaxAttempts, cfg.DrainTimeout = 2, 50*time.Millisecond
	for range 3 {
		r := &recorder{}
		db := &crowded{Relay: b.DB.Relay}
		run := b.startOn(db, relay.SinkFunc(func(ctx context.Context, d waybill.Delivery) error {
			_ = r.take(d)
			<-ctx.Done()
			return waybill.Unavailable(context.Cause(ctx))
		}), cfg)
		b.await("one is with the sink", func() bool { return r.count() > 0 })
		db.others.Store(true)
		b.await("it has no lane", func() bool {
			return !slices.ContainsFunc(b.stats().Lanes, func(l store.LaneState) bool { return l.Live })
		})
		if s := b.stats(); s.MaxAttempts != 0 || s.Dead != 0 {
			b.Errorf("up to %d attempts spent, %d dead; want none", s.MaxAttempts, s.Dead)
		}
		if err := run.stop(); err != nil {
			b.Fatal(err)
		}
	}
	r := &recorder{}
	b.start(r.sink(), cfg)
	b.awaitEmpty()
	b.wantOnce(r, evs)
}

// crowded is a store that, once others is set, reports so many other nodes that
// a relay has to release all of its lanes.
type crowded struct {
	driver.Relay
	others atomic.Bool
}

func (c *crowded) Heartbeat(ctx context.Context, node store.Node, lease time.Duration) (store.Membership, error) {
	m, err := c.Relay.Heartbeat(ctx, node, lease)
	if err == nil && c.others.Load() {
		for i := range m.Lanes {
			m.Nodes = append(m.Nodes, store.Node{ID: waybill.ID{15: byte(i)}, Relay: node.Relay})
		}
	}
	return m, err
}

// abandonLanes makes all lanes look as if their owner had crashed with a full
// window.
func (b *env[T]) abandonLanes() {
	b.Helper()
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	m, err := b.DB.Relay.Heartbeat(b.Context(), node, time.Minute)
	if err != nil {
		b.Fatal(err)
	}
	var lanes []int
	for _, l := range m.Lanes {
		lanes = append(lanes, l.Lane)
	}
	if _, err := b.DB.Relay.Acquire(b.Context(), node, lanes, 64); err != nil {
		b.Fatal(err)
	}
	if err := b.DB.Relay.Leave(b.Context(), node); err != nil {
		b.Fatal(err)
	}
}

// ownerDied: another node delivers all events after the lease ends.
func ownerDied[T any](b *env[T]) {
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	m, err := b.DB.Relay.Heartbeat(b.Context(), node, 300*time.Millisecond)
	if err != nil {
		b.Fatal(err)
	}
	var lanes []int
	for _, l := range m.Lanes {
		lanes = append(lanes, l.Lane)
	}
	if _, err := b.DB.Relay.Acquire(b.Context(), node, lanes, 64); err != nil {
		b.Fatal(err)
	}
	var evs []waybill.Event
	for i := range 100 {
		evs = append(evs, event(fmt.Sprint("a", i%9), i))
	}
	b.write(evs...)
	r := &recorder{}
	b.start(r.sink(), b.quick())
	b.awaitEmpty()
	b.wantOnce(r, evs)
	b.wantOrder(r.all())
}

// staleOwner: settlements of a relay whose lanes were taken over are rejected,
// and the relay continues with the lanes that it still owns.
func staleOwner[T any](b *env[T]) {
	g := newGate()
	ev := event("a", 0)
	db := &deaf{Relay: b.DB.Relay}
	cfg := b.quick()
	cfg.Lease = time.Minute // it must not expire during the test
	b.startOn(db, g.sink(), cfg)
	b.write(ev)
	b.await("it is with the sink", func() bool { return g.count() == 1 })
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	leases := b.takeAll(node, db)
	g.let(1)
	b.await("the loss is logged", func() bool { return len(b.logs.find("lane was lost")) > 0 })
	if got := b.state(ev.ID); got != "ready" {
		b.Errorf("the event is %s: a stale settlement was accepted", got)
	}
	if err := b.DB.Relay.Release(b.Context(), leases, false); err != nil {
		b.Fatal(err)
	}
	if err := b.DB.Relay.Leave(b.Context(), node); err != nil {
		b.Fatal(err)
	}
	g.let(5)
	b.awaitEmpty()
	if n := len(g.of(ev.ID)); n != 2 {
		b.Errorf("it was delivered %d times, want 2", n)
	}
	if row := b.find(ev.ID); row.Attempts != 0 {
		b.Errorf("%d attempts", row.Attempts)
	}
}

// takeAll takes all lanes for another node, as if the relay had been paused for
// longer than its lease. Meanwhile the relay must not learn that it has left:
// it would take back its lanes as those of a crashed node, and count the
// event's attempt before the delivery.
func (b *env[T]) takeAll(node store.Node, db *deaf) []driver.Lease {
	b.Helper()
	db.held.Lock()
	defer db.held.Unlock()
	s := b.stats()
	if err := b.DB.Relay.Leave(b.Context(), s.Nodes[0]); err != nil {
		b.Fatal(err)
	}
	if _, err := b.DB.Relay.Heartbeat(b.Context(), node, time.Minute); err != nil {
		b.Fatal(err)
	}
	var lanes []int
	for _, l := range s.Lanes {
		lanes = append(lanes, l.Lane)
	}
	leases, err := b.DB.Relay.Acquire(b.Context(), node, lanes, 64)
	if err != nil || len(leases) != len(lanes) {
		b.Fatalf("%d of %d lanes were taken: %v", len(leases), len(lanes), err)
	}
	return leases
}

// deaf is a store whose heartbeats block while they are held.
type deaf struct {
	driver.Relay
	held sync.Mutex
}

func (d *deaf) Heartbeat(ctx context.Context, node store.Node, lease time.Duration) (store.Membership, error) {
	d.held.Lock()
	defer d.held.Unlock()
	return d.Relay.Heartbeat(ctx, node, lease)
}
