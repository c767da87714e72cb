package relaytest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
)

// orderChecks are the checks of order, and of several relays.
func orderChecks[T any]() []check[T] {
	return []check[T]{
		{name: "exactly_once", run: exactlyOnce[T]},
		{name: "order_with_retries", run: orderWithRetries[T]},
		{name: "order_through_hand_over", run: orderThroughHandOver[T]},
		{name: "ordered_sink", run: orderedSink[T]},
		{name: "ordered_sink_down", run: orderedSinkDown[T]},
		{name: "one_aggregate_at_a_time", run: oneAtATime[T]},
		{name: "route", run: routes[T]},
		{name: "fan", run: fans[T]},
		{name: "other_name", run: otherName[T]},
	}
}

// exactlyOnce: N workers, M events, two relays: when nothing fails, each event
// is delivered once.
func exactlyOnce[T any](b *env[T]) {
	const events = 1500
	r := &recorder{}
	cfg := b.quick()
	cfg.Workers = 8
	b.startOn(b.DB.Relay, r.sink(), cfg)
	b.startOn(b.second().Relay, r.sink(), cfg)
	var evs []waybill.Event
	for i := 0; i < events; i += 30 {
		var some []waybill.Event
		for j := range 30 {
			name := fmt.Sprint("a", (i+j)%70)
			if j%5 == 0 {
				name = ""
			}
			some = append(some, event(name, i+j))
		}
		b.write(some...)
		evs = append(evs, some...)
	}
	b.awaitEmpty()
	b.wantOnce(r, evs)
	b.wantOrder(r.all())
}

// anyPriority gives events random priorities: half of them have none.
func anyPriority(evs []waybill.Event) []waybill.Event {
	for i := range evs {
		evs[i].Priority = max(rand.IntN(6)-2, 0)
	}
	return evs
}

// orderWithRetries: aggregates keep their order although every third delivery
// fails, over two relays, for any priorities of the events. The relays have
// room for few events, so that urgent ones are read ahead of the others.
func orderWithRetries[T any](b *env[T]) {
	const aggregates, each = 12, 25
	r := &recorder{answer: func(waybill.Delivery) error {
		if rand.IntN(3) == 0 {
			return errBoom
		}
		return nil
	}}
	cfg := b.quick()
	cfg.MaxAttempts, cfg.BackoffBase, cfg.BackoffMax = -1, time.Millisecond, 4*time.Millisecond
	cfg.ColdQueue, cfg.BatchSize = 5, 5
	for n := range each {
		var some []waybill.Event
		for a := range aggregates {
			some = append(some, event(fmt.Sprint("a", a), n))
		}
		b.write(anyPriority(some)...)
		if n == each/2 {
			b.startOn(b.DB.Relay, r.sink(), cfg)
			b.startOn(b.second().Relay, r.sink(), cfg)
		}
	}
	b.awaitEmpty()
	b.wantOrder(r.all())
	done := make(map[string]int)
	for _, d := range r.all() {
		done[d.AggregateID] = max(done[d.AggregateID], 1)
	}
	if len(done) != aggregates {
		b.Errorf("%d aggregates, want %d", len(done), aggregates)
	}
}

// orderThroughHandOver: relays come and go while events of all priorities are
// written and delivered.
func orderThroughHandOver[T any](b *env[T]) {
	const aggregates, each = 10, 60
	r := &recorder{}
	cfg := b.quick()
	cfg.ColdQueue, cfg.BatchSize = 10, 10
	written := make(chan struct{})
	go func() {
		defer close(written)
		for n := range each {
			var some []waybill.Event
			for a := range aggregates {
				some = append(some, event(fmt.Sprint("a", a), n))
			}
			if err := b.tryWrite(anyPriority(some)...); err != nil {
				b.Errorf("write: %v", err)
				return
			}
		}
	}()
	b.startOn(b.DB.Relay, r.sink(), cfg)
	for range 3 {
		before := r.count()
		guest := b.startOn(b.second().Relay, r.sink(), cfg)
		b.await("some are delivered", func() bool { return r.count() > before || r.count() == aggregates*each })
		b.await("the guest is known", func() bool { return len(b.stats().Nodes) == 2 })
		if err := guest.stop(); err != nil {
			b.Fatal(err)
		}
	}
	<-written
	b.awaitEmpty()
	b.wantOrder(r.all())
	if got := r.count(); got != aggregates*each {
		b.Errorf("%d deliveries, want %d: a hand-over in good order repeats nothing", got, aggregates*each)
	}
}

