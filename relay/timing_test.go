package relay_test

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/handler"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
)

// handOver is how long an event that is due may take to be read and delivered.
const handOver = 100 * time.Millisecond

// TestRetriesBackOff: the delay after the nth failure is 200 ms, 400 ms, ... 60
// s, spread by a factor between 0.5 and 1.5, for failed events and for probes
// of an unavailable destination.
func TestRetriesBackOff(t *testing.T) {
	for name, err := range map[string]error{"retry": errors.New("boom"), "probe": waybill.Unavailable(errors.New("boom"))} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				var mu sync.Mutex
				var at []time.Time
				stop := run(t, f.db.Driver().Relay, relay.SinkFunc(func(context.Context, waybill.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					at = append(at, time.Now())
					return err
				}), relay.Config{MaxAttempts: 14, Logger: slog.New(slog.DiscardHandler)})
				f.write(event("a", 1))
				pass(20 * time.Minute)
				stop()
				if len(at) < 14 {
					t.Fatalf("%d attempts", len(at))
				}
				want := 200 * time.Millisecond
				for n := 1; n < 14; n++ {
					delay := at[n].Sub(at[n-1])
					if shortest, longest := want/2, min(want*3/2, time.Minute)+handOver; delay < shortest || delay > longest {
						t.Errorf("the delay after failure %d is %v, want %v to %v", n, delay, shortest, longest)
					}
					want = min(2*want, time.Minute)
				}
			})
		})
	}
}

// TestUnknownGraceEnds: an event without a handler waits for
// Config.UnknownGrace, and then becomes a dead letter.
func TestUnknownGraceEnds(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		ev := event("a", 1)
		ev.ID = waybill.NewID()
		stop := run(t, f.db.Driver().Relay, handler.NewMux(), relay.Config{UnknownGrace: time.Minute, Logger: slog.New(slog.DiscardHandler)})
		f.write(ev)
		state := func() store.State {
			found, err := f.db.Driver().OutboxAdmin.Find(t.Context(), ev.ID)
			if err != nil || len(found) != 1 {
				t.Fatal(err, found)
			}
			return found[0].State
		}
		pass(59 * time.Second)
		if got := state(); got == store.Dead {
			t.Errorf("before its grace is over it is %v", got)
		}
		pass(2 * time.Second)
		if got := state(); got != store.Dead {
			t.Errorf("when its grace is over it is %v", got)
		}
		stop()
	})
}

// TestPollIntervalIsObeyed: an idle relay reads new rows once per interval, and
// deferred rows once per two intervals.
func TestPollIntervalIsObeyed(t *testing.T) {
	for _, interval := range []time.Duration{500 * time.Millisecond, 2 * time.Second, 10 * time.Second} {
		t.Run(interval.String(), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				f := newFixture(t)
				var mu sync.Mutex
				reads := map[string]int{}
				stop := run(t, f.db.Driver().Relay, (&collector{}).sink(), relay.Config{
					PollInterval: interval, Logger: slog.New(slog.DiscardHandler),
					Observe: observe.Hooks{Read: func(info observe.ReadInfo) {
						mu.Lock()
						defer mu.Unlock()
						reads[info.Kind]++
					}},
				})
				pass(10*time.Minute + time.Millisecond) // now it is idle
				mu.Lock()
				clear(reads)
				mu.Unlock()
				pass(100 * interval)
				mu.Lock()
				defer mu.Unlock()
				if reads["fast"] != 100 || reads["due"] != 50 {
					t.Errorf("in 100 intervals: %v", reads)
				}
				stop()
			})
		})
	}
}
