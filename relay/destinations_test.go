package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math"
	"math/rand/v2"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// place is the sink of a destination. It records what it receives, and fails as
// the test wants.
type place struct {
	mu     sync.Mutex
	got    []seen
	answer func(ctx context.Context, d waybill.Delivery) error
}

// seen is a delivery that a place has received, and when.
type seen struct {
	waybill.Delivery
	at time.Time
	ok bool
}

// Deliver implements [waybill.Sink].
func (p *place) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	errs := make([]error, len(batch))
	for i, d := range batch {
		p.mu.Lock()
		answer := p.answer
		p.mu.Unlock()
		if answer != nil {
			errs[i] = answer(ctx, d)
		}
		p.mu.Lock()
		p.got = append(p.got, seen{Delivery: d, at: time.Now(), ok: errs[i] == nil})
		p.mu.Unlock()
	}
	return errs
}

// say sets what the place answers.
func (p *place) say(answer func(ctx context.Context, d waybill.Delivery) error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = answer
}

// down makes the place unavailable, until say is called again.
func (p *place) down() {
	p.say(func(context.Context, waybill.Delivery) error { return waybill.Unavailable(errors.New("down")) })
}

// all returns everything that the place has received.
func (p *place) all() []seen {
	p.mu.Lock()
	defer p.mu.Unlock()
	return slices.Clone(p.got)
}

// accepted returns the payloads of the events that the place has accepted, in
// their order.
func (p *place) accepted() []string {
	var out []string
	for _, s := range p.all() {
		if s.ok {
			out = append(out, string(s.Payload))
		}
	}
	return out
}

// attempts returns the attempts of an event at the place.
func (p *place) attempts(payload string) []seen {
	return slices.DeleteFunc(p.all(), func(s seen) bool { return string(s.Payload) != payload })
}

// startTo runs a relay with destinations until stop is called.
func (f *fixture) startTo(cfg relay.Config, destinations ...relay.Destination) (stop func()) {
	f.Helper()
	return f.startDestinationsOn(f.db.Driver(), cfg, destinations...)
}

// startDestinationsOn runs a relay over the roles of a store.
func (f *fixture) startDestinationsOn(roles driver.Roles[*memstore.Tx], cfg relay.Config, destinations ...relay.Destination) (stop func()) {
	f.Helper()
	if cfg.Logger == nil {
		cfg.Logger = slog.New(slog.NewTextHandler(testWriter{f.T}, &slog.HandlerOptions{Level: slog.LevelInfo}))
	}
	r, err := relay.NewTo(roles, cfg, destinations...)
	if err != nil {
		f.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			f.Errorf("Run: %v", err)
		}
	})
	f.Cleanup(stop)
	return stop
}

