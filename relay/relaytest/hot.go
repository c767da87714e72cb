package relaytest

import (
	"fmt"
	"strings"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
)

// hotChecks are the checks of the hot path and of waiting events.
func hotChecks[T any]() []check[T] {
	return []check[T]{
		{name: "hot_queue_full", run: hotFull[T]},
		{name: "hot_path", run: hotPath[T]},
		{name: "delayed", run: delayed[T]},
		{name: "hot_and_cold", run: hotAndCold[T]},
		{name: "priority", run: priority[T]},
		{name: "priority_ahead", run: priorityAhead[T]},
		{name: "priority_of_aggregates_ahead", run: priorityOrderedAhead[T]},
		{name: "priority_inside_an_aggregate", run: priorityInside[T]},
	}
}

// gate is a sink that releases deliveries one by one, or all at once.
type gate struct {
	*recorder
	tokens chan struct{}
}

func newGate() *gate {
	g := &gate{recorder: &recorder{}, tokens: make(chan struct{}, 1_000_000)}
	g.answer = func(waybill.Delivery) error {
		<-g.tokens
		return nil
	}
	return g
}

func (g *gate) let(n int) {
	for range n {
		g.tokens <- struct{}{}
	}
}

// hotFull: the write succeeds, a counter and a warning report the full queue,
// and the cold path delivers.
func hotFull[T any](b *env[T]) {
	g := newGate()
	var dropped atomic.Int64
	cfg := b.quick()
	cfg.Workers, cfg.HotQueue = 1, 5
	cfg.Observe = observe.Hooks{HotDropped: func(info observe.HotDroppedInfo) {
		if info.Reason == observe.DropQueueFull {
			dropped.Add(int64(info.Events))
		}
	}}
	b.start(g.sink(), cfg)
	first := event("", 0)
	b.write(first)
	b.await("the worker is busy", func() bool { return g.count() == 1 })
	evs := []waybill.Event{first}
	for i := range 40 {
		ev := event("", i+1)
		evs = append(evs, ev)
		b.write(ev)
	}
	if dropped.Load() == 0 {
		b.Error("no event was counted as dropped from the hot queue")
	}
	if lines := b.logs.find("WARN", "hot queue is full"); len(lines) != 1 {
		b.Errorf("%d warnings say that the hot queue is full, want 1", len(lines))
	}
	g.let(len(evs))
	b.awaitEmpty()
	b.wantOnce(g.recorder, evs)
}

// hotPath: events that this process commits are delivered without polling.
func hotPath[T any](b *env[T]) {
	r := &recorder{}
	cfg := b.quick()
	cfg.PollInterval, cfg.SweepInterval = time.Hour, time.Hour
	var hot atomic.Int64
	cfg.Observe = observe.Hooks{HotEnqueued: func(info observe.HotEnqueuedInfo) { hot.Add(int64(info.Events)) }}
	b.start(r.sink(), cfg)
	var evs []waybill.Event
	for i := range 20 {
		ev := []waybill.Event{event(fmt.Sprint("a", i), 0), event("", i)}
		evs = append(evs, ev...)
		b.write(ev...)
		b.await("delivered", func() bool { return r.count() == len(evs) })
	}
	if hot.Load() == 0 {
		b.Error("no event took the hot path")
	}
	b.wantOnce(r, evs)
}

// delayed: a delayed event is never delivered early, by the database's clock,
// and does not use the hot path.
func delayed[T any](b *env[T]) {
	r := &recorder{}
	arrived := make(chan time.Time, 10)
	r.answer = func(waybill.Delivery) error { arrived <- time.Now(); return nil }
	var notDue atomic.Int64
	cfg := b.quick()
	cfg.Observe = observe.Hooks{HotDropped: func(info observe.HotDroppedInfo) {
		if info.Reason == observe.DropNotDue {
			notDue.Add(int64(info.Events))
		}
	}}
	b.start(r.sink(), cfg)
	b.await("the relay has its lanes", func() bool { return b.stats().Lanes[0].Live })
	warm := event("a", -1)
	b.write(warm)
	b.await("it delivers", func() bool { return b.state(warm.ID) == "delivered" })
	<-arrived
	late, soon := event("a", 0), event("a", 1)
	late.Delay = 400 * time.Millisecond
	before := time.Now()
	b.write(late, soon)
	b.await("the one that is due", func() bool { return len(r.of(soon.ID)) == 1 })
	<-arrived
	if got := <-arrived; got.Sub(before) < late.Delay {
		b.Errorf("it was delivered after %v, before its delay of %v", got.Sub(before), late.Delay)
	}
	b.awaitEmpty()
	b.wantOnce(r, []waybill.Event{warm, late, soon})
	// A delayed event takes its place when it is due: until then it holds
	// nothing back.
	if got := fmt.Sprint(r.payloads("a")); got != "[-1 1 0]" {
		b.Errorf("delivered %s, want [-1 1 0]", got)
	}
	if notDue.Load() == 0 {
		b.Error("the event was not counted as dropped from the hot path")
	}
}

