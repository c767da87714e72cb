package relay_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
)

// partSink is a part of a fan: it has a destination per event type, and accepts
// batches, as brokers do.
type partSink struct {
	mu     sync.Mutex
	got    []waybill.Delivery
	answer func(d waybill.Delivery) error
}

func (p *partSink) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	p.mu.Lock()
	defer p.mu.Unlock()
	errs := make([]error, len(batch))
	for i, d := range batch {
		p.got = append(p.got, d)
		if p.answer != nil {
			errs[i] = p.answer(d)
		}
	}
	return errs
}

func (*partSink) Destination(ev *waybill.Event) string { return ev.Type }

// of counts the deliveries of an event type.
func (p *partSink) of(eventType string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	n := 0
	for i := range p.got {
		if p.got[i].Type == eventType {
			n++
		}
	}
	return n
}

// say sets the part's answer for events of a type.
func (p *partSink) say(eventType string, err error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answer = func(d waybill.Delivery) error {
		if d.Type == eventType {
			return err
		}
		return nil
	}
}

func typed(eventType, aggregate string, n int) waybill.Event {
	ev := event(aggregate, n)
	ev.Type = eventType
	return ev
}

// TestFanKeepsDestinationsApart: a type that one part of a fan cannot accept
// stops no other type on any part, and the healthy part gets the type's event
// once, however often the other part is probed with it.
func TestFanKeepsDestinationsApart(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		one, two := &partSink{}, &partSink{}
		two.say("X", waybill.Unavailable(errors.New("no queue is bound")))
		var mu sync.Mutex
		var paused []string
		stop := f.start(relay.FanOut(one, two), relay.Config{Observe: observe.Hooks{Paused: func(info observe.PausedInfo) {
			mu.Lock()
			defer mu.Unlock()
			paused = append(paused, fmt.Sprint(info.Destination, " ", info.Paused))
		}}})
		f.write(typed("X", "x", 0))
		pass(10 * time.Minute)
		probes := two.of("X")
		if probes < 10 {
			t.Errorf("the unavailable part was probed %d times in ten minutes", probes)
		}
		for n := range 30 {
			f.write(typed("Y", fmt.Sprint("y", n), n), typed("Z", "", n))
		}
		pass(10 * time.Second)
		for _, part := range []*partSink{one, two} {
			if y, z := part.of("Y"), part.of("Z"); y != 30 || z != 30 {
				t.Errorf("while X is unavailable %d of 30 Y and %d of 30 Z were delivered", y, z)
			}
		}
		two.say("X", nil)
		pass(2 * time.Minute)
		if n := one.of("X"); n != 1 {
			t.Errorf("the healthy part got %d copies of one event in %d probes", n, probes)
		}
		if s, err := f.db.Driver().OutboxAdmin.Stats(t.Context()); err != nil || s.Ready+s.Failed+s.Dead != 0 {
			t.Errorf("%+v, %v", s, err)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
		if want := []string{"X + X true", "X + X false"}; !slices.Equal(paused, want) {
			t.Errorf("reported %q, want %q", paused, want)
		}
	})
}

// pass lets synctest's time pass.
func pass(d time.Duration) {
	time.Sleep(d) //nolint:forbidigo // synctest's time
	synctest.Wait()
}