// backlog returns the backlog of a destination.
func (f *fixture) backlog(name string) driver.Backlog {
	f.Helper()
	b := f.db.Driver().Backlogs
	all, err := b.AddDestinations(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	for _, d := range all {
		if d.Name == name {
			return b.Backlog(d.Number)
		}
	}
	f.Fatalf("destination %s is not registered", name)
	return nil
}

// pending returns the number of events in a destination's backlog that are not
// dead, and of those that are.
func (f *fixture) pending(name string) (pending, dead int64) {
	f.Helper()
	s, err := f.backlog(name).Stats(f.Context())
	if err != nil {
		f.Fatal(err)
	}
	return s.Ready + s.Failed + s.Scheduled, s.Dead
}

// series returns n events of an aggregate with the payloads "1" to "n".
func series(aggregate string, from, to int) []waybill.Event {
	var out []waybill.Event
	for i := from; i <= to; i++ {
		out = append(out, event(aggregate, i))
	}
	return out
}

// numbers returns the texts of the numbers from 1 to n.
func numbers(n int) []string {
	var out []string
	for i := 1; i <= n; i++ {
		out = append(out, fmt.Sprint(i))
	}
	return out
}

// inBubble runs a test in virtual time.
func inBubble(t *testing.T, fn func(f *fixture)) {
	t.Helper()
	synctest.Test(t, func(t *testing.T) { fn(newFixture(t)) })
}

// TestDestinationsGetEveryEventOnce: while all destinations keep up, each gets
// every event once, in order, and nothing is diverted.
func TestDestinationsGetEveryEventOnce(t *testing.T) {
	inBubble(t, func(f *fixture) {
		a, b := &place{}, &place{}
		f.startTo(relay.Config{}, relay.Destination{Name: "a", Sink: a}, relay.Destination{Name: "b", Sink: b})
		f.write(series("x", 1, 50)...)
		pass(time.Second)
		for name, p := range map[string]*place{"a": a, "b": b} {
			if got := p.accepted(); !slices.Equal(got, numbers(50)) {
				t.Errorf("%s received %v", name, got)
			}
		}
		if n, _ := f.pending("a"); n != 0 {
			t.Errorf("%d events are in the backlog of a", n)
		}
	})
}

// TestDestinationThatIsDown: a destination that is down delays nothing at the
// other one, and no probe repeats an event there. When it is back it gets every
// event once and in order, and then directly.
func TestDestinationThatIsDown(t *testing.T) {
	inBubble(t, func(f *fixture) {
		up, down := &place{}, &place{}
		down.down()
		f.startTo(relay.Config{}, relay.Destination{Name: "up", Sink: up}, relay.Destination{Name: "down", Sink: down})
		for i := 1; i <= 200; i++ {
			f.write(event("x", i))
			pass(50 * time.Millisecond)
			if got := up.accepted(); len(got) != i {
				t.Fatalf("after event %d the other destination has %d", i, len(got))
			}
		}
		if n, _ := f.pending("down"); n != 200 {
			t.Errorf("the backlog has %d events, want 200", n)
		}
		down.say(nil)
		pass(2 * time.Minute) // a probe
		if got := down.accepted(); !slices.Equal(got, numbers(200)) {
			t.Errorf("after its outage the destination received %v", got)
		}
		if got := up.accepted(); !slices.Equal(got, numbers(200)) {
			t.Errorf("the other destination received %v", got)
		}
		for _, s := range down.all() {
			if s.Attempt != 1 {
				t.Errorf("event %s: attempt %d, want 1: an outage spends no attempt", s.Payload, s.Attempt)
			}
		}
		n := len(down.all())
		before := time.Now()
		f.write(event("x", 201))
		pass(20 * time.Millisecond)
		got := down.all()
		if len(got) != n+1 || got[n].at.Sub(before) > 10*time.Millisecond {
			t.Errorf("the destination is not direct again: %d deliveries", len(got)-n)
		}
	})
}

// TestDestinationThatRefusesAnEvent: a dead letter belongs to the destination
// that refused it. The other destination has the event, and the aggregate
// continues at both.
func TestDestinationThatRefusesAnEvent(t *testing.T) {
	inBubble(t, func(f *fixture) {
		good, strict := &place{}, &place{}
		strict.say(func(_ context.Context, d waybill.Delivery) error {
			if string(d.Payload) == "3" {
				return waybill.Permanent(errors.New("no"))
			}
			return nil
		})
		var died []observe.DiedInfo
		f.startTo(relay.Config{Observe: observe.Hooks{Died: func(i observe.DiedInfo) { died = append(died, i) }}},
			relay.Destination{Name: "good", Sink: good}, relay.Destination{Name: "strict", Sink: strict})
		f.write(series("x", 1, 10)...)
		pass(5 * time.Second)
		if got := good.accepted(); !slices.Equal(got, numbers(10)) {
			t.Errorf("good received %v", got)
		}
		if got := strings.Join(strict.accepted(), " "); got != "1 2 4 5 6 7 8 9 10" {
			t.Errorf("strict received %v", got)
		}
		if n := len(strict.attempts("3")); n != 1 {
			t.Errorf("the event was tried %d times, want 1", n)
		}
		dead, err := f.backlog("strict").List(f.Context(), store.Dead, store.Filter{}, 0, 10)
		if err != nil || len(dead) != 1 || dead[0].Attempts != 1 || dead[0].LastError != "no" || string(dead[0].Event.Payload) != "3" {
			t.Errorf("dead letters %+v, %v", dead, err)
		}
		if _, n := f.pending("good"); n != 0 {
			t.Errorf("good has %d dead letters", n)
		}
		if len(died) != 1 || died[0].Destination != "strict" || died[0].Delivery.Attempt != 1 {
			t.Errorf("reported as dead: %+v", died)
		}
	})
}

// TestDestinationRetries: a failed event is tried again after the delays of its
// destination, counted from the direct attempt, and is dead after its last
// attempt. The events behind it wait, at this destination only.
func TestDestinationRetries(t *testing.T) {
	for _, block := range []relay.OnDead{relay.Continue, relay.Block} {
		inBubble(t, func(f *fixture) {
			good, bad := &place{}, &place{}
			bad.say(func(_ context.Context, d waybill.Delivery) error {
				if string(d.Payload) == "1" {
					return errors.New("boom")
				}
				return nil
			})
			f.startTo(relay.Config{}, relay.Destination{Name: "good", Sink: good},
				relay.Destination{Name: "bad", Sink: bad, MaxAttempts: 3, BackoffSeries: []time.Duration{time.Minute, 3 * time.Minute, time.Hour}, OnDead: block})
			f.write(series("x", 1, 3)...)
			pass(2 * time.Hour)
			if got := good.accepted(); !slices.Equal(got, numbers(3)) {
				t.Errorf("good received %v", got)
			}
			tries := bad.attempts("1")
			if len(tries) != 3 {
				t.Fatalf("%d attempts, want 3", len(tries))
			}
			for i, want := range []time.Duration{time.Minute, 3 * time.Minute} {
				if got := tries[i+1].at.Sub(tries[i].at); got < want || got > want+3*time.Second {
					t.Errorf("attempt %d came %v after attempt %d, want %v", i+2, got, i+1, want)
				}
				if tries[i+1].Attempt != i+2 {
					t.Errorf("attempt %d is numbered %d", i+2, tries[i+1].Attempt)
				}
			}
			want := []string{"2", "3"}
			if block == relay.Block {
				want = nil
			}
			if got := bad.accepted(); !slices.Equal(got, want) {
				t.Errorf("block %v: bad received %v behind the dead letter, want %v", block, got, want)
			}
			if _, dead := f.pending("bad"); dead != 1 {
				t.Errorf("%d dead letters, want 1", dead)
			}
		})
	}
}

// TestDestinationWithOneAttempt: the direct attempt can be the last one.
func TestDestinationWithOneAttempt(t *testing.T) {
	inBubble(t, func(f *fixture) {
		bad := &place{}
		bad.say(func(context.Context, waybill.Delivery) error { return errors.New("boom") })
		f.startTo(relay.Config{}, relay.Destination{Name: "bad", Sink: bad, MaxAttempts: 1})
		f.write(event("x", 1))
		pass(time.Minute)
		if n := len(bad.all()); n != 1 {
			t.Errorf("%d attempts, want 1", n)
		}
		if _, dead := f.pending("bad"); dead != 1 {
			t.Errorf("%d dead letters, want 1", dead)
		}
	})
}

// TestDestinationThatIsSlow: a call that takes longer than DivertAfter delays
// the others by no more than that, and only once. When the call ends well, the
// event is not delivered again; nothing of its lane is delivered before the
// call has ended.
func TestDestinationThatIsSlow(t *testing.T) {
	inBubble(t, func(f *fixture) {
		fast, slow := &place{}, &place{}
		slow.say(func(_ context.Context, d waybill.Delivery) error {
			if string(d.Payload) == "1" {
				<-time.After(4 * time.Second)
			}
			return nil
		})
		delivered := make(map[string]int)
		f.startTo(relay.Config{Observe: observe.Hooks{Delivered: func(i observe.DeliveredInfo) { delivered[i.Destination]++ }}},
			relay.Destination{Name: "fast", Sink: fast},
			relay.Destination{Name: "slow", Sink: slow, DivertAfter: 300 * time.Millisecond})
		began := time.Now()
		f.write(series("x", 1, 20)...)
		pass(time.Second)
		if got := fast.accepted(); !slices.Equal(got, numbers(20)) {
			t.Errorf("after a second fast has %v", got)
		}
		if last := fast.all()[19]; last.at.Sub(began) < 300*time.Millisecond || last.at.Sub(began) > 400*time.Millisecond {
			t.Errorf("fast waited %v for slow, want DivertAfter", last.at.Sub(began))
		}
		if got := slow.all(); len(got) != 0 {
			t.Errorf("slow received %v during the call", got)
		}
		pass(10 * time.Second)
		if got := slow.accepted(); !slices.Equal(got, numbers(20)) {
			t.Errorf("slow received %v", got)
		}
		if delivered["fast"] != 20 || delivered["slow"] != 20 {
			t.Errorf("reported as delivered: %v, want 20 each", delivered)
		}
	})
}

// TestSlowCallThatFails: an event whose slow call fails is delivered again, in
// front of its successors.
func TestSlowCallThatFails(t *testing.T) {
	inBubble(t, func(f *fixture) {
		fast, slow := &place{}, &place{}
		var once sync.Once
		slow.say(func(context.Context, waybill.Delivery) (err error) {
			once.Do(func() { <-time.After(4 * time.Second); err = errors.New("late") })
			return err
		})
		f.startTo(relay.Config{}, relay.Destination{Name: "fast", Sink: fast}, relay.Destination{Name: "slow", Sink: slow})
		f.write(series("x", 1, 5)...)
		pass(time.Minute)
		if got := slow.accepted(); !slices.Equal(got, numbers(5)) {
			t.Errorf("slow received %v", got)
		}
		if got := fast.accepted(); !slices.Equal(got, numbers(5)) {
			t.Errorf("fast received %v", got)
		}
	})
}

// TestSlowCallOfASuspect: the context of a suspect's call lasts as long as the
// call, also when the call takes longer than those of the others.
func TestSlowCallOfASuspect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureOf(t, memstore.Config{Lanes: 1})
		fast, slow := &place{}, &place{}
		f.write(event("x", 1))
		f.abandonLane()
		slow.say(func(ctx context.Context, _ waybill.Delivery) error {
			select {
			case <-time.After(4 * time.Second):
				return nil
			case <-ctx.Done():
				return context.Cause(ctx)
			}
		})
		f.startTo(relay.Config{}, relay.Destination{Name: "fast", Sink: fast}, relay.Destination{Name: "slow", Sink: slow})
		pass(2 * time.Minute)
		if got := slow.all(); len(got) != 1 || !got[0].ok {
			t.Errorf("slow received %+v", got)
		}
		if got := fast.accepted(); len(got) != 1 {
			t.Errorf("fast received %v", got)
		}
	})
}