// hotAndCold: with one worker and both waiting, hot events come first, and
// about a third of the deliveries are cold.
func hotAndCold[T any](b *env[T]) {
	const each = 60
	var cold []waybill.Event
	for i := range each + 1 {
		cold = append(cold, event("", 1000+i))
	}
	b.write(cold...)
	g := newGate()
	var hot atomic.Int64
	cfg := b.quick()
	cfg.Workers = 1
	cfg.Observe = observe.Hooks{HotEnqueued: func(info observe.HotEnqueuedInfo) { hot.Add(int64(info.Events)) }}
	b.start(g.sink(), cfg)
	b.await("the worker is busy", func() bool { return g.count() == 1 })
	// A read may be faster than a writer's notification: then the event is
	// cold.
	written := 0
	for ; hot.Load() < each && written < 1000; written++ {
		b.write(event("", written))
	}
	g.let(each + 1)
	b.await("half of them", func() bool { return g.count() > each })
	colds := 0
	for _, d := range g.all()[1 : each+1] {
		if len(d.Payload) == 4 {
			colds++
		}
	}
	if colds < each/4 || colds > each/2 {
		b.Errorf("of %d deliveries %d were cold, want about a third", each, colds)
	}
	g.let(each + written)
	b.awaitEmpty()
}

// priority: higher priority first between aggregates, never inside one.
func priority[T any](b *env[T]) {
	low := []waybill.Event{event("a", 0), event("a", 1), event("b", 2), event("c", 3), event("d", 4), event("", 5)}
	urgent := []waybill.Event{event("a", 6), event("e", 7), event("", 8), event("f", 9)}
	for i, p := range []int{9, 1, 5, 9} {
		urgent[i].Priority = p
	}
	b.write(append(low, urgent...)...)
	r := &recorder{}
	cfg := b.quick()
	cfg.Workers = 1
	b.start(r.sink(), cfg)
	b.awaitEmpty()
	var got []string
	for _, d := range r.all() {
		got = append(got, string(d.Payload))
	}
	if fmt.Sprint(got[:3]) != "[9 8 7]" {
		b.Errorf("the first three of %v were not 9, 8 and 7", got)
	}
	if a := fmt.Sprint(r.payloads("a")); a != "[0 1 6]" {
		b.Errorf("aggregate a: %s, want [0 1 6]", a)
	}
}

// priorityAhead: an urgent event does not wait until a long backlog has been
// read.
func priorityAhead[T any](b *env[T]) {
	const backlog = 3000
	var evs []waybill.Event
	for i := range backlog {
		evs = append(evs, event(fmt.Sprint("a", i%500), i))
	}
	b.write(evs...)
	urgent := event("", backlog)
	urgent.Priority = 5
	b.write(urgent)
	g := newGate()
	cfg := b.quick()
	cfg.Workers, cfg.ColdQueue, cfg.BatchSize = 1, 50, 50
	b.start(g.sink(), cfg)
	b.await("something is being delivered", func() bool { return g.count() >= 1 })
	// Release some deliveries until the urgent event has come.
	b.await("the urgent event", func() bool {
		g.let(1)
		return len(g.of(urgent.ID)) == 1 || g.count() > backlog
	})
	// Lanes are drained side by side, so without reading ahead the end of a
	// small lane comes not much before the end of all lanes.
	if n := g.count(); n > backlog/2 {
		b.Errorf("the urgent event came after %d others", n)
	}
	g.let(backlog + 1)
	b.await("all of them", func() bool { return g.count() == backlog+1 })
	b.wantOrder(g.all())
}