// TestFanAndDeadLetters: an event that one part rejects permanently becomes a
// dead letter, which the other part has once. A replay goes to both.
func TestFanAndDeadLetters(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFixture(t)
		one, two := &partSink{}, &partSink{}
		two.say("X", waybill.Permanent(errors.New("never")))
		stop := f.start(relay.FanOut(one, two), relay.Config{MaxAttempts: 3})
		ev := typed("X", "x", 0)
		ev.ID = waybill.NewID()
		f.write(ev)
		pass(time.Minute)
		two.say("X", errors.New("not now"))
		for range 2 {
			if s, err := f.db.Driver().OutboxAdmin.Stats(t.Context()); err != nil || s.Dead != 1 {
				t.Fatalf("%+v, %v", s, err)
			}
			if _, err := f.db.Driver().OutboxAdmin.Replay(t.Context(), []waybill.ID{ev.ID}); err != nil {
				t.Fatal(err)
			}
			pass(time.Minute)
			two.say("X", nil)
		}
		if s, err := f.db.Driver().OutboxAdmin.Stats(t.Context()); err != nil || s.Ready+s.Failed+s.Dead != 0 {
			t.Errorf("%+v, %v", s, err)
		}
		// The event died at once, died after three attempts, and was delivered.
		if one.of("X") != 3 || two.of("X") != 1+3+1 {
			t.Errorf("the parts got it %d and %d times", one.of("X"), two.of("X"))
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// fanCall calls a fan without a relay.
func fanCall(t *testing.T, s waybill.Sink, batch ...waybill.Delivery) []waybill.Class {
	t.Helper()
	errs := s.Deliver(t.Context(), batch)
	if len(errs) != len(batch) {
		t.Fatalf("%d results for %d deliveries", len(errs), len(batch))
	}
	classes := make([]waybill.Class, len(errs))
	for i, err := range errs {
		classes[i], _ = waybill.Classify(err)
	}
	return classes
}

func delivery(eventType string) waybill.Delivery {
	ev := typed(eventType, "a", 0)
	ev.ID = waybill.NewID()
	return waybill.Delivery{Event: ev, Attempt: 1, Position: waybill.Position{Lane: 1, Epoch: 2, Seq: 3}, Claim: &driver.Claim{Token: waybill.NewID()}}
}

// TestFanRemembersDeliveries: whatever a part answers, the parts that have the
// event do not get it again until all parts have it; then the event is
// forgotten.
func TestFanRemembersDeliveries(t *testing.T) {
	boom := errors.New("boom")
	for name, c := range map[string]struct {
		answer func(waybill.Delivery) error
		want   waybill.Class
	}{
		"unavailable": {func(waybill.Delivery) error { return waybill.Unavailable(boom) }, waybill.ClassUnavailable},
		"permanent":   {func(waybill.Delivery) error { return waybill.Permanent(boom) }, waybill.ClassPermanent},
		"retry":       {func(waybill.Delivery) error { return boom }, waybill.ClassRetry},
		"later":       {func(waybill.Delivery) error { return waybill.Later(time.Second, boom) }, waybill.ClassDefer},
		"panic":       {func(waybill.Delivery) error { panic("boom") }, waybill.ClassRetry},
	} {
		t.Run(name, func(t *testing.T) {
			one, two, three := &partSink{}, &partSink{answer: c.answer}, &partSink{}
			// The part cannot have settled the event: it had no token.
			one.answer = func(waybill.Delivery) error { return waybill.ErrSettled }
			s := relay.FanOut(one, two, three)
			d := delivery("X")
			for range 3 {
				if got := fanCall(t, s, d); got[0] != c.want {
					t.Errorf("the event is %v, want %v", got[0], c.want)
				}
				d.Attempt++
			}
			two.answer = nil
			if got := fanCall(t, s, d); got[0] != waybill.ClassDone {
				t.Errorf("the event is %v when all have it", got[0])
			}
			if len(one.got) != 1 || len(three.got) != 1 || len(two.got) < 2 {
				t.Errorf("%d, %d and %d deliveries", len(one.got), len(two.got), len(three.got))
			}
			if one.got[0].Claim != nil || one.got[0].Position != d.Position {
				t.Error("a part could settle for the others, or does not know the position")
			}
			fanCall(t, s, d) // it was settled in vain: the lane had been lost
			if len(one.got) != 2 {
				t.Errorf("an event that all have is remembered: %d deliveries", len(one.got))
			}
		})
	}
}

// TestFanOfBatches: each part gets the events of a batch that it does not have,
// and each event has its own result.
func TestFanOfBatches(t *testing.T) {
	one, two := &partSink{}, &partSink{}
	two.say("X", waybill.Unavailable(errors.New("down")))
	s := relay.FanOut(one, two)
	x, y := delivery("X"), delivery("Y")
	if got := fanCall(t, s, x, y); got[0] != waybill.ClassUnavailable || got[1] != waybill.ClassDone {
		t.Errorf("got %v", got)
	}
	z := delivery("Z")
	if got := fanCall(t, s, z, x); got[0] != waybill.ClassDone || got[1] != waybill.ClassUnavailable {
		t.Errorf("got %v", got)
	}
	if one.of("X") != 1 || one.of("Y") != 1 || one.of("Z") != 1 || two.of("X") != 2 {
		t.Errorf("the parts got %d and %d deliveries", len(one.got), len(two.got))
	}
	// A replayed event goes to all parts again.
	x.Replay++
	fanCall(t, s, x)
	if one.of("X") != 2 {
		t.Errorf("%d deliveries of an event that was replayed", one.of("X"))
	}
}

// shortSink returns no results.
type shortSink struct{ calls int }

func (s *shortSink) Deliver(context.Context, []waybill.Delivery) []error { s.calls++; return nil }

// TestFanWithAPartThatAnswersWrong: a part with a wrong number of results has
// none of the events; the others do not get them again.
func TestFanWithAPartThatAnswersWrong(t *testing.T) {
	one, wrong := &partSink{}, &shortSink{}
	s := relay.FanOut(one, wrong)
	d := delivery("X")
	for range 3 {
		if got := fanCall(t, s, d); got[0] != waybill.ClassUnavailable {
			t.Errorf("the event is %v", got[0])
		}
	}
	if len(one.got) != 1 || wrong.calls != 3 {
		t.Errorf("%d and %d deliveries", len(one.got), wrong.calls)
	}
}

// fewSink counts deliveries, and optionally rejects all of them.
type fewSink struct {
	n      int
	refuse error
}

func (s *fewSink) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	s.n += len(batch)
	errs := make([]error, len(batch))
	for i := range errs {
		errs[i] = s.refuse
	}
	return errs
}

// TestFanForgets: a fan remembers at most 100,000 events, the most recent ones.
func TestFanForgets(t *testing.T) {
	one, two := &fewSink{}, &fewSink{refuse: errors.New("boom")}
	s := relay.FanOut(one, two)
	first, often := delivery("X"), delivery("X")
	s.Deliver(t.Context(), []waybill.Delivery{first, often})
	batch := make([]waybill.Delivery, 1000)
	for range 101 {
		for i := range batch {
			batch[i].ID = waybill.NewID()
		}
		s.Deliver(t.Context(), batch)
		s.Deliver(t.Context(), []waybill.Delivery{often})
	}
	before := one.n
	s.Deliver(t.Context(), []waybill.Delivery{often})
	if one.n != before {
		t.Error("an event that is tried again and again was forgotten")
	}
	s.Deliver(t.Context(), []waybill.Delivery{first})
	if one.n != before+1 {
		t.Error("more than 100,000 events are remembered")
	}
}

// TestFanNamesDestinations: the name distinguishes any two combinations of
// destinations, and is readable.
func TestFanNamesDestinations(t *testing.T) {
	name := func(s waybill.Sink, ev waybill.Event) string {
		d, ok := s.(relay.DestinationSink)
		if !ok {
			return "none"
		}
		return d.Destination(&ev)
	}
	byType, byTopic := &partSink{}, &topicSink{}
	ev := waybill.Event{Type: "Placed", Topic: "orders"}
	for _, c := range []struct {
		sink waybill.Sink
		want string
	}{
		{relay.FanOut(byType, byTopic), "Placed + orders"},
		{relay.FanOut(byType, &shortSink{}), "Placed"},
		{relay.FanOut(&shortSink{}, &shortSink{}), ""},
		{relay.FanOut(byType), "Placed"},
		{relay.FanOut(byType, relay.FanOut(byType, byTopic)), `Placed + Placed \+ orders`},
	} {
		if got := name(c.sink, ev); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
	parts := []string{"", "a", "a + ", " + a", "+", `\`, `\+`, "a + a", `a \+ a`}
	seen := map[string]string{}
	for _, one := range parts {
		for _, two := range parts {
			got := name(relay.FanOut(byType, byTopic), waybill.Event{Type: one, Topic: two})
			if other, taken := seen[got]; taken {
				t.Errorf("(%q, %q) and %s are both %q", one, two, other, got)
			}
			seen[got] = fmt.Sprintf("(%q, %q)", one, two)
		}
	}
}

type topicSink struct{ shortSink }

func (*topicSink) Destination(ev *waybill.Event) string { return ev.Topic }
