package relay_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
)

// TestDestinationFilters: a destination gets the events that its filters take.
// An event that no destination takes is done and counted.
func TestDestinationFilters(t *testing.T) {
	inBubble(t, func(f *fixture) {
		byType, byTenant, byKind, byFunc := &place{}, &place{}, &place{}, &place{}
		var unrouted []string
		f.startTo(relay.Config{Observe: observe.Hooks{Unrouted: func(i observe.UnroutedInfo) { unrouted = append(unrouted, string(i.Event.Payload)) }}},
			relay.Destination{Name: "type", Sink: byType, Types: []string{"A", "B"}},
			relay.Destination{Name: "tenant", Sink: byTenant, Tenants: []string{"t1"}},
			relay.Destination{Name: "kind", Sink: byKind, AggregateTypes: []string{"thing"}, Types: []string{"C"}},
			relay.Destination{Name: "func", Sink: byFunc, Filter: func(ev *waybill.Event) bool { return ev.Priority == 7 }})
		one := func(n int, change func(*waybill.Event)) waybill.Event {
			ev := waybill.NewEvent("C", n)
			change(&ev)
			return ev
		}
		f.write(
			one(1, func(ev *waybill.Event) { ev.Type = "A" }),
			one(2, func(ev *waybill.Event) { ev.Type, ev.TenantID = "B", "t1" }),
			one(3, func(ev *waybill.Event) { ev.AggregateType, ev.AggregateID = "thing", "x" }),
			one(4, func(ev *waybill.Event) { ev.Priority = 7 }),
			one(5, func(*waybill.Event) {}),
		)
		pass(time.Second)
		for _, c := range []struct {
			p    *place
			want string
		}{{byType, "1 2"}, {byTenant, "2"}, {byKind, "3"}, {byFunc, "4"}} {
			got := c.p.accepted()
			slices.Sort(got)
			if strings.Join(got, " ") != c.want {
				t.Errorf("received %v, want %s", got, c.want)
			}
		}
		if !slices.Equal(unrouted, []string{"5"}) {
			t.Errorf("counted as unrouted: %v", unrouted)
		}
		s, err := f.db.Driver().OutboxAdmin.Stats(f.Context())
		if err != nil || s.Ready+s.Failed+s.Scheduled+s.Dead != 0 {
			t.Errorf("the outbox has %+v, %v", s, err)
		}
	})
}

// TestFilterThatPanics: an event whose filter panics is passed to the sink, and
// the relay goes on. The log has one line.
func TestFilterThatPanics(t *testing.T) {
	inBubble(t, func(f *fixture) {
		var log strings.Builder
		p, other := &place{}, &place{}
		stop := f.startTo(relay.Config{Logger: slog.New(slog.NewTextHandler(&log, nil))},
			relay.Destination{Name: "p", Sink: p, Filter: func(ev *waybill.Event) bool {
				if string(ev.Payload) != "3" {
					panic("no such tenant")
				}
				return false
			}},
			relay.Destination{Name: "other", Sink: other})
		f.write(series("x", 1, 5)...)
		pass(time.Second)
		stop()
		if got := strings.Join(p.accepted(), " "); got != "1 2 4 5" || len(other.accepted()) != 5 {
			t.Errorf("received %s and %v", got, other.accepted())
		}
		if n := strings.Count(log.String(), "no such tenant"); n < 1 || n > 2 {
			t.Errorf("%d lines about the panic, want one for each time that it begins:\n%s", n, log.String())
		}
	})
}

