package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// hangs returns an answer that takes until the context of the call ends, and
// notes how long that took.
func hangs(took *[]time.Duration) func(context.Context, waybill.Delivery) error {
	return func(ctx context.Context, _ waybill.Delivery) error {
		began := time.Now()
		<-ctx.Done()
		*took = append(*took, time.Since(began))
		return ctx.Err()
	}
}

// TestDeliverTimeout: a call that takes longer than DeliverTimeout is a failed
// attempt: of a relay with one sink, of a destination, and from its backlog. A
// destination may have a timeout of its own.
func TestDeliverTimeout(t *testing.T) {
	inBubble(t, func(f *fixture) {
		var took []time.Duration
		p := &place{answer: hangs(&took)}
		f.start(p, relay.Config{MaxAttempts: 2, DeliverTimeout: 2 * time.Second, BackoffSeries: []time.Duration{time.Minute}})
		ev := event("x", 1)
		ev.ID = waybill.NewID()
		f.write(ev)
		pass(5 * time.Minute)
		if !slices.Equal(took, []time.Duration{2 * time.Second, 2 * time.Second}) || f.stateOf(ev.ID) != store.Dead {
			t.Errorf("the calls took %v, and the event is %v", took, f.stateOf(ev.ID))
		}
	})
	inBubble(t, func(f *fixture) {
		var inherited, own []time.Duration
		cfg := relay.Config{MaxAttempts: 3, DeliverTimeout: 2 * time.Second, BackoffSeries: []time.Duration{time.Minute}}
		f.startTo(cfg, relay.Destination{Name: "inherited", Sink: &place{answer: hangs(&inherited)}},
			relay.Destination{Name: "own", Sink: &place{answer: hangs(&own)}, DeliverTimeout: 3 * time.Second, DivertAfter: -1})
		f.write(event("x", 1))
		pass(5 * time.Minute)
		for name, c := range map[string]struct {
			took []time.Duration
			want time.Duration
		}{"inherited": {inherited, 2 * time.Second}, "own": {own, 3 * time.Second}} {
			if !slices.Equal(c.took, slices.Repeat([]time.Duration{c.want}, 3)) {
				t.Errorf("%s: the calls took %v, want %v each", name, c.took, c.want)
			}
			if pending, dead := f.pending(name); pending != 0 || dead != 1 {
				t.Errorf("%s: %d pending and %d dead, want 1 dead letter", name, pending, dead)
			}
		}
	})
}

// TestUnknownGraceOfADestination: an event for which a destination has no
// handler waits for UnknownGrace there, and spends no attempt. Another
// permanent error is final at once.
func TestUnknownGraceOfADestination(t *testing.T) {
	inBubble(t, func(f *fixture) {
		began := time.Now()
		deployed, never, strict, strictLater := &place{}, &place{}, &place{}, &place{}
		deployed.say(func(context.Context, waybill.Delivery) error {
			if time.Since(began) < 12*time.Second {
				return waybill.ErrNoHandler
			}
			return nil
		})
		never.say(func(context.Context, waybill.Delivery) error { return waybill.ErrNoHandler })
		rejected := waybill.Permanent(errors.New("rejected"))
		strict.say(func(context.Context, waybill.Delivery) error { return rejected })
		strictLater.say(func(_ context.Context, d waybill.Delivery) error {
			if d.Attempt == 1 {
				return errors.New("boom")
			}
			return rejected // from the backlog
		})
		f.startTo(relay.Config{UnknownGrace: time.Minute, BackoffSeries: []time.Duration{time.Second}},
			relay.Destination{Name: "deployed", Sink: deployed}, relay.Destination{Name: "never", Sink: never, UnknownGrace: 8 * time.Second},
			relay.Destination{Name: "strict", Sink: strict}, relay.Destination{Name: "strict-later", Sink: strictLater})
		f.write(event("x", 1))
		pass(30 * time.Second)
		if all := deployed.all(); len(deployed.accepted()) != 1 || all[len(all)-1].Attempt != 1 {
			t.Errorf("after the deploy the destination has %v of %d attempts", deployed.accepted(), len(all))
		}
		all := never.all()
		if last := all[len(all)-1].at.Sub(began).Round(time.Second); last != 8*time.Second {
			t.Errorf("the last attempt without a handler was after %v, want 8s", last)
		}
		for name, n := range map[string]int{"never": len(all), "strict": 1, "strict-later": 2} {
			if _, dead := f.pending(name); dead != 1 {
				t.Errorf("%s has %d dead letters, want 1", name, dead)
			}
			if got := len(map[string]*place{"never": never, "strict": strict, "strict-later": strictLater}[name].all()); got != n {
				t.Errorf("%s received the event %d times, want %d", name, got, n)
			}
		}
	})
}

