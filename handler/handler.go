// Package handler delivers events to functions of this process.
//
// A [Mux] has one handler per aggregate type and event type, as an HTTP mux has one per pattern; it is a sink for a relay.
// Typed handlers are registered with [On], which decodes the payload. Middleware wraps them all, and [Wrap] does the same for
// any other sink.
//
// A handler runs at least once per event, so it must be able to see an event twice: use an inbox, or the event's id.
package handler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/kind"
	"github.com/waybillhq/waybill/internal/panics"
)

// Func handles an event. What its error means is decided by [waybill.Classify]: nil is done, an ordinary error is tried
// again. In its context [waybill.DeliveryFrom] finds the attempt and position, and events that are written take their origin from
// the event in hand.
type Func func(ctx context.Context, ev waybill.Event) error

// key is what handlers are found by.
type key struct{ aggregateType, eventType string }

// Mux hands each event to the handler for its aggregate type and event type. Register first, then deliver: registering
// while events are delivered is safe, but events that have no handler yet are dead.
type Mux struct {
	mu       sync.RWMutex
	handlers map[key]Func
	fallback Func
	wrap     []func(Func) Func
}

// NewMux returns a mux without handlers.
func NewMux() *Mux {
	return &Mux{handlers: make(map[key]Func)}
}

// Handle registers the handler of an event type. An empty aggregate type means [waybill.GlobalAggregate]. It panics if there
// is one already: two listeners for one event are two consumer groups, or one function that calls both.
func (m *Mux) Handle(aggregateType, eventType string, h Func) {
	if h == nil {
		panic("handler: nil handler for " + eventType)
	}
	if eventType == "" {
		panic("handler: empty event type")
	}
	if aggregateType == "" {
		aggregateType = waybill.GlobalAggregate
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	k := key{aggregateType, eventType}
	if m.handlers[k] != nil {
		panic(fmt.Sprintf("handler: a second handler for %s of %s", eventType, aggregateType))
	}
	m.handlers[k] = h
}

// Fallback registers the handler of all events that have no other. It panics if there is one already.
func (m *Mux) Fallback(h Func) {
	if h == nil {
		panic("handler: nil fallback")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fallback != nil {
		panic("handler: a second fallback")
	}
	m.fallback = h
}

// Use adds middleware around every handler, also around those registered later. The first is the outermost: what it does
// before the handler comes first, what it does after it last. Middleware that returns an error without calling the next
// counts as a failed attempt. An event without a handler passes through it too.
func (m *Mux) Use(mw ...func(Func) Func) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wrap = append(m.wrap, mw...)
}

// Handles reports whether there is a handler for an event, other than the fallback.
func (m *Mux) Handles(aggregateType, eventType string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.handlers[key{aggregateType, eventType}] != nil
}

// Deliver calls the handler of each event, one after another. An event without a handler is [waybill.ErrNoHandler]. A panic is
// a failed attempt of its event; its stack is logged by the relay.
func (m *Mux) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	for i := range batch {
		if ctx.Err() != nil {
			results[i] = context.Cause(ctx)
			continue
		}
		results[i] = m.one(ctx, &batch[i])
	}
	return results
}

// Serial says that events of a batch are handled one after another, so that a relay shares them out.
func (m *Mux) Serial() {}

// Destination tells a relay what waits when a handler reports [waybill.Unavailable]: events of the same kind, and no others.
func (m *Mux) Destination(ev *waybill.Event) string {
	return kind.Name(ev.AggregateType, ev.Type)
}

func (m *Mux) one(ctx context.Context, d *waybill.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panics.Recovered(v)
		}
	}()
	return m.find(d)(waybill.ContextWithDelivery(ctx, *d), d.Event)
}

// find returns the handler of an event, in its middleware.
func (m *Mux) find(d *waybill.Delivery) Func {
	m.mu.RLock()
	defer m.mu.RUnlock()
	h := m.handlers[key{d.AggregateType, d.Type}]
	if h == nil {
		h = m.fallback
	}
	if h == nil {
		h = unhandled
	}
	return chain(h, m.wrap)
}

func unhandled(_ context.Context, ev waybill.Event) error {
	return fmt.Errorf("%w for %s of %s", waybill.ErrNoHandler, ev.Type, ev.AggregateType)
}

// chain wraps a handler; the first middleware is the outermost.
func chain(h Func, wrap []func(Func) Func) Func {
	for i := len(wrap) - 1; i >= 0; i-- {
		h = wrap[i](h)
	}
	return h
}

// PanicError is a handler's panic, as the error of its delivery. Its stack is not part of its text, so that it is not stored with the
// event; [PanicError.Stack] returns it.
type PanicError = panics.PanicError

// On registers a typed handler for a definition. A payload that cannot be decoded is dead at once: trying again would not
// change it.
func On[P any](m *Mux, d waybill.Definition[P], fn func(ctx context.Context, ev waybill.Event, p P) error) {
	if fn == nil {
		panic("handler: nil handler for " + d.Type())
	}
	m.Handle(d.AggregateType(), d.Type(), func(ctx context.Context, ev waybill.Event) error {
		p, err := d.Decode(ev)
		if err != nil {
			return waybill.Permanent(err)
		}
		return fn(ctx, ev, p)
	})
}

// After returns middleware that calls fn when the handler has returned, with its result. fn's own error, or panic, changes
// nothing: it is logged with [slog.Default].
func After(fn func(ctx context.Context, ev waybill.Event, err error) error) func(Func) Func {
	return AfterLog(slog.Default(), fn)
}

// AfterLog is [After] with a logger of your own.
func AfterLog(log *slog.Logger, fn func(ctx context.Context, ev waybill.Event, err error) error) func(Func) Func {
	return func(next Func) Func {
		return func(ctx context.Context, ev waybill.Event) (err error) {
			defer func() {
				v := recover()
				if v != nil {
					err = panics.Recovered(v)
				}
				if failed := quietly(ctx, ev, err, fn); failed != nil {
					log.LogAttrs(ctx, slog.LevelError, "waybill: what runs after a handler failed",
						slog.String("id", ev.ID.String()), slog.String("type", ev.Type), slog.String("error", failed.Error()))
				}
			}()
			return next(ctx, ev)
		}
	}
}

// quietly calls what runs after a handler, and turns its panic into an error.
func quietly(ctx context.Context, ev waybill.Event, err error, fn func(context.Context, waybill.Event, error) error) (failed error) {
	defer func() {
		if v := recover(); v != nil {
			failed = fmt.Errorf("panic: %v", v)
		}
	}()
	return fn(ctx, ev, err)
}