// TestDestinationRate: a destination with a rate gets no more than that, and
// every event in order; the other one does not wait.
func TestDestinationRate(t *testing.T) {
	inBubble(t, func(f *fixture) {
		fast, slow := &place{}, &place{}
		f.startTo(relay.Config{}, relay.Destination{Name: "fast", Sink: fast}, relay.Destination{Name: "slow", Sink: slow, Rate: 10})
		began := time.Now()
		f.write(series("x", 1, 100)...)
		pass(time.Second)
		if n := len(fast.accepted()); n != 100 {
			t.Errorf("fast has %d events after a second", n)
		}
		pass(19 * time.Second)
		got := slow.all()
		if !slices.Equal(slow.accepted(), numbers(100)) {
			t.Fatalf("slow received %v", slow.accepted())
		}
		for i := range got {
			// A burst of one second, then the rate.
			if allowed := 10 + 10*got[i].at.Sub(began).Seconds(); float64(i+1) > allowed+0.001 {
				t.Fatalf("event %d came after %v", i+1, got[i].at.Sub(began))
			}
		}
		if took := got[99].at.Sub(began); took > 12*time.Second {
			t.Errorf("the last event came after %v, want about 9 s", took)
		}
	})
}

// tooMany is the answer of a destination that asks for fewer events.
type tooMany struct{}

func (tooMany) Error() string         { return "429 Too Many Requests" }
func (tooMany) TooManyRequests() bool { return true }

// TestDestinationAsksForFewer: a destination that refuses all but the first
// events of each second gets fewer, without a Rate, and later all of them. The
// other one does not wait.
func TestDestinationAsksForFewer(t *testing.T) {
	for name, refusal := range map[string]error{"delay": waybill.RetryAfter(time.Second, errors.New("busy")), "status": tooMany{}} {
		t.Run(name, func(t *testing.T) {
			inBubble(t, func(f *fixture) {
				fast, strict := &place{}, &place{}
				var mu sync.Mutex
				accepted, refused := make(map[int64]int), 0
				strict.say(func(context.Context, waybill.Delivery) error {
					mu.Lock()
					defer mu.Unlock()
					second := time.Now().Unix()
					if accepted[second]++; accepted[second] > 10 {
						refused++
						return refusal
					}
					return nil
				})
				f.startTo(relay.Config{MaxAttempts: 100, BackoffBase: time.Second},
					relay.Destination{Name: "fast", Sink: fast}, relay.Destination{Name: "strict", Sink: strict})
				var evs []waybill.Event
				for i := range 150 {
					evs = append(evs, event(fmt.Sprint("a", i), i))
				}
				f.write(evs...)
				pass(time.Second)
				if n := len(fast.accepted()); n != 150 {
					t.Errorf("fast has %d events after a second", n)
				}
				pass(2 * time.Minute)
				if n := len(strict.accepted()); n != 150 {
					t.Errorf("strict has %d of 150 events", n)
				}
				// At an unlimited rate it refuses 140 + 130 + … calls.
				if first := 150 - 10; refused < first || refused > 2*first+50 {
					t.Errorf("strict refused %d calls, want about twice the first %d", refused, first)
				}
			})
		})
	}
}

