package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
)

// once returns a function that calls Once and checks its error.
func (f *fixture) once(r *relay.Relay) func(want error) {
	return func(want error) {
		f.Helper()
		if err := r.Once(f.Context()); !errors.Is(err, want) || (want == nil) != (err == nil) {
			f.Errorf("Once returns %v, want %v", err, want)
		}
	}
}

// TestOnce: Once delivers a backlog of many pages, in order, and returns. It
// waits for no event that is not due, and can be called again.
func TestOnce(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFixture(t), &collector{}
		var all []waybill.Event
		for n := range 1500 {
			all = append(all, event(fmt.Sprint(n%7), n))
		}
		all[700].Priority = 5
		later := event("later", 1)
		later.Delay = time.Hour
		f.write(append(all, later)...)
		r, err := relay.New(f.db, relay.SinkFunc(func(ctx context.Context, d waybill.Delivery) error {
			time.Sleep(time.Millisecond) //nolint:forbidigo // synctest's time: results come while pages are read
			return c.sink().Deliver(ctx, []waybill.Delivery{d})[0]
		}), relay.Config{ColdQueue: 100, BatchSize: 50, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		began := time.Now()
		once := f.once(r)
		once(nil)
		if c.count() != 1500 {
			t.Fatalf("%d of 1500 events were delivered", c.count())
		}
		seen := map[string]uint64{}
		for _, d := range c.got {
			if at := uint64(d.Position.Seq); at <= seen[d.AggregateID] { //nolint:gosec // not negative
				t.Fatalf("aggregate %s is out of order", d.AggregateID)
			} else {
				seen[d.AggregateID] = at
			}
		}
		if took := time.Since(began); took > time.Minute {
			t.Errorf("Once took %v", took)
		}
		began = time.Now()
		once(nil)
		if c.count() != 1500 {
			t.Errorf("the second call delivered %d events", c.count()-1500)
		}
		if took := time.Since(began); took > time.Second { // synctest's time
			t.Errorf("Once took %v with nothing to deliver: it waits for a timer", took)
		}
		f.write(event("0", 1))
		pass(time.Hour)
		once(nil)
		if c.count() != 1502 {
			t.Errorf("after an hour and another event, %d were delivered, want 1502", c.count())
		}
	})
}

// TestOnceDoesNotWaitForRetries: an event that fails holds its aggregate back,
// and Once returns after all others.
func TestOnceDoesNotWaitForRetries(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, c := newFixture(t), &collector{fail: func(d waybill.Delivery) error {
			if d.AggregateID == "bad" && d.Attempt == 1 {
				return errors.New("boom")
			}
			return nil
		}}
		f.write(event("bad", 1), event("bad", 2), event("good", 1))
		r, err := relay.New(f.db, c.sink(), relay.Config{BackoffBase: time.Minute, Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		once := f.once(r)
		once(nil)
		if c.count() != 2 {
			t.Errorf("%d deliveries, want one of each aggregate", c.count())
		}
		pass(2 * time.Minute)
		once(nil)
		if c.count() != 4 {
			t.Errorf("%d deliveries after the delay, want 4", c.count())
		}
	})
}

// TestOnceReportsAnUnavailableDestination: the events stay, and spend no
// attempt.
func TestOnceReportsAnUnavailableDestination(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		var down atomic.Bool
		down.Store(true)
		c := &collector{fail: func(d waybill.Delivery) error {
			if down.Load() {
				return waybill.Unavailable(errors.New("no route"))
			}
			if d.Attempt != 1 {
				t.Errorf("attempt %d", d.Attempt)
			}
			return nil
		}}
		f.write(event("a", 1), event("b", 2))
		r, err := relay.New(f.db, c.sink(), relay.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		err = r.Once(t.Context())
		if class, _ := waybill.Classify(err); class != waybill.ClassUnavailable || !strings.Contains(err.Error(), `destination "in-process" is unavailable: no route`) {
			t.Errorf("Once returns %v", err)
		}
		down.Store(false)
		f.once(r)(nil)
	})
}

// TestOnceWithDestinations: a destination that fails keeps its events in its
// backlog, and the others receive all.
func TestOnceWithDestinations(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, good := newFixture(t), &collector{}
		bad := &collector{fail: func(waybill.Delivery) error { return errors.New("boom") }}
		for n := range 300 {
			f.write(event(fmt.Sprint(n%5), n))
		}
		r, err := relay.NewTo(f.db, relay.Config{Logger: slog.New(slog.DiscardHandler)},
			relay.Destination{Name: "good", Sink: good.sink()}, relay.Destination{Name: "bad", Sink: bad.sink(), BackoffBase: time.Hour, BackoffMax: time.Hour})
		if err != nil {
			t.Fatal(err)
		}
		f.once(r)(nil)
		if good.count() != 300 || bad.count() != 5 {
			t.Errorf("%d and %d deliveries, want 300, and 5 first attempts", good.count(), bad.count())
		}
	})
}

// TestOnceEnds: the end of the context is an error, because events may be left.
func TestOnceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		why := errors.New("the function's time is up")
		ctx, cancel := context.WithCancelCause(t.Context())
		f.write(event("a", 1), event("a", 2))
		r, err := relay.New(f.db, relay.SinkFunc(func(context.Context, waybill.Delivery) error {
			cancel(why)
			return nil
		}), relay.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		if err := r.Once(ctx); !errors.Is(err, why) {
			t.Errorf("Once returns %v", err)
		}
	})
}

