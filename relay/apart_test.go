package relay_test

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestBacklogWaitsForEveryDirectCall: a lane becomes behind because an event
// fails while a slow call with another event of the lane is under way. Nothing
// of the lane is delivered from the backlog before that call has ended.
func TestBacklogWaitsForEveryDirectCall(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixtureOf(t, memstore.Config{Lanes: 1})
		fast, slow := &place{}, &place{}
		var mu sync.Mutex
		calls, most, failed := 0, 0, false
		slow.say(func(_ context.Context, d waybill.Delivery) error {
			mu.Lock()
			defer mu.Unlock()
			switch {
			case string(d.Payload) == "2" && !failed:
				failed = true
				return errors.New("boom")
			case string(d.Payload) == "1":
				calls++
				most = max(most, calls)
				mu.Unlock()
				<-time.After(5 * time.Second)
				mu.Lock()
				calls--
			}
			return nil
		})
		f.startTo(relay.Config{BatchSize: 1},
			relay.Destination{Name: "fast", Sink: fast},
			relay.Destination{Name: "slow", Sink: slow, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond})
		f.write(event("x", 1), event("y", 2))
		pass(20 * time.Second)
		if got := slow.accepted(); most != 1 || !slices.Equal(got, numbers(2)) {
			t.Errorf("%d calls with event 1 at a time; received %v", most, got)
		}
	})
}

// TestDestinationThatHangsAlone: events that only one destination takes do not
// keep the workers from the events of the others when that destination hangs.
func TestDestinationThatHangsAlone(t *testing.T) {
	inBubble(t, func(f *fixture) {
		hangs, other := &place{}, &place{}
		hangs.say(func(ctx context.Context, _ waybill.Delivery) error { <-ctx.Done(); return ctx.Err() })
		odd := func(ev *waybill.Event) bool { return ev.AggregateID == "odd" }
		f.startTo(relay.Config{Workers: 1, BatchSize: 1},
			relay.Destination{Name: "hangs", Sink: hangs, Filter: odd},
			relay.Destination{Name: "other", Sink: other, Filter: func(ev *waybill.Event) bool { return !odd(ev) }})
		f.write(event("odd", 0))
		f.write(series("x", 1, 3)...)
		pass(5 * time.Second)
		if got := other.accepted(); !slices.Equal(got, numbers(3)) {
			t.Errorf("the other destination received %v", got)
		}
	})
}

// TestCopyDoesNotWaitForAHangingDestination: a destination that is behind gets
// its copy of an event although the only destination that is called hangs.
func TestCopyDoesNotWaitForAHangingDestination(t *testing.T) {
	inBubble(t, func(f *fixture) {
		hangs, behind := &place{}, &place{}
		behind.say(func(context.Context, waybill.Delivery) error {
			return waybill.Later(10*time.Second, errors.New("not now"))
		})
		f.startTo(relay.Config{}, relay.Destination{Name: "hangs", Sink: hangs}, relay.Destination{Name: "behind", Sink: behind})
		f.write(event("x", 1))
		pass(time.Second)
		behind.say(nil)
		hangs.say(func(ctx context.Context, _ waybill.Delivery) error { <-ctx.Done(); return ctx.Err() })
		f.write(event("x", 2))
		pass(15 * time.Second)
		if got := behind.accepted(); !slices.Equal(got, numbers(2)) {
			t.Errorf("received %v", got)
		}
	})
}

// TestWaitingCallsDoNotBeginAfterAPause: calls that wait for their turn at a
// destination do not begin when it has been paused meanwhile.
func TestWaitingCallsDoNotBeginAfterAPause(t *testing.T) {
	inBubble(t, func(f *fixture) {
		p := &place{}
		p.say(func(context.Context, waybill.Delivery) error { <-time.After(20 * time.Second); return nil })
		f.startTo(relay.Config{Workers: 4, BatchSize: 1}, relay.Destination{Name: "p", Sink: p, Concurrency: 1})
		f.write(event("a", 1), event("b", 2), event("c", 3), event("d", 4))
		pass(time.Second)
		backlogs := f.db.Driver().Backlogs
		if _, err := backlogs.PauseDestination(f.Context(), "p", "maintenance"); err != nil {
			t.Fatal(err)
		}
		pass(2 * time.Minute)
		if got := p.accepted(); len(got) != 1 {
			t.Errorf("received %v, want the event whose call was under way", got)
		}
		p.say(nil)
		if _, err := backlogs.ResumeDestination(f.Context(), "p"); err != nil {
			t.Fatal(err)
		}
		pass(20 * time.Second)
		if got := p.accepted(); len(got) != 4 {
			t.Errorf("after it was resumed the destination has %v", got)
		}
	})
}

// TestLastDirectAttemptWithADelay: an event that has used up its attempts is
// not delivered again, although the destination has named a delay.
func TestLastDirectAttemptWithADelay(t *testing.T) {
	inBubble(t, func(f *fixture) {
		p := &place{}
		p.say(func(context.Context, waybill.Delivery) error {
			return waybill.RetryAfter(time.Second, errors.New("too many requests"))
		})
		f.startTo(relay.Config{}, relay.Destination{Name: "p", Sink: p, MaxAttempts: 1})
		f.write(event("x", 1))
		pass(time.Minute)
		if _, dead := f.pending("p"); dead != 1 || len(p.all()) != 1 {
			t.Errorf("%d dead letters after %d attempts, want 1 after 1", dead, len(p.all()))
		}
	})
}

// TestCopiesAreDurable: a settlement that copies events is on disk when it is
// answered. A crash of the database would lose the copy of an event, and the
// destination would receive later ones first.
func TestCopiesAreDurable(t *testing.T) {
	inBubble(t, func(f *fixture) {
		p := &place{}
		p.down()
		roles := f.db.Driver()
		w := &durable{Relay: roles.Relay}
		roles.Relay = w
		r, err := relay.NewTo(roles, relay.Config{}, relay.Destination{Name: "p", Sink: p})
		if err != nil {
			t.Fatal(err)
		}
		ctx, stop := context.WithCancel(f.Context())
		done := make(chan error, 1)
		go func() { done <- r.Run(ctx) }()
		f.write(series("x", 1, 3)...)
		pass(time.Second)
		stop()
		if err := <-done; err != nil {
			t.Fatal(err)
		}
		if copies, lost := w.copies, w.lost; copies != 3 || lost != 0 {
			t.Errorf("%d copies, %d of them are not durable", copies, lost)
		}
	})
}

// durable counts the copies of settlements.
type durable struct {
	driver.Relay
	copies, lost int
}

// Settle implements [driver.Settler].
func (w *durable) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	w.copies += len(s.Divert)
	if !s.Durable {
		w.lost += len(s.Divert)
	}
	return w.Relay.Settle(ctx, s)
}