// TestDestinationsThroughNodes: destinations that fail, hang, are slow and are
// paused, over nodes that stop and are replaced: each destination accepts every
// event, the first time in order per aggregate.
func TestDestinationsThroughNodes(t *testing.T) {
	for seed := range uint64(12) {
		t.Run(fmt.Sprint(seed), func(t *testing.T) { synctest.Test(t, func(t *testing.T) { throughNodes(t, seed) }) })
	}
}

func throughNodes(t *testing.T, seed uint64) {
	rnd := rand.New(rand.NewPCG(seed, 0))
	f := newFixtureOf(t, memstore.Config{Lanes: 4})
	places := []*place{{}, {}, {}}
	var mu sync.Mutex
	calm := false
	chance := func(n int) bool { mu.Lock(); defer mu.Unlock(); return !calm && rnd.IntN(n) == 0 }
	for i, p := range places {
		p.say(func(ctx context.Context, _ waybill.Delivery) error {
			switch {
			case chance(20):
				return errors.New("boom")
			case i > 0 && chance(40):
				return waybill.Unavailable(errors.New("down"))
			case chance(60):
				return waybill.Later(time.Second, errors.New("later"))
			case chance(100):
				select {
				case <-time.After(time.Duration(i) * time.Second):
				case <-ctx.Done():
					return ctx.Err()
				}
			}
			return nil
		})
	}
	draw := func(n int) int { mu.Lock(); defer mu.Unlock(); return rnd.IntN(n) }
	start := func() func() {
		cfg := relay.Config{
			Logger: slog.New(slog.DiscardHandler), MaxAttempts: -1, BackoffBase: 10 * time.Millisecond, BackoffMax: time.Second, DrainTimeout: time.Second, BatchSize: 1 + draw(20),
		}
		return f.startTo(cfg, relay.Destination{Name: "a", Sink: places[0]}, relay.Destination{Name: "b", Sink: places[1]}, relay.Destination{Name: "c", Sink: places[2]})
	}
	nodes := []func(){start(), start()}
	written := make(map[string]int)
	for range 400 {
		aggregate := string(rune('a' + draw(6)))
		written[aggregate]++
		f.write(event(aggregate, written[aggregate]))
		pass(time.Duration(draw(40)) * time.Millisecond)
		if draw(60) == 0 {
			n := draw(2)
			nodes[n]()
			nodes[n] = start()
		}
	}
	mu.Lock()
	calm = true
	mu.Unlock()
	pass(3 * time.Minute)
	for i, p := range places {
		first, accepted := make(map[string]int), make(map[waybill.ID]bool)
		for _, s := range p.all() {
			var n int
			if _, err := fmt.Sscan(string(s.Payload), &n); err != nil {
				t.Fatal(err)
			}
			if last := first[s.AggregateID]; n > last+1 {
				t.Errorf("destination %d: event %d of %s came before event %d was accepted", i, n, s.AggregateID, last+1)
			}
			if s.ok {
				first[s.AggregateID] = max(first[s.AggregateID], n)
				accepted[s.ID] = true
			}
		}
		if len(accepted) != 400 {
			t.Errorf("destination %d accepted %d of 400 events", i, len(accepted))
		}
	}
	for _, name := range []string{"a", "b", "c"} {
		if n, dead := f.pending(name); n+dead != 0 {
			t.Errorf("the backlog of %s has %d events and %d dead letters", name, n, dead)
		}
	}
}