// priorityOrderedAhead: an urgent event of an aggregate does not wait until a
// long backlog of other aggregates has been read. The test counts how many of
// them are delivered first, from the commit of the urgent event on. The relay
// then has at most ColdQueue events that wait, and the sink Workers times
// BatchSize. The relay reads urgent events when it has read ColdQueue more, or
// a sixteenth of the backlog if that is more; a store may estimate the backlog
// by its sequence, of which up to half the numbers are unused. The read before
// that may return ColdQueue. Of four deliveries, three are urgent then.
func priorityOrderedAhead[T any](b *env[T]) {
	const backlog, before = 4000, 300
	cfg := b.quick()
	cfg.Workers, cfg.ColdQueue, cfg.BatchSize = 1, 100, 50
	room := cfg.ColdQueue
	var evs []waybill.Event
	for i := range backlog {
		evs = append(evs, event(fmt.Sprint("a", i), 0))
	}
	b.write(evs...)
	g := newGate()
	g.let(before)
	b.start(g.sink(), cfg)
	b.await("some are delivered", func() bool { return g.count() > before })
	var urgent []waybill.Event
	for i := range 5 {
		ev := event(fmt.Sprint("u", i), 0)
		ev.Priority = 1000
		urgent = append(urgent, ev)
	}
	b.write(urgent...)
	done := g.count()
	limit := room + cfg.Workers*cfg.BatchSize + max(room, 2*backlog/16) + room + (len(urgent)+2)/3
	g.let(backlog)
	b.awaitEmpty()
	evs = append(evs, urgent...)
	b.wantOnce(g.recorder, evs)
	others := 0
	for _, d := range g.all()[done:] {
		switch {
		case d.Priority == 0:
			others++
		case others > limit:
			b.Errorf("the urgent event of %s came after %d others, want at most %d of %d", d.AggregateID, others, limit, backlog-before)
		}
	}
}

// priorityInside: an urgent event never overtakes an event of its own
// aggregate, although a read ahead of the backlog finds the urgent one first:
// whether the other event is unread, waits for its next attempt, or is a dead
// letter that blocks the aggregate.
func priorityInside[T any](b *env[T]) {
	const backlog, aggregates = 2000, 20
	cfg := b.quick()
	cfg.Workers, cfg.ColdQueue, cfg.BatchSize, cfg.MaxAttempts, cfg.OnDead = 1, 20, 50, 3, relay.Block
	var evs, dead []waybill.Event
	add := func(aggregate string, n, priority int) {
		ev := event(aggregate, n)
		ev.Priority = priority
		evs = append(evs, ev)
	}
	for i := range aggregates {
		add(fmt.Sprint("dead", i), 0, 9)
		dead = append(dead, evs[len(evs)-1])
		add(fmt.Sprint("retry", i), 0, 0)
	}
	for i := range backlog {
		add(fmt.Sprint("a", i), 0, 0)
	}
	for i := range aggregates {
		add(fmt.Sprint("plain", i), 0, 0) // the last to be read, except for the urgent ones behind it
	}
	for n := 1; n <= 3; n++ {
		for i := range aggregates {
			add(fmt.Sprint("plain", i), n, 1000)
			add(fmt.Sprint("retry", i), n, 1000)
			add(fmt.Sprint("dead", i), n, 1000)
		}
	}
	b.write(evs...)
	r := &recorder{}
	var blocked atomic.Bool
	blocked.Store(true)
	r.answer = func(d waybill.Delivery) error {
		switch {
		case d.Priority == 9 && blocked.Load():
			return waybill.Permanent(errBoom)
		case d.Priority == 0 && d.Attempt < 3 && strings.HasPrefix(d.AggregateID, "retry"):
			return errBoom
		}
		return nil
	}
	b.start(r.sink(), cfg)
	b.await("all but the blocked ones", func() bool { return b.stats().Ready+b.stats().Failed == 3*aggregates })
	for i := range aggregates {
		if got := r.payloads(fmt.Sprint("dead", i)); len(got) != 1 {
			b.Errorf("aggregate dead%d is blocked, and %v were delivered", i, got)
		}
	}
	blocked.Store(false)
	for _, ev := range dead {
		if _, err := b.ops.Replay(b.Context(), ev.ID); err != nil {
			b.Fatal(err)
		}
	}
	b.awaitEmpty()
	b.wantOrder(r.all())
	delivered := make(map[waybill.ID]bool, len(evs))
	for _, d := range r.all() {
		delivered[d.ID] = true
	}
	for _, ev := range evs {
		if !delivered[ev.ID] {
			b.Errorf("event %s of %s was not delivered", ev.Payload, ev.AggregateID)
		}
	}
}