// TestPauseOfADestination: a paused destination gets nothing, and everything in
// order when it is resumed.
func TestPauseOfADestination(t *testing.T) {
	inBubble(t, func(f *fixture) {
		a, b := &place{}, &place{}
		f.startTo(relay.Config{}, relay.Destination{Name: "a", Sink: a}, relay.Destination{Name: "b", Sink: b})
		f.write(event("x", 1))
		pass(time.Second)
		backlogs := f.db.Driver().Backlogs
		if ok, err := backlogs.PauseDestination(f.Context(), "b", "maintenance"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		pass(6 * time.Second) // a heartbeat
		f.write(series("x", 2, 10)...)
		pass(time.Minute)
		if got := b.accepted(); !slices.Equal(got, numbers(1)) {
			t.Errorf("while it is paused the destination received %v", got)
		}
		if got := a.accepted(); !slices.Equal(got, numbers(10)) {
			t.Errorf("the other destination received %v", got)
		}
		if ok, err := backlogs.ResumeDestination(f.Context(), "b"); !ok || err != nil {
			t.Fatal(ok, err)
		}
		pass(8 * time.Second)
		if got := b.accepted(); !slices.Equal(got, numbers(10)) {
			t.Errorf("after it was resumed the destination has %v", got)
		}
	})
}

// TestProbeOnRequest: an operator's request has an unavailable destination
// tried at the next check.
func TestProbeOnRequest(t *testing.T) {
	inBubble(t, func(f *fixture) {
		p := &place{}
		p.down()
		f.startTo(relay.Config{BackoffBase: time.Hour, BackoffMax: time.Hour}, relay.Destination{Name: "p", Sink: p})
		f.write(event("x", 1))
		pass(time.Minute)
		n := len(p.all())
		p.say(nil)
		pass(time.Minute)
		if got := len(p.all()); got != n {
			t.Fatalf("%d attempts without a request", got-n)
		}
		if err := f.db.Driver().Backlogs.ProbeDestination(f.Context(), "p"); err != nil {
			t.Fatal(err)
		}
		pass(6 * time.Second)
		if got := p.accepted(); !slices.Equal(got, numbers(1)) {
			t.Errorf("after the request the destination has %v", got)
		}
	})
}

// TestManyDeathsPauseADestination: after PauseAfter dead letters in a row with
// one cause the destination is paused, and the rest stays in its backlog.
func TestManyDeathsPauseADestination(t *testing.T) {
	inBubble(t, func(f *fixture) {
		p := &place{}
		p.say(func(_ context.Context, d waybill.Delivery) error {
			return waybill.Permanent(fmt.Errorf("order %s: unknown field %q", d.Payload, "a"+string(d.Payload)))
		})
		f.startTo(relay.Config{Workers: 1, BatchSize: 1}, relay.Destination{Name: "p", Sink: p, PauseAfter: 5})
		f.write(series("x", 1, 50)...)
		pass(time.Minute)
		pending, dead := f.pending("p")
		if dead != 5 || pending != 45 {
			t.Errorf("%d dead and %d pending, want 5 and 45", dead, pending)
		}
		all, err := f.db.Driver().Backlogs.AddDestinations(f.Context())
		if err != nil || !all[0].IsPaused() || !strings.Contains(all[0].Reason, "5 dead letters in a row") {
			t.Errorf("registered: %+v, %v", all, err)
		}
	})
}

// TestReplayOfHistory: events that are copied from the history come again, with
// their ids and a replay number, in front of newer events of their lanes.
func TestReplayOfHistory(t *testing.T) {
	inBubble(t, func(f *fixture) {
		a, b := &place{}, &place{}
		f.startTo(relay.Config{}, relay.Destination{Name: "a", Sink: a}, relay.Destination{Name: "b", Sink: b})
		f.write(series("x", 1, 20)...)
		pass(time.Second)
		if _, err := f.backlog("b").Refill(f.Context(), driver.HistoryQuery{}, driver.HistoryCursor{}, 100); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Second)
		f.write(event("x", 21))
		pass(time.Second)
		if got := a.accepted(); !slices.Equal(got, numbers(21)) {
			t.Errorf("a received %v", got)
		}
		got := b.all()
		if len(got) != 41 || !slices.Equal(b.accepted()[20:], numbers(21)) {
			t.Fatalf("b received %v", b.accepted())
		}
		for i := range 20 {
			if got[20+i].Replay != 1 || got[20+i].ID != got[i].ID || got[20+i].Attempt != 1 {
				t.Errorf("event %d came again as replay %d, attempt %d", i+1, got[20+i].Replay, got[20+i].Attempt)
			}
		}
	})
}

// TestFilterAppliesToTheBacklog: events that an operator has copied from the
// history, and that the destination does not take, are not delivered.
func TestFilterAppliesToTheBacklog(t *testing.T) {
	inBubble(t, func(f *fixture) {
		all, none := &place{}, &place{}
		f.startTo(relay.Config{}, relay.Destination{Name: "all", Sink: all}, relay.Destination{Name: "none", Sink: none, Types: []string{"Other"}})
		f.write(series("x", 1, 5)...)
		pass(time.Second)
		if _, err := f.backlog("none").Refill(f.Context(), driver.HistoryQuery{}, driver.HistoryCursor{}, 100); err != nil {
			t.Fatal(err)
		}
		pass(10 * time.Second)
		if got := none.accepted(); len(got) != 0 {
			t.Errorf("received %v", got)
		}
		if n, dead := f.pending("none"); n+dead != 0 {
			t.Errorf("%d events are in the backlog, %d dead", n, dead)
		}
	})
}
