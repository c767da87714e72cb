// Package inboxtest is the conformance suite of consumer groups over a store.
// Each store's tests run it, with the harness of the store's conformance suite.
package inboxtest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/drivertest"
)

// check is one test of the suite.
type check[T any] struct {
	name string
	// concurrent: the check needs two transactions that write at the same time.
	concurrent bool
	run        func(b *env[T])
}

// Run runs the suite as subtests of t.
func Run[T any](t *testing.T, h drivertest.Harness[T]) {
	t.Helper()
	for _, c := range slices.Concat(onceChecks[T](), failChecks[T](), leaseChecks[T](), batchChecks[T](), sinkChecks[T](), keepChecks[T]()) {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			if c.concurrent && !h.Features.LateCommits {
				t.Skip("this store has one writer at a time")
			}
			c.run(newEnv(t, h))
		})
	}
}

// env is an inbox of its own for one check.
type env[T any] struct {
	*testing.T
	drivertest.Instance[T]
	features drivertest.Features
	box      *outbox.Outbox[T]
	in       *inbox.Inbox[T]
}

func newEnv[T any](t *testing.T, h drivertest.Harness[T]) *env[T] {
	t.Helper()
	b := &env[T]{T: t, Instance: h.Open(t), features: h.Features}
	var err error
	if b.box, err = outbox.New[T](b.DB, outbox.Config{}); err != nil {
		t.Fatal(err)
	}
	b.in = b.inbox(inbox.Config{})
	return b
}

// inbox returns another inbox over the same store.
func (b *env[T]) inbox(cfg inbox.Config) *inbox.Inbox[T] {
	b.Helper()
	in, err := inbox.New[T](b.DB, cfg)
	if err != nil {
		b.Fatal(err)
	}
	return in
}

// event returns an event whose payload is n.
func event(n int) waybill.Event {
	return eventfill.Defaults(waybill.NewEvent("Happened", n))
}

// effect writes an event of that name to the outbox, and a row where the store
// has tables. Both are committed with the record, or not at all.
func (b *env[T]) effect(ctx context.Context, tx T, name string) error {
	ev := waybill.NewEvent("Effect", 0)
	ev.AggregateType, ev.AggregateID = "effect", name
	var err error
	if b.Insert != nil {
		err = b.Insert(ctx, tx, name)
	}
	return errors.Join(err, b.box.Write(ctx, tx, ev))
}

// effects counts the committed effects.
func (b *env[T]) effects(name string) int {
	b.Helper()
	n, err := b.DB.OutboxAdmin.Count(context.Background(), store.Ready, store.Filter{AggregateType: "effect", AggregateID: name})
	if err != nil {
		b.Fatal(err)
	}
	if b.Count != nil {
		rows, err := b.Count(context.Background(), name)
		if err != nil {
			b.Fatal(err)
		}
		if int64(rows) != n {
			b.Errorf("%d rows and %d events of %s", rows, n, name)
		}
	}
	return int(n)
}

func (b *env[T]) wantEffects(name string, want int) {
	b.Helper()
	if got := b.effects(name); got != want {
		b.Errorf("%d effects of %s, want %d", got, name, want)
	}
}

// apply is a handler with an effect of this name.
func (b *env[T]) apply(name string) inbox.HandlerFunc[T] {
	return func(ctx context.Context, tx T, _ waybill.Event) error { return b.effect(ctx, tx, name) }
}

// failing is a handler whose effect is rolled back.
func (b *env[T]) failing(name string, result error) inbox.HandlerFunc[T] {
	return func(ctx context.Context, tx T, _ waybill.Event) error {
		return errors.Join(b.effect(ctx, tx, name), result)
	}
}

// record returns the record of an event.
func (b *env[T]) record(g *inbox.Group[T], ev waybill.Event) store.InboxRecord {
	b.Helper()
	rec, ok, err := g.Find(context.Background(), ev)
	if err != nil || !ok {
		b.Fatalf("the record of the event: %v, %v", ok, err)
	}
	return rec
}

func (b *env[T]) wantNone(g *inbox.Group[T], ev waybill.Event) {
	b.Helper()
	if rec, ok, err := g.Find(context.Background(), ev); err != nil || ok {
		b.Errorf("there is a record: %+v, %v", rec, err)
	}
}

// consume consumes an event that must be applied now.
func (b *env[T]) consume(g *inbox.Group[T], ev waybill.Event, fn inbox.HandlerFunc[T]) {
	b.Helper()
	if res, err := g.Consume(context.Background(), ev, fn); err != nil || res.Replayed {
		b.Fatalf("Consume: %+v, %v", res, err)
	}
}

// wantError checks an error and its class.
func (b *env[T]) wantError(err, want error, class waybill.Class) {
	b.Helper()
	got, _ := waybill.Classify(err)
	if !errors.Is(err, want) || got != class {
		b.Errorf("got %v of class %v, want %v of class %v", err, got, want, class)
	}
}

// never is a handler that must not be called.
func (b *env[T]) never() inbox.HandlerFunc[T] {
	return func(context.Context, T, waybill.Event) error {
		b.Error("the handler was called")
		return nil
	}
}

// await waits for a condition.
func (b *env[T]) await(what string, ok func() bool) {
	b.Helper()
	for deadline := time.Now().Add(30 * time.Second); !ok(); {
		if time.Now().After(deadline) {
			b.Fatalf("waited in vain: %s", what)
		}
		<-time.After(2 * time.Millisecond)
	}
}

// redelivered returns a context in which an event is delivered for the nth
// time.
func redelivered(ev waybill.Event, n int) context.Context {
	return waybill.ContextWithDelivery(context.Background(), waybill.Delivery{Event: ev, Attempt: n})
}

var errNo = errors.New("no")

func named(prefix string, n int) string { return fmt.Sprint(prefix, n) }
