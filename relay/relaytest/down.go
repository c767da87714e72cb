package relaytest

import (
	"fmt"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// downChecks are the checks of unavailable destinations.
func downChecks[T any]() []check[T] {
	return []check[T]{
		{name: "unavailable", run: unavailable[T]},
		{name: "one_event_calls_it_down", run: oneCallsItDown[T]},
		{name: "unavailable_after_a_crash", run: unavailableSuspects[T]},
		{name: "no_event_waits_for_a_destination", run: noEventWaits[T]},
		{name: "a_probe_that_dies", run: deadProbe[T]},
	}
}

// unavailable: while the destination is unavailable no attempt is spent and no
// event dies; when it is available again the outbox drains without help.
func unavailable[T any](b *env[T]) {
	r := &recorder{answer: func(waybill.Delivery) error { return waybill.Unavailable(errBoom) }}
	var paused, back atomic.Int64
	cfg := b.quick()
	cfg.MaxAttempts = 2
	cfg.Observe = observe.Hooks{Paused: func(info observe.PausedInfo) {
		if info.Paused {
			paused.Add(1)
		} else {
			back.Add(1)
		}
	}}
	b.start(r.sink(), cfg)
	var evs []waybill.Event
	write := func(n int) {
		for i := range n {
			name := fmt.Sprint("a", i%30)
			if i%3 == 0 {
				name = ""
			}
			evs = append(evs, event(name, len(evs)))
		}
		b.write(evs[len(evs)-n:]...)
	}
	write(200)
	b.await("it was probed several times", func() bool { return r.count() >= 12 })
	write(200)
	late := event("late", 0)
	late.Delay = time.Millisecond
	b.write(late)
	b.await("it was probed again", func() bool { return r.count() >= 24 })
	if s := b.stats(); s.Dead != 0 || s.MaxAttempts != 0 {
		b.Errorf("%d dead, up to %d attempts spent; want none", s.Dead, s.MaxAttempts)
	}
	probes := make(map[waybill.ID]bool)
	for _, d := range r.all() {
		probes[d.ID] = true
	}
	if len(probes) < 4 {
		b.Errorf("only %d different events were used to probe", len(probes))
	}
	r.tell(nil)
	b.awaitEmpty()
	if s := b.stats(); s.Dead != 0 {
		b.Errorf("%d dead", s.Dead)
	}
	for _, ev := range append(evs, late) {
		if row := b.find(ev.ID); row.State != store.Delivered || row.Attempts != 0 {
			b.Fatalf("event %s is %s with %d attempts", ev.Payload, row.State, row.Attempts)
		}
	}
	b.wantOrder(r.all())
	if paused.Load() == 0 || paused.Load() != back.Load() {
		b.Errorf("reported %d times as paused and %d times as resumed", paused.Load(), back.Load())
	}
}

// oneCallsItDown: an event that reports its destination as unavailable by
// mistake does not keep it paused for the others.
func oneCallsItDown[T any](b *env[T]) {
	liar := event("liar", 0)
	r := &recorder{answer: func(d waybill.Delivery) error {
		if d.ID == liar.ID {
			return waybill.Unavailable(errBoom)
		}
		return nil
	}}
	b.start(r.sink(), b.quick())
	b.write(liar)
	b.await("it was reported as unavailable", func() bool { return r.count() >= 2 })
	var evs []waybill.Event
	for i := range 50 {
		evs = append(evs, event(fmt.Sprint("a", i%7), i))
	}
	b.write(evs...)
	b.await("the others", func() bool {
		for _, ev := range evs {
			if b.state(ev.ID) != "delivered" {
				return false
			}
		}
		return true
	})
	if row := b.find(liar.ID); row.Attempts != 0 || row.State == store.Dead {
		b.Errorf("it is %s with %d attempts", row.State, row.Attempts)
	}
}

// unavailableSuspects: suspects of a crashed owner are counted before their
// delivery; if the destination is unavailable, the count is taken back.
func unavailableSuspects[T any](b *env[T]) {
	b.abandonLanes()
	evs := []waybill.Event{event("a", 0), event("a", 1), event("", 2)}
	b.write(evs...)
	r := &recorder{answer: func(waybill.Delivery) error { return waybill.Unavailable(errBoom) }}
	cfg := b.quick()
	cfg.MaxAttempts = 2
	b.start(r.sink(), cfg)
	b.await("it was tried several times", func() bool { return r.count() >= 5 })
	r.tell(nil)
	b.awaitEmpty()
	for _, ev := range evs {
		// They stay suspect: the attempt that succeeded was counted beforehand.
		if row := b.find(ev.ID); row.State != store.Delivered || row.Attempts > 1 {
			b.Errorf("event %s is %s with %d attempts", ev.Payload, row.State, row.Attempts)
		}
	}
	for _, d := range r.all() {
		if d.Attempt != 1 {
			b.Errorf("event %s was delivered as attempt %d", d.Payload, d.Attempt)
		}
	}
	b.wantOrder(r.all())
}

// deadProbe: the event that is to probe a destination may have used up its
// attempts in processes that crashed. It becomes a dead letter without a
// delivery, and other events probe the destination.
func deadProbe[T any](b *env[T]) {
	killer, other := event("", 0), event("a", 1)
	b.write(killer, other)
	b.abandonLanes()
	b.spend(killer.ID, 2)
	// So one read returns both, and its turn comes before the killer's.
	b.spend(other.ID, 1)
	b.abandonLanes()
	r := &recorder{answer: func(waybill.Delivery) error { return waybill.Unavailable(errBoom) }}
	cfg := b.quick()
	cfg.MaxAttempts = 2
	b.start(r.sink(), cfg)
	b.await("the killer is dead", func() bool { return b.state(killer.ID) == "dead" })
	r.tell(nil)
	b.awaitEmpty()
	if row := b.find(other.ID); row.State != store.Delivered {
		b.Errorf("the other event is %s", row.State)
	}
}

// noEventWaits: an unavailable destination that no event in memory waits for is
// not reported as paused forever: no delivery would probe it.
func noEventWaits[T any](b *env[T]) {
	b.abandonLanes()
	// The event is deferred, and does not wait in memory: it may have crashed
	// its first owner.
	b.write(event("", 0))
	var down, back atomic.Bool
	cfg := b.quick()
	cfg.Observe.Paused = func(info observe.PausedInfo) {
		if info.Paused {
			down.Store(true)
		} else {
			back.Store(true)
		}
	}
	r := &recorder{answer: func(waybill.Delivery) error { return waybill.Unavailable(errBoom) }}
	b.start(r.sink(), cfg)
	b.await("the destination is reported as paused, and then as resumed", func() bool { return down.Load() && back.Load() })
}