// TestDestinationErrors: every invalid field is named.
func TestDestinationErrors(t *testing.T) {
	f := newFixture(t)
	_, err := relay.NewTo(f.db, relay.Config{},
		relay.Destination{Name: "a b", Concurrency: -1, Rate: -1},
		relay.Destination{Name: "x", Sink: &place{}, BackoffBase: time.Hour, BackoffSeries: []time.Duration{-1}, OnDead: 5, DeliverTimeout: -1, UnknownGrace: -1},
		relay.Destination{Name: "x", Sink: &place{}, Rate: math.Inf(1)}, relay.Destination{Name: "y", Sink: &place{}, Rate: math.NaN()})
	want := `relay: destination 1 ("a b"): Destination.Name: "a b" contains a space or a control character
Destination.Sink: is nil
Destination.Concurrency: -1 is negative
Destination.Rate: -1 is negative
destination 2 ("x"): Destination.BackoffBase: 1h0m0s is more than BackoffMax, 1m0s
Destination.BackoffSeries[0]: -1ns is negative
Destination.UnknownGrace: -1ns is negative
Destination.OnDead: 5 is neither Continue nor Block
Destination.DeliverTimeout: -1ns is negative
destination 3 ("x"): Destination.Rate: +Inf is not a number up to 1000000000; 0 means no limit
destination 3 ("x"): Destination.Name: two destinations have this name
destination 4 ("y"): Destination.Rate: NaN is not a number up to 1000000000; 0 means no limit`
	if err == nil || err.Error() != want {
		t.Errorf("error:\n%v\nwant:\n%s", err, want)
	}
	if _, err := relay.NewTo(f.db, relay.Config{}); err == nil || err.Error() != "relay: there is no destination" {
		t.Errorf("without destinations: %v", err)
	}
}

// TestDeferredDirectDelivery: an event that a destination defers holds its
// aggregate there, and its attempt does not count.
func TestDeferredDirectDelivery(t *testing.T) {
	inBubble(t, func(f *fixture) {
		p := &place{}
		var once sync.Once
		p.say(func(context.Context, waybill.Delivery) (err error) {
			once.Do(func() { err = waybill.Later(time.Minute, errors.New("not now")) })
			return err
		})
		f.startTo(relay.Config{}, relay.Destination{Name: "p", Sink: p})
		began := time.Now()
		f.write(series("x", 1, 3)...)
		pass(2 * time.Minute)
		if got := p.accepted(); !slices.Equal(got, numbers(3)) {
			t.Errorf("received %v", got)
		}
		if all := p.all(); all[1].at.Sub(began) < time.Minute || all[1].Attempt != 1 {
			t.Errorf("delivered again after %v as attempt %d", all[1].at.Sub(began), all[1].Attempt)
		}
	})
}
