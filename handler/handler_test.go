package handler_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/handler"
	"github.com/waybillhq/waybill/internal/eventfill"
)

type placed struct {
	Total int `json:"total"`
}

var orderPlaced = waybill.Define[placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

// A mux is a sink: the relay delivers committed events to it.
func Example() {
	mux := handler.NewMux()
	handler.On(mux, orderPlaced, func(_ context.Context, ev waybill.Event, p placed) error {
		fmt.Println(ev.AggregateID, "for", p.Total)
		return nil
	})
	mux.Fallback(func(_ context.Context, ev waybill.Event) error {
		fmt.Println("fallback:", ev.Type)
		return nil
	})
	mux.Deliver(context.Background(), []waybill.Delivery{
		{Event: orderPlaced.New("o-1", placed{Total: 9990})}, {Event: waybill.NewEvent("StockCounted", 1)},
	})
	// Output:
	// o-1 for 9990
	// fallback: StockCounted
}

func deliver(m waybill.Sink, evs ...waybill.Event) []error {
	batch := make([]waybill.Delivery, len(evs))
	for i, ev := range evs {
		batch[i] = waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
	}
	return m.Deliver(context.Background(), batch)
}

func mustPanic(t *testing.T, what string, fn func()) {
	t.Helper()
	defer func() {
		if recover() == nil {
			t.Errorf("%s did not panic", what)
		}
	}()
	fn()
}

// A second handler for an aggregate type and event type panics at registration.
func TestSecondHandlerPanics(t *testing.T) {
	ok := func(context.Context, waybill.Event) error { return nil }
	mux := handler.NewMux()
	mux.Handle("order", "OrderPlaced", ok)
	mux.Handle("", "OrderPlaced", ok) // another aggregate type
	mux.Fallback(ok)
	mustPanic(t, "a second handler", func() { mux.Handle("order", "OrderPlaced", ok) })
	mustPanic(t, "a second handler for the global aggregate", func() { mux.Handle(waybill.GlobalAggregate, "OrderPlaced", ok) })
	mustPanic(t, "a second typed handler", func() {
		handler.On(mux, orderPlaced, func(context.Context, waybill.Event, placed) error { return nil })
	})
	mustPanic(t, "a second fallback", func() { mux.Fallback(ok) })
	mustPanic(t, "a nil handler", func() { mux.Handle("a", "b", nil) })
	mustPanic(t, "an empty type", func() { mux.Handle("a", "", ok) })
	if !mux.Handles("order", "OrderPlaced") || mux.Handles("order", "Other") {
		t.Error("Handles is wrong")
	}
}

// Each event has its own result, in the order of the batch; panics are
// contained, with their stack beside the error.
func TestResults(t *testing.T) {
	mux := handler.NewMux()
	boom := errors.New("boom")
	mux.Handle("", "Good", func(context.Context, waybill.Event) error { return nil })
	mux.Handle("", "Bad", func(context.Context, waybill.Event) error { return boom })
	mux.Handle("", "Panic", func(context.Context, waybill.Event) error { panic(boom) })
	handler.On(mux, orderPlaced, func(context.Context, waybill.Event, placed) error { return nil })
	broken := waybill.NewEvent("OrderPlaced", "text")
	broken.AggregateType, broken.AggregateID = "order", "o"
	errs := deliver(mux, waybill.NewEvent("Good", 1), waybill.NewEvent("Bad", 1), waybill.NewEvent("Panic", 1), waybill.NewEvent("NoHandler", 1), broken)
	if errs[0] != nil || !errors.Is(errs[1], boom) || !errors.Is(errs[3], waybill.ErrNoHandler) {
		t.Errorf("results: %v", errs)
	}
	var p *handler.PanicError
	if !errors.As(errs[2], &p) || !strings.Contains(p.Stack(), "TestResults") || strings.Contains(p.Error(), "TestResults") || !errors.Is(p, boom) {
		t.Errorf("the panic: %v", errs[2])
	}
	for i, want := range []waybill.Class{waybill.ClassDone, waybill.ClassRetry, waybill.ClassRetry, waybill.ClassPermanent, waybill.ClassPermanent} {
		if class, _ := waybill.Classify(errs[i]); class != want {
			t.Errorf("result %d is %v, want %v", i, class, want)
		}
	}
}

// After the context is canceled, no further event is handled.
func TestEndedContext(t *testing.T) {
	mux := handler.NewMux()
	ctx, cancel := context.WithCancel(context.Background())
	calls := 0
	mux.Handle("", "Good", func(context.Context, waybill.Event) error { calls++; cancel(); return nil })
	ev := waybill.Delivery{Event: eventfill.Defaults(waybill.NewEvent("Good", 1))}
	errs := mux.Deliver(ctx, []waybill.Delivery{ev, ev})
	if calls != 1 || errs[0] != nil || !errors.Is(errs[1], context.Canceled) {
		t.Errorf("%d calls, results %v", calls, errs)
	}
}

// Neither an error nor a panic of the After function changes the result, and
// both are logged.
func TestAfterContainsItself(t *testing.T) {
	var text strings.Builder
	log := slog.New(slog.NewTextHandler(&text, nil))
	boom := errors.New("boom")
	mux := handler.NewMux()
	var seen []error
	mux.Use(handler.AfterLog(log, func(context.Context, handler.AfterInfo) error { panic("after") }),
		handler.AfterLog(log, func(_ context.Context, info handler.AfterInfo) error {
			seen = append(seen, info.Err)
			return errors.New("mine")
		}))
	mux.Handle("", "Bad", func(context.Context, waybill.Event) error { return boom })
	mux.Handle("", "Panic", func(context.Context, waybill.Event) error { panic("handler") })
	errs := deliver(mux, waybill.NewEvent("Bad", 1), waybill.NewEvent("Panic", 1))
	if !errors.Is(errs[0], boom) || errs[1] == nil || errs[1].Error() != "panic: handler" {
		t.Errorf("results %v", errs)
	}
	if len(seen) != 2 || !errors.Is(seen[0], boom) || seen[1] == nil {
		t.Errorf("After received %v", seen)
	}
	if got := text.String(); strings.Count(got, "error=mine") != 2 || strings.Count(got, `error="panic: after"`) != 2 {
		t.Errorf("the log: %s", got)
	}
}

// batches is a sink that receives batches.
type batches struct {
	mu    sync.Mutex
	sizes []int
	fail  func(ev waybill.Event) error
}

func (b *batches) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.sizes = append(b.sizes, len(batch))
	errs := make([]error, len(batch))
	for i, d := range batch {
		errs[i] = b.fail(d.Event)
	}
	return errs
}