// keeper is an ordered sink: it delivers several events of an aggregate in one
// call, and stops the aggregate at its first failure.
type keeper struct {
	*recorder
	several atomic.Bool // events of one aggregate in one call
	fail    func(d waybill.Delivery) bool
}

func (*keeper) StopsAtFailure() {}

func (k *keeper) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	stopped := make(map[string]bool)
	count := make(map[string]int)
	for i, d := range batch {
		count[d.AggregateID]++
		switch {
		case stopped[d.AggregateID]:
			results[i] = errors.New("not delivered: one before it failed")
		case k.fail(d):
			stopped[d.AggregateID] = true
			results[i] = errBoom
		default:
			results[i] = k.take(d)
		}
	}
	for _, n := range count {
		if n > 1 {
			k.several.Store(true)
		}
	}
	return results
}

// orderedSink: an ordered sink may get several events of an aggregate at once;
// events behind a failure are not counted.
func orderedSink[T any](b *env[T]) {
	const each = 40
	k := &keeper{recorder: &recorder{}, fail: func(d waybill.Delivery) bool { return d.Attempt == 1 && string(d.Payload) == "7" }}
	var evs []waybill.Event
	for n := range each {
		evs = append(evs, event("a", n), event("b", n))
	}
	b.write(evs...)
	b.start(k, b.quick())
	b.awaitEmpty()
	b.wantOnce(k.recorder, evs)
	b.wantOrder(k.all())
	if !k.several.Load() {
		b.Error("it never got two events of one aggregate in one call")
	}
	for _, ev := range evs {
		want := 0
		if string(ev.Payload) == "7" {
			want = 1
		}
		if row := b.find(ev.ID); row.Attempts != want {
			b.Errorf("event %s has %d failed attempts, want %d", ev.Payload, row.Attempts, want)
		}
	}
}

// topics is an ordered sink with a destination per topic.
type topics struct {
	*recorder
	down atomic.Bool
}

func (*topics) StopsAtFailure() {}

func (*topics) Destination(ev *waybill.Event) string { return ev.Topic }

func (s *topics) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	stopped := make(map[string]bool)
	for i, d := range batch {
		switch {
		case stopped[d.AggregateID]:
			results[i] = errors.New("not delivered: one before it failed")
		case d.Topic == "bad" && s.down.Load():
			stopped[d.AggregateID] = true
			results[i] = waybill.Unavailable(errBoom)
		default:
			results[i] = s.take(d)
		}
	}
	return results
}

// orderedSinkDown: an aggregate's events go to two destinations, and the
// destination of the first event is unavailable. Events behind it in the same
// call must not overtake it, however many wait.
func orderedSinkDown[T any](b *env[T]) {
	s := &topics{recorder: &recorder{}}
	s.down.Store(true)
	var evs []waybill.Event
	for a := range 60 {
		for n, topic := range []string{"bad", "good", "good"} {
			ev := event(fmt.Sprint("a", a), n)
			ev.Topic = topic
			evs = append(evs, ev)
		}
	}
	free := event("free", 0)
	free.Topic = "good"
	b.write(append(evs, free)...)
	b.start(s, b.quick())
	b.await("what has no such predecessor", func() bool { return b.state(free.ID) == "delivered" })
	b.await("the destination is logged as down", func() bool { return len(b.logs.find("destination is down")) > 0 })
	s.down.Store(false)
	b.awaitEmpty()
	b.wantOnce(s.recorder, append(evs, free))
	b.wantOrder(s.all())
}

// oneAtATime: two events of one aggregate are never with the sink at the same
// time.
func oneAtATime[T any](b *env[T]) {
	var mu sync.Mutex
	busy := make(map[string]bool)
	r := &recorder{}
	sink := relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		mu.Lock()
		if busy[d.AggregateID] {
			b.Errorf("two events of %s at the same time", d.AggregateID)
		}
		busy[d.AggregateID] = true
		mu.Unlock()
		err := r.take(d)
		for range 200 { // let the others come
			runtime.Gosched()
		}
		mu.Lock()
		busy[d.AggregateID] = false
		mu.Unlock()
		return err
	})
	cfg := b.quick()
	cfg.Workers = 8
	var evs []waybill.Event
	for n := range 150 {
		evs = append(evs, event(fmt.Sprint("a", n%3), n))
	}
	b.start(sink, cfg)
	b.write(evs...)
	b.awaitEmpty()
	b.wantOnce(r, evs)
	b.wantOrder(r.all())
}