// TestHealth: a relay is healthy while it runs and reads the tables, also while
// a destination is unavailable.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		db := &away{Relay: f.db.Driver().Relay}
		roles := f.db.Driver()
		roles.Relay = db
		r, err := relay.New(roles, relay.SinkFunc(func(context.Context, waybill.Delivery) error { return waybill.Unavailable(errors.New("down")) }),
			relay.Config{Logger: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		says := func(want string) relay.Health {
			t.Helper()
			h := r.Health()
			if err := h.Err(); want == "" && err != nil || want != "" && (err == nil || !strings.Contains(err.Error(), want)) {
				t.Errorf("the health is %v, want %q: %+v", err, want, h)
			}
			return h
		}
		says("not running")
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		pass(time.Second)
		f.write(event("a", 1))
		pass(time.Second)
		h := says("")
		if h.Lanes != h.TotalLanes || h.Lanes == 0 || h.LeaseLeft < 5*time.Second || h.LastRead.IsZero() || !slices.Equal(h.Unavailable, []string{"in-process"}) {
			t.Errorf("the health is %+v", h)
		}
		db.say(errRefused)
		pass(5 * time.Second)
		says("cannot be read")
		pass(time.Minute)
		says("lapsed")
		db.say(nil)
		pass(10 * time.Second)
		says("")
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		says("not running")
	})
}

// TestOwnBackoff: Config.Backoff replaces the other delays, and a destination's
// replaces that of the relay, as do the destination's other delays. A
// destination with a base does not have the relay's series either.
func TestOwnBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		fails := func(at *[]time.Duration) waybill.Sink {
			began := time.Now()
			return relay.SinkFunc(func(context.Context, waybill.Delivery) error {
				*at = append(*at, time.Since(began).Round(time.Minute))
				return errors.New("boom")
			})
		}
		var inherited, own, series, base []time.Duration
		f.write(event("a", 1))
		r, err := relay.NewTo(f.db, relay.Config{
			MaxAttempts: 4, BackoffSeries: []time.Duration{time.Hour}, Backoff: func(n int) time.Duration { return time.Duration(n) * 10 * time.Minute },
			Logger: slog.New(slog.DiscardHandler),
		},
			relay.Destination{Name: "inherited", Sink: fails(&inherited)},
			relay.Destination{Name: "own", Sink: fails(&own), Backoff: func(n int) time.Duration { return time.Duration(2-n) * 5 * time.Minute }},
			relay.Destination{Name: "series", Sink: fails(&series), BackoffSeries: []time.Duration{time.Minute}},
			relay.Destination{Name: "base", Sink: fails(&base), BackoffBase: time.Second, BackoffMax: time.Second})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		pass(3 * time.Hour)
		cancel()
		if err := <-ended; err != nil {
			t.Fatal(err)
		}
		const m = time.Minute
		for _, c := range []struct {
			name      string
			got, want []time.Duration
		}{
			{"inherited", inherited, []time.Duration{0, 10 * m, 30 * m, 60 * m}},
			{"own", own, []time.Duration{0, 5 * m, 5 * m, 5 * m}}, // a negative delay is none
			{"series", series, []time.Duration{0, m, 2 * m, 3 * m}},
			{"base", base, []time.Duration{0, 0, 0, 0}}, // within seconds
		} {
			if !slices.Equal(c.got, c.want) {
				t.Errorf("%s: attempts at %v, want %v", c.name, c.got, c.want)
			}
		}
	})
}

// TestDeliveriesAreLogged: each delivery is a line at DEBUG with the event and
// the duration, of a relay with one sink and of one with destinations.
func TestDeliveriesAreLogged(t *testing.T) {
	for name, open := range map[string]func(f *fixture, sink waybill.Sink, cfg relay.Config) (*relay.Relay, error){
		"sink": func(f *fixture, sink waybill.Sink, cfg relay.Config) (*relay.Relay, error) {
			return relay.New(f.db, sink, cfg)
		},
		"destination": func(f *fixture, sink waybill.Sink, cfg relay.Config) (*relay.Relay, error) {
			return relay.NewTo(f.db, cfg, relay.Destination{Name: "x", Sink: sink})
		},
	} {
		t.Run(name, func(t *testing.T) {
			for level, want := range map[slog.Level]int{slog.LevelDebug: 1, slog.LevelInfo: 0} {
				f, c := newFixture(t), &collector{}
				var out strings.Builder
				ev := event("a", 1)
				ev.ID = waybill.NewID()
				f.write(ev)
				r, err := open(f, c.sink(), relay.Config{Logger: slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: level}))})
				if err != nil {
					t.Fatal(err)
				}
				f.once(r)(nil)
				if n := strings.Count(out.String(), "event delivered"); n != want {
					t.Errorf("%d lines at %v, want %d:\n%s", n, level, want, out.String())
				}
				if want == 1 && (!strings.Contains(out.String(), "event_id="+ev.ID.String()) || !strings.Contains(out.String(), "took=")) {
					t.Errorf("the line lacks the event or the duration:\n%s", out.String())
				}
			}
		})
	}
}