// Middleware around a sink that receives batches: events that pass the
// middleware arrive together, and each sees its own result.
func TestWrap(t *testing.T) {
	refused, boom := errors.New("refused"), errors.New("boom")
	sink := &batches{fail: func(ev waybill.Event) error {
		if string(ev.Payload) == "2" {
			return boom
		}
		return nil
	}}
	var mu sync.Mutex
	after := map[string]error{}
	wrapped := handler.Wrap(sink, func(next handler.Func) handler.Func {
		return func(ctx context.Context, ev waybill.Event) error {
			err := next(ctx, ev)
			mu.Lock()
			defer mu.Unlock()
			after[string(ev.Payload)] = err
			return err
		}
	}, func(next handler.Func) handler.Func {
		return func(ctx context.Context, ev waybill.Event) error {
			switch string(ev.Payload) {
			case "1":
				return refused
			case "3":
				panic("before")
			}
			return next(ctx, ev)
		}
	})
	var evs []waybill.Event
	for i := range 6 {
		evs = append(evs, waybill.NewEvent("Tested", i))
	}
	errs := deliver(wrapped, evs...)
	if !slices.Equal(sink.sizes, []int{4}) {
		t.Errorf("batches %v, want one of 4", sink.sizes)
	}
	for i, err := range errs {
		switch i {
		case 1:
			if !errors.Is(err, refused) {
				t.Errorf("event 1: %v", err)
			}
		case 2:
			if !errors.Is(err, boom) || !errors.Is(after["2"], boom) {
				t.Errorf("event 2: %v, and after it %v", err, after["2"])
			}
		case 3:
			if err == nil || err.Error() != "panic: before" {
				t.Errorf("event 3: %v", err)
			}
		default:
			if err != nil {
				t.Errorf("event %d: %v", i, err)
			}
		}
	}
	if errs := deliver(handler.Wrap(panicking{}), evs[0]); errs[0] == nil {
		t.Error("a panicking sink passed for success")
	}
	if _, serial := handler.Wrap(handler.NewMux()).(interface{ Serial() }); !serial {
		t.Error("a wrapped mux is not serial")
	}
}

type panicking struct{}

func (panicking) Deliver(context.Context, []waybill.Delivery) []error { panic("sink") }

// TestHandleType: a handler of an event type gets the events of all aggregate
// types that have no handler of their own, and comes before the fallback.
func TestHandleType(t *testing.T) {
	var got []string
	note := func(who string) handler.Func {
		return func(_ context.Context, ev waybill.Event) error {
			got = append(got, who+" "+ev.AggregateType+" "+ev.Type)
			return nil
		}
	}
	mux := handler.NewMux()
	mux.HandleType("Deleted", note("type"))
	mux.Handle("order", "Deleted", note("own"))
	mux.Fallback(note("fallback"))
	deliver(mux, waybill.Event{Type: "Deleted", AggregateType: "order"}, waybill.Event{Type: "Deleted", AggregateType: "user"}, waybill.Event{Type: "Deleted"}, waybill.Event{Type: "Added"})
	want := []string{"own order Deleted", "type user Deleted", "type " + waybill.GlobalAggregate + " Deleted", "fallback " + waybill.GlobalAggregate + " Added"}
	if !slices.Equal(got, want) {
		t.Errorf("called: %q, want %q", got, want)
	}
	if !mux.Handles("user", "Deleted") || mux.Handles("user", "Added") {
		t.Error("Handles is wrong")
	}
	mustPanic(t, "a second handler of the type", func() { mux.HandleType("Deleted", note("")) })
	mustPanic(t, "a nil handler", func() { mux.HandleType("Other", nil) })
	mustPanic(t, "an empty type", func() { mux.HandleType("", note("")) })
}
