package inbox_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/memstore"
)

// newSlowGroup returns a group whose handler takes the time that a header of
// the event names.
func newSlowGroup(t *testing.T, o inbox.Options, ignoreContext bool) *inbox.Group[*memstore.Tx] {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g := in.MustGroup("G", o)
	g.Handle("thing", "Happened", func(ctx context.Context, _ *memstore.Tx, ev waybill.Event) error {
		d, err := time.ParseDuration(ev.Headers["takes"])
		if err != nil {
			return err
		}
		var ended <-chan struct{}
		if !ignoreContext {
			ended = ctx.Done()
		}
		select {
		case <-time.After(d):
		case <-ended:
			return ctx.Err()
		}
		return nil
	})
	return g
}

// wantRecord checks the group's record of an event.
func wantRecord(t *testing.T, g *inbox.Group[*memstore.Tx], d waybill.Delivery, state store.InboxState, attempts int) {
	t.Helper()
	rec, ok, err := g.Find(context.Background(), d.Event)
	if err != nil || !ok || rec.State != state || rec.Attempts != attempts {
		t.Errorf("%s: the record is %+v, %v, %v; want %v after %d attempts", d.AggregateID, rec, ok, err, state, attempts)
	}
}

// lasting returns the delivery of an event whose handler takes this time.
func lasting(no int, takes time.Duration) waybill.Delivery {
	ev := waybill.NewEvent("Happened", no)
	ev.AggregateType, ev.AggregateID = "thing", fmt.Sprint("a", no)
	ev.Headers = map[string]string{"takes": takes.String()}
	return waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
}

// deliver delivers the pending events with a time limit, and returns those that
// are still pending and those that are dead.
func deliver(g *inbox.Group[*memstore.Tx], limit time.Duration, pending []waybill.Delivery) (again, dead []waybill.Delivery) {
	ctx, cancel := context.WithTimeout(context.Background(), limit)
	defer cancel()
	for i, err := range g.Deliver(ctx, pending) {
		switch class, _ := waybill.Classify(err); class {
		case waybill.ClassDone:
		case waybill.ClassPermanent:
			dead = append(dead, pending[i])
		default:
			again = append(again, pending[i])
		}
	}
	return again, dead
}

// A batch that takes longer than the deadline is applied in parts, and no event
// has a counted failure.
func TestABatchThatExceedsItsDeadlineMakesProgress(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newSlowGroup(t, inbox.Options{MaxAttempts: 1}, false)
		var all []waybill.Delivery
		for i := range 64 {
			all = append(all, lasting(i, 100*time.Millisecond))
		}
		pending, calls := all, 0
		for len(pending) > 0 && calls < 3 {
			var dead []waybill.Delivery
			if pending, dead = deliver(g, 5*time.Second, pending); len(dead) > 0 {
				t.Fatalf("call %d: %d events are dead", calls, len(dead))
			}
			calls++
		}
		if len(pending) > 0 {
			t.Fatalf("%d of 64 events are not applied after %d calls", len(pending), calls)
		}
		for i := range all {
			wantRecord(t, g, all[i], store.InboxSucceeded, 1)
		}
	})
}

// A handler that exceeds the deadline each time has failed each time: its event
// becomes dead, and the other events of its batches are applied.
func TestAHandlerThatExceedsItsDeadlineFails(t *testing.T) {
	for _, ignoreContext := range []bool{false, true} {
		t.Run(fmt.Sprintf("ignoreContext=%v", ignoreContext), func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				g := newSlowGroup(t, inbox.Options{MaxAttempts: 3, BackoffBase: time.Second}, ignoreContext)
				slow := lasting(0, time.Hour)
				before, after := lasting(1, time.Millisecond), lasting(2, time.Millisecond)
				pending := []waybill.Delivery{before, slow, after}
				var dead []waybill.Delivery
				for calls := 0; len(pending) > 0 && calls < 20; calls++ {
					var died []waybill.Delivery
					pending, died = deliver(g, 5*time.Second, pending)
					dead = append(dead, died...)
					pass(time.Minute) // the next attempt is due
				}
				if len(dead) != 1 || dead[0].ID != slow.ID || len(pending) > 0 {
					t.Fatalf("dead: %v, pending: %v", dead, pending)
				}
				wantRecord(t, g, slow, store.InboxDead, 3)
				wantRecord(t, g, before, store.InboxSucceeded, 1)
				wantRecord(t, g, after, store.InboxSucceeded, 1)
			})
		})
	}
}

// A shutdown counts nothing.
func TestACanceledHandlerHasNotFailed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := newSlowGroup(t, inbox.Options{MaxAttempts: 1}, false)
		slow := lasting(0, time.Hour)
		ctx, cancel := context.WithCancel(context.Background())
		time.AfterFunc(time.Second, cancel)
		err := g.Deliver(ctx, []waybill.Delivery{slow})[0]
		if class, delay := waybill.Classify(err); class != waybill.ClassDefer || delay != 0 || !errors.Is(err, context.Canceled) {
			t.Errorf("the result is %v: class %v, delay %v", err, class, delay)
		}
		if rec, ok, err := g.Find(context.Background(), slow.Event); err != nil || ok {
			t.Errorf("there is a record: %+v, %v", rec, err)
		}
	})
}
