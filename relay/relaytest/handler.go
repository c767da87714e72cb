package relaytest

import (
	"context"
	"errors"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/handler"
)

// handlerChecks are the checks of handlers in this process.
func handlerChecks[T any]() []check[T] {
	return []check[T]{
		{name: "no_handler", run: noHandler[T]},
		{name: "unknown_grace", run: unknownGrace[T]},
		{name: "middleware", run: middleware[T]},
		{name: "typed", run: typed[T]},
	}
}

// noHandler: an event without a handler is dead at once; the same event type of
// another aggregate type goes to its own handler.
func noHandler[T any](b *env[T]) {
	mux := handler.NewMux()
	r := &recorder{}
	mux.Handle("thing", "Tested", func(ctx context.Context, _ waybill.Event) error {
		d, _ := waybill.DeliveryFrom(ctx)
		return r.take(d)
	})
	evs := []waybill.Event{event("a", 0), event("a", 1), event("", 2)}
	evs[0].AggregateType = "other"
	b.start(mux, b.quick())
	b.write(evs...)
	b.await("all are settled", func() bool {
		return b.state(evs[0].ID) == "dead" && b.state(evs[1].ID) == "delivered" && b.state(evs[2].ID) == "dead"
	})
	if row := b.find(evs[0].ID); !strings.Contains(row.LastError, "no handler") {
		b.Errorf("dead with error %q", row.LastError)
	}
	b.wantOnce(r, evs[1:2])
}

// unknownGrace: an event without a handler waits for a handler, which a deploy
// may add.
func unknownGrace[T any](b *env[T]) {
	mux := handler.NewMux()
	r := &recorder{}
	cfg := b.quick()
	cfg.UnknownGrace = time.Hour
	ev := event("a", 0)
	run := b.start(mux, cfg)
	b.write(ev)
	b.await("it waits", func() bool { return b.state(ev.ID) == "delayed" })
	if row := b.find(ev.ID); row.Attempts != 0 {
		b.Errorf("%d attempts were spent", row.Attempts)
	}
	if err := run.stop(); err != nil {
		b.Fatal(err)
	}
	mux.Fallback(func(ctx context.Context, _ waybill.Event) error {
		d, _ := waybill.DeliveryFrom(ctx)
		return r.take(d)
	})
	b.start(mux, cfg)
	b.await("delivered", func() bool { return b.state(ev.ID) == "delivered" })
	b.wantOnce(r, []waybill.Event{ev})
}

// steps records calls, in order.
type steps struct {
	mu   sync.Mutex
	list []string
}

func (s *steps) add(step string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.list = append(s.list, step)
}

func (s *steps) all() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.list)
}

// middleware: middlewares run in order before the handler, and in reverse after
// it, with its result; one that fails before the handler stops the delivery,
// and the attempt counts.
func middleware[T any](b *env[T]) {
	var s steps
	around := func(name string) func(handler.Func) handler.Func {
		return func(next handler.Func) handler.Func {
			return func(ctx context.Context, ev waybill.Event) error {
				s.add("before " + name)
				err := next(ctx, ev)
				s.add("after " + name)
				return err
			}
		}
	}
	refused := errors.New("refused")
	mux := handler.NewMux()
	mux.Use(around("one"), handler.After(func(_ context.Context, info handler.AfterInfo) error {
		if errors.Is(info.Err, refused) {
			s.add("result refused")
		}
		return errors.New("changes nothing")
	}), around("two"), func(next handler.Func) handler.Func {
		return func(ctx context.Context, ev waybill.Event) error {
			if d, _ := waybill.DeliveryFrom(ctx); d.Attempt == 1 {
				return refused
			}
			return next(ctx, ev)
		}
	})
	mux.Handle("thing", "Tested", func(context.Context, waybill.Event) error {
		s.add("handler")
		return nil
	})
	ev := event("a", 0)
	b.start(mux, b.quick())
	b.write(ev)
	b.await("delivered", func() bool { return b.state(ev.ID) == "delivered" })
	want := []string{
		"before one", "before two", "after two", "result refused", "after one",
		"before one", "before two", "handler", "after two", "after one",
	}
	if got := s.all(); !slices.Equal(got, want) {
		b.Errorf("got %q, want %q", got, want)
	}
	if row := b.find(ev.ID); row.Attempts != 1 {
		b.Errorf("%d attempts failed, want 1", row.Attempts)
	}
}

type order struct {
	Total int `json:"total"`
}

// typed: a typed handler gets its payload; an event whose payload cannot be
// decoded is dead. Events that the handler writes have its origin.
func typed[T any](b *env[T]) {
	placed := waybill.Define[order]("Placed", waybill.Spec{AggregateType: "order"})
	mux := handler.NewMux()
	total := make(chan int, 1)
	reply := waybill.NewEvent("Replied", 1)
	reply.ID = waybill.NewID()
	handler.On(mux, placed, func(ctx context.Context, _ waybill.Event, p order) error {
		total <- p.Total
		return b.box.InTx(ctx, func(ctx context.Context, tx T) error { return b.box.Write(ctx, tx, reply) })
	})
	mux.Handle("", "Replied", func(context.Context, waybill.Event) error { return nil })
	ev := placed.New("o1", order{Total: 7})
	ev.ID, ev.CorrelationID, ev.TenantID = waybill.NewID(), "c1", "t1"
	bad := waybill.NewEvent("Placed", "text")
	bad.ID, bad.AggregateType, bad.AggregateID = waybill.NewID(), "order", "o2"
	b.start(mux, b.quick())
	b.write(ev, bad)
	b.await("all are settled", func() bool {
		return b.state(ev.ID) == "delivered" && b.state(bad.ID) == "dead" && b.state(reply.ID) == "delivered"
	})
	if got := <-total; got != 7 {
		b.Errorf("the total is %d, want 7", got)
	}
	got := b.find(reply.ID).Event
	if got.CausationID != ev.ID.String() || got.CorrelationID != "c1" || got.TenantID != "t1" {
		b.Errorf("the reply has causation %q, correlation %q, tenant %q", got.CausationID, got.CorrelationID, got.TenantID)
	}
}