// confused returns too few results, until it is told otherwise.
type confused struct {
	place
	right atomic.Bool
}

func (c *confused) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	if !c.right.Load() {
		return nil
	}
	return c.place.Deliver(ctx, batch)
}

// TestWrongNumberOfResults: the results of a sink that returns too few of them
// cannot be told apart, so that the destination counts as unavailable. Nothing
// is lost, at this destination and at another one.
func TestWrongNumberOfResults(t *testing.T) {
	inBubble(t, func(f *fixture) {
		good, wrong := &place{}, &confused{}
		f.startTo(relay.Config{}, relay.Destination{Name: "good", Sink: good}, relay.Destination{Name: "wrong", Sink: wrong})
		f.write(series("x", 1, 5)...)
		pass(time.Minute)
		if n, dead := f.pending("wrong"); n != 5 || dead != 0 {
			t.Errorf("%d events wait and %d are dead, want 5 that wait", n, dead)
		}
		wrong.right.Store(true)
		pass(5 * time.Minute)
		for name, got := range map[string][]seen{"good": good.all(), "wrong": wrong.all()} {
			var payloads []string
			for _, s := range got {
				if payloads = append(payloads, string(s.Payload)); s.Attempt != 1 {
					t.Errorf("%s: event %s came as attempt %d", name, s.Payload, s.Attempt)
				}
			}
			if !slices.Equal(payloads, numbers(5)) {
				t.Errorf("%s received %v", name, payloads)
			}
		}
	})
}

// stopper is an ordered sink: behind a failure, it delivers no event of the
// aggregate.
type stopper struct{ *place }

func (stopper) StopsAtFailure() {}

func (s stopper) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	errs := make([]error, len(batch))
	failed := make(map[string]bool)
	for i := range batch {
		if failed[batch[i].AggregateID] {
			errs[i] = errors.New("behind a failure")
			continue
		}
		errs[i] = s.place.Deliver(ctx, batch[i:i+1])[0]
		failed[batch[i].AggregateID] = errs[i] != nil
	}
	return errs
}

// TestOrderedDestinationStopsAtAFailure: the events of an aggregate that follow
// a failed one in a batch were not delivered, and spend no attempt. They come
// after it, in order; another aggregate of the batch and another destination do
// not wait.
func TestOrderedDestinationStopsAtAFailure(t *testing.T) {
	inBubble(t, func(f *fixture) {
		good, bad := &place{}, &place{}
		bad.say(func(_ context.Context, d waybill.Delivery) error {
			if d.AggregateID == "x" && string(d.Payload) == "2" && d.Attempt == 1 {
				return errors.New("boom")
			}
			return nil
		})
		var evs []waybill.Event
		for i := range 5 {
			evs = append(evs, event("x", i+1), event("y", i+1))
		}
		f.write(evs...)
		f.startTo(relay.Config{BackoffSeries: []time.Duration{time.Minute}},
			relay.Destination{Name: "good", Sink: stopper{good}}, relay.Destination{Name: "bad", Sink: stopper{bad}})
		of := func(p *place, aggregate string) (got []string) {
			for _, s := range p.all() {
				if s.AggregateID == aggregate {
					got = append(got, fmt.Sprintf("%s/%d", s.Payload, s.Attempt))
				}
			}
			return got
		}
		all := []string{"1/1", "2/1", "3/1", "4/1", "5/1"}
		pass(30 * time.Second)
		for what, got := range map[string][]string{"x at good": of(good, "x"), "y at good": of(good, "y"), "y at bad": of(bad, "y")} {
			if !slices.Equal(got, all) {
				t.Errorf("%s: %v, want all before the failed one is due", what, got)
			}
		}
		if got := of(bad, "x"); !slices.Equal(got, all[:2]) {
			t.Errorf("x at bad: %v, want no event behind the failed one", got)
		}
		pass(2 * time.Minute)
		if got, want := of(bad, "x"), []string{"1/1", "2/1", "2/2", "3/1", "4/1", "5/1"}; !slices.Equal(got, want) {
			t.Errorf("x at bad: %v, want %v", got, want)
		}
	})
}

