package inbox_test

import (
	"context"
	"errors"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestHandleType: a handler of an event type gets the events of all aggregate
// types that have no handler of their own, in a group and through a bus.
func TestHandleType(t *testing.T) {
	_, in := newInbox(t, inbox.Config{})
	group := in.MustGroup("g", inbox.Options{})
	var got []string
	note := func(who string) inbox.HandlerFunc[*memstore.Tx] {
		return func(_ context.Context, _ *memstore.Tx, ev waybill.Event) error {
			got = append(got, who+" "+ev.AggregateType+" "+ev.Type)
			return nil
		}
	}
	group.HandleType("Deleted", note("type"))
	group.Handle("order", "Deleted", note("own"))
	for _, sink := range []waybill.Sink{group, inbox.NewBus(group)} {
		got = nil
		var batch []waybill.Delivery
		for _, aggregateType := range []string{"order", "user", ""} {
			ev := waybill.NewEvent("Deleted", 1)
			ev.ID, ev.AggregateType, ev.AggregateID = waybill.NewID(), aggregateType, aggregateType
			batch = append(batch, waybill.Delivery{Event: eventfill.Defaults(ev)})
		}
		for i, err := range sink.Deliver(t.Context(), batch) {
			if err != nil {
				t.Errorf("%T: event %d: %v", sink, i, err)
			}
		}
		want := []string{"own order Deleted", "type " + waybill.GlobalAggregate + " Deleted", "type user Deleted"}
		if slices.Sort(got); !slices.Equal(got, want) {
			t.Errorf("%T called %q, want %q", sink, got, want)
		}
	}
	if !group.Handles("user", "Deleted") || !group.Handles("order", "Deleted") || group.Handles("user", "Added") {
		t.Error("Handles is wrong")
	}
	for what, register := range map[string]func(){
		"a second handler of the type": func() { group.HandleType("Deleted", note("")) },
		"a nil handler":                func() { group.HandleType("Other", nil) },
		"an empty type":                func() { group.HandleType("", note("")) },
	} {
		func() {
			defer func() {
				if recover() == nil {
					t.Errorf("%s was accepted", what)
				}
			}()
			register()
		}()
	}
}

// TestOwnBackoff: a failed event is due after the delay of Options.Backoff,
// which gets the number of failures.
func TestOwnBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		_, in := newInbox(t, inbox.Config{})
		group := in.MustGroup("g", inbox.Options{Backoff: func(failures int) time.Duration { return time.Duration(failures*failures) * time.Hour }})
		calls := 0
		fail := func(context.Context, *memstore.Tx, waybill.Event) error { calls++; return errors.New("boom") }
		ev := waybill.NewEvent("Deleted", 1)
		ev.ID = waybill.NewID()
		consume := func() {
			t.Helper()
			if _, err := group.Consume(t.Context(), eventfill.Defaults(ev), fail); err == nil {
				t.Fatal("the failure was lost")
			}
		}
		consume()
		for failures := 1; failures < 4; failures++ {
			pass(time.Duration(failures*failures)*time.Hour - time.Second)
			if consume(); calls != failures {
				t.Errorf("after %d failures the event was due early", failures)
			}
			pass(time.Second)
			if consume(); calls != failures+1 {
				t.Errorf("after %d failures the event was not due", failures)
			}
		}
	})
}