// routes: every event reaches its sink; a failing or unavailable sink does not
// stop the others; an event without a route is dead.
func routes[T any](b *env[T]) {
	good, bad := &recorder{}, &recorder{answer: func(waybill.Delivery) error { return waybill.Unavailable(errBoom) }}
	goodSink, badSink := good.sink(), bad.sink()
	sink := relay.Route(func(ev waybill.Event) waybill.Sink {
		switch ev.Topic {
		case "good":
			return goodSink
		case "bad":
			return badSink
		}
		return nil
	})
	var goods, bads []waybill.Event
	var all []waybill.Event
	for n := range 400 {
		g, d := event(fmt.Sprint("g", n%20), n), event(fmt.Sprint("d", n%20), n)
		if n%4 == 0 {
			g, d = event("", n), event("", n)
		}
		g.Topic, d.Topic = "good", "bad"
		goods, bads = append(goods, g), append(bads, d)
		all = append(all, d, g)
	}
	lost := event("a", 0)
	b.write(append(all, lost)...)
	b.start(sink, b.quick())
	b.await("the good ones", func() bool { return good.count() >= len(goods) })
	b.await("the one without a route is dead", func() bool { return b.state(lost.ID) == "dead" })
	if s := b.stats(); s.Dead != 1 {
		b.Errorf("%d are dead, want 1", s.Dead)
	}
	bad.tell(nil)
	b.awaitEmpty()
	b.wantOnce(good, goods)
	b.wantOrder(good.all())
	for _, ev := range bads {
		if row := b.find(ev.ID); row.Attempts != 0 || row.State != store.Delivered {
			b.Errorf("an event of the sink that was down is %s with %d attempts", row.State, row.Attempts)
		}
	}
	b.wantOrder(bad.all())
}

// fans: every event reaches all sinks; a sink that fails for one aggregate does
// not stop the others.
func fans[T any](b *env[T]) {
	one, two := &recorder{}, &recorder{answer: func(d waybill.Delivery) error {
		if d.AggregateID == "bad" && d.Attempt < 3 {
			return errBoom
		}
		return nil
	}}
	evs := []waybill.Event{event("bad", 0), event("bad", 1), event("a", 2), event("", 3)}
	b.start(relay.FanOut(one.sink(), two.sink()), b.quick())
	b.write(evs...)
	b.awaitEmpty()
	for _, r := range []*recorder{one, two} {
		for _, ev := range evs {
			if len(r.of(ev.ID)) == 0 {
				b.Errorf("event %s did not reach all sinks", ev.Payload)
			}
		}
		b.wantOrder(r.all())
	}
	if n := len(two.of(evs[2].ID)); n != 1 {
		b.Errorf("an event that no sink rejected was delivered %d times", n)
	}
	if n := len(one.of(evs[0].ID)); n != 1 {
		b.Errorf("the sink that had the event was handed it %d times while the other one failed", n)
	}
	if row := b.find(evs[0].ID); row.Attempts != 2 {
		b.Errorf("%d failed attempts, want 2", row.Attempts)
	}
}

// otherName: one outbox has one relay.
func otherName[T any](b *env[T]) {
	r := &recorder{}
	b.start(r.sink(), b.quick())
	b.await("it is there", func() bool { return len(b.stats().Nodes) == 1 })
	cfg := b.quick()
	cfg.Name = "another"
	other, err := relay.New(b.second(), r.sink(), cfg)
	if err != nil {
		b.Fatal(err)
	}
	if err := other.Run(b.Context()); !errors.Is(err, waybill.ErrOtherRelay) {
		b.Errorf("Run of a relay of another name: %v, want ErrOtherRelay", err)
	}
	b.write(event("a", 0))
	b.await("the first continues", func() bool { return r.count() == 1 })
}