// TestObserverOfDestinations: the hooks see each delivery to a destination with
// its name, duration and class: directly, in a call that is too slow, and from
// the backlog.
func TestObserverOfDestinations(t *testing.T) {
	inBubble(t, func(f *fixture) {
		var mu sync.Mutex
		got := make(map[string][]string)
		note := func(destination, what string, d *waybill.Delivery, took time.Duration) {
			mu.Lock()
			defer mu.Unlock()
			got[destination] = append(got[destination], fmt.Sprintf("%s %s/%d %v", what, d.Payload, d.Attempt, took))
		}
		takes := func(d time.Duration, failures int) *place {
			return &place{answer: func(context.Context, waybill.Delivery) error {
				time.Sleep(d) //nolint:forbidigo // synctest's time
				if failures--; failures >= 0 {
					return errors.New("boom")
				}
				return nil
			}}
		}
		calls := make(map[string]int)
		hooks := observe.Hooks{
			Deliver: func(ctx context.Context, info observe.DeliverInfo) (context.Context, func(observe.DeliverDoneInfo)) {
				mu.Lock()
				defer mu.Unlock()
				calls[info.Destination] += len(info.Batch)
				return ctx, nil
			},
			Delivered: func(i observe.DeliveredInfo) { note(i.Destination, "delivered", i.Delivery, i.Took) },
			Failed: func(i observe.FailedInfo) {
				note(i.Destination, i.Class.String()+": "+i.Err.Error(), i.Delivery, i.Took)
			},
			Died: func(i observe.DiedInfo) { note(i.Destination, "died: "+i.Err.Error(), i.Delivery, 0) },
		}
		const ms = time.Millisecond
		f.startTo(relay.Config{Observe: hooks, MaxAttempts: 3, BackoffSeries: []time.Duration{time.Second}},
			relay.Destination{Name: "fast", Sink: takes(10*ms, 0)}, relay.Destination{Name: "fails", Sink: takes(20*ms, 1)},
			relay.Destination{Name: "slow", Sink: takes(900*ms, 0)}, relay.Destination{Name: "slow-fails", Sink: takes(800*ms, 1)},
			relay.Destination{Name: "never", Sink: takes(30*ms, 9)})
		f.write(event("x", 1))
		pass(time.Minute)
		for name, want := range map[string][]string{
			"fast":       {"delivered 1/1 10ms"},
			"fails":      {"retry: boom 1/1 20ms", "delivered 1/2 20ms"},
			"slow":       {"delivered 1/1 900ms"},
			"slow-fails": {"retry: boom 1/1 800ms", "delivered 1/1 800ms"},
			"never":      {"retry: boom 1/1 30ms", "retry: boom 1/2 30ms", "died: boom 1/3 0s"},
		} {
			if !slices.Equal(got[name], want) {
				t.Errorf("%s: the hooks saw %q, want %q", name, got[name], want)
			}
			if calls[name] != len(want) {
				t.Errorf("%s: the hooks saw %d calls, want %d", name, calls[name], len(want))
			}
		}
	})
}

// TestStopDuringAnAcquisition: lanes that a node acquires while it stops are
// released at once: another node need not wait for the lease.
func TestStopDuringAnAcquisition(t *testing.T) {
	inBubble(t, func(f *fixture) {
		relays := f.db.Driver().Relay
		stop, ended := make(chan func() error, 1), make(chan error, 1)
		once := sync.OnceFunc(func() {
			go func() { ended <- (<-stop)() }()
			time.Sleep(time.Second) //nolint:forbidigo // synctest's time: the relay stops meanwhile
		})
		stop <- f.startOn(&acquires{Relay: relays, before: once}, &place{}, relay.Config{Logger: slog.New(slog.DiscardHandler)})
		began := time.Now()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		if took := time.Since(began); took > 2*time.Second {
			t.Errorf("the relay stopped after %v", took)
		}
		view, err := relays.Heartbeat(t.Context(), store.Node{ID: waybill.NewID(), Relay: "relay"}, time.Minute)
		if err != nil {
			t.Fatal(err)
		}
		for _, l := range view.Lanes {
			if l.Live {
				t.Fatalf("lane %d still has an owner", l.Lane)
			}
		}
	})
}

// acquires calls a function before an acquisition.
type acquires struct {
	driver.Relay
	before func()
}

func (a *acquires) Acquire(ctx context.Context, node store.Node, lanes []int, window int) ([]driver.Lease, error) {
	a.before()
	return a.Relay.Acquire(ctx, node, lanes, window)
}

// TestReplayedAtADestination: a replay of a dead letter of a destination wakes
// the relay, which delivers the event long before the next regular check.
func TestReplayedAtADestination(t *testing.T) {
	inBubble(t, func(f *fixture) {
		p := &place{}
		p.say(func(context.Context, waybill.Delivery) error { return waybill.Permanent(errors.New("rejected")) })
		f.startTo(relay.Config{Lease: 30 * time.Minute, Heartbeat: 10 * time.Minute}, relay.Destination{Name: "p", Sink: p})
		ev := event("x", 1)
		ev.ID = waybill.NewID()
		f.write(ev)
		pass(time.Minute)
		if _, dead := f.pending("p"); dead != 1 {
			t.Fatalf("%d dead letters, want 1", dead)
		}
		p.say(nil)
		if _, err := f.backlog("p").Replay(f.Context(), []waybill.ID{ev.ID}); err != nil {
			t.Fatal(err)
		}
		f.db.Driver().Relay.Local().Wake()
		pass(5 * time.Second)
		if got := p.accepted(); !slices.Equal(got, numbers(1)) {
			t.Errorf("5 s after the replay the destination has %v", got)
		}
	})
}

// TestDeadLettersArePurged: dead letters are kept for DeadRetention, and
// without one for good.
func TestDeadLettersArePurged(t *testing.T) {
	for retention, kept := range map[time.Duration]bool{0: true, 3 * time.Hour: false} {
		inBubble(t, func(f *fixture) {
			p := &place{answer: func(context.Context, waybill.Delivery) error { return waybill.Permanent(errors.New("no")) }}
			f.start(p, relay.Config{DeadRetention: retention})
			ev := event("x", 1)
			ev.ID = waybill.NewID()
			f.write(ev)
			find := func() int {
				found, err := f.db.Driver().OutboxAdmin.Find(t.Context(), ev.ID)
				if err != nil {
					t.Fatal(err)
				}
				return len(found)
			}
			if pass(2 * time.Hour); find() != 1 {
				t.Errorf("with a retention of %v the dead letter is gone after 2 hours", retention)
			}
			if pass(3 * time.Hour); (find() == 1) != kept {
				t.Errorf("with a retention of %v the dead letter is kept for 5 hours: %v, want %v", retention, find() == 1, kept)
			}
		})
	}
}

// TestSinkFuncAfterTheEnd: the events behind one during which the context ended
// are not delivered, and their results are the cause.
func TestSinkFuncAfterTheEnd(t *testing.T) {
	cause := errors.New("the lease is over")
	ctx, cancel := context.WithCancelCause(context.Background())
	called := 0
	sink := relay.SinkFunc(func(context.Context, waybill.Delivery) error {
		called++
		cancel(cause)
		return nil
	})
	results := sink.Deliver(ctx, make([]waybill.Delivery, 3))
	if called != 1 || results[0] != nil || !errors.Is(results[1], cause) || !errors.Is(results[2], cause) {
		t.Errorf("%d calls, with the results %v", called, results)
	}
}

// TestRouteOfParts: a route names the destination of each sink, and of each
// part of a sink with several. A sink that returns a wrong number of results is
// unavailable, and the others are not.
func TestRouteOfParts(t *testing.T) {
	good, wrong, parts := &place{}, &confused{}, byType{}
	pick := map[string]waybill.Sink{"good": good, "wrong": wrong, "parts": parts}
	r := relay.Route(func(ev waybill.Event) waybill.Sink { return pick[ev.AggregateID] })
	names := make(map[string]string)
	for name := range pick {
		ev := event(name, 1)
		names[name] = r.(relay.DestinationSink).Destination(&ev) //nolint:forcetypeassert // a test
	}
	other := event("parts", 1)
	other.Type = "Other"
	names["other"] = r.(relay.DestinationSink).Destination(&other) //nolint:forcetypeassert // a test
	for a, x := range names {
		for b, y := range names {
			if (a == b) != (x == y) {
				t.Errorf("%s is %q, and %s is %q", a, x, b, y)
			}
		}
	}
	results := r.Deliver(t.Context(), []waybill.Delivery{{Event: event("wrong", 1)}, {Event: event("good", 2)}, {Event: event("nowhere", 3)}, {Event: event("wrong", 4)}})
	for i, want := range []waybill.Class{waybill.ClassUnavailable, waybill.ClassDone, waybill.ClassPermanent, waybill.ClassUnavailable} {
		if class, _ := waybill.Classify(results[i]); class != want {
			t.Errorf("result %d is %v, want the class %v", i, results[i], want)
		}
	}
	if got := good.accepted(); !slices.Equal(got, []string{"2"}) {
		t.Errorf("the good sink has %v", got)
	}
}
