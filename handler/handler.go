// Package handler delivers events to functions of this process.
//
// A [Mux] has one handler per aggregate type and event type, as an HTTP mux has
// one handler per pattern; a Mux is a sink for a relay. [On] registers a typed
// handler and decodes the payload. Middleware wraps all handlers of a Mux, and
// [Wrap] adds middleware to any other sink.
//
// A handler runs at least once per event, so it must tolerate duplicates: use
// an inbox, or the event's id.
package handler

import (
	"context"
	"fmt"
	"log/slog"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/kind"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/panics"
)

// Func handles an event. [waybill.Classify] decides the meaning of its error:
// nil is success, and the relay retries after an ordinary error. The context
// carries the delivery ([waybill.DeliveryFrom]) with its attempt and position,
// and events written in that context take their origin from the handled event.
type Func func(ctx context.Context, ev waybill.Event) error

// key identifies a handler.
type key struct{ aggregateType, eventType string }

// Mux passes each event to the handler for its aggregate type and event type.
// Register all handlers before delivering: registration during delivery is
// safe, but an event without a handler becomes a dead letter.
type Mux struct {
	mu       sync.RWMutex
	handlers map[key]Func
	byType   map[string]Func // of every aggregate type
	fallback Func
	wrap     []func(Func) Func
}

// NewMux returns a mux without handlers.
func NewMux() *Mux {
	return &Mux{handlers: make(map[key]Func), byType: make(map[string]Func)}
}

// Handle registers the handler of an event type. An empty aggregate type means
// [waybill.GlobalAggregate]. It panics if a handler is already registered: to
// handle an event twice, use two consumer groups or one function that calls
// both.
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
		panic(fmt.Sprintf("handler: duplicate handler for %s of %s", eventType, aggregateType))
	}
	m.handlers[k] = h
}

// HandleType registers the handler of an event type of every aggregate type. A
// handler that Handle has registered for the aggregate type comes first. It
// panics if a handler is already registered for the event type alone.
func (m *Mux) HandleType(eventType string, h Func) {
	if h == nil {
		panic("handler: nil handler for " + eventType)
	}
	if eventType == "" {
		panic("handler: empty event type")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.byType[eventType] != nil {
		panic(fmt.Sprintf("handler: duplicate handler for %s of every aggregate type", eventType))
	}
	m.byType[eventType] = h
}

// Fallback registers the handler of all events that have no other one. It
// panics if a fallback is already registered.
func (m *Mux) Fallback(h Func) {
	if h == nil {
		panic("handler: nil fallback")
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.fallback != nil {
		panic("handler: duplicate fallback")
	}
	m.fallback = h
}

// Use adds middleware around every handler, including handlers that are
// registered later. The first middleware is the outermost one. Middleware that
// returns an error without calling the next function fails the attempt. Events
// without a handler pass through the middleware too.
func (m *Mux) Use(mw ...func(Func) Func) {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.wrap = append(m.wrap, mw...)
}

// Handles reports whether a handler other than the fallback is registered for
// an event.
func (m *Mux) Handles(aggregateType, eventType string) bool {
	m.mu.RLock()
	defer m.mu.RUnlock()
	return m.handlers[key{aggregateType, eventType}] != nil || m.byType[eventType] != nil
}

// Deliver calls the handler of each event, one after another. An event without
// a handler gives [waybill.ErrNoHandler]. A panic fails the attempt of its
// event; the relay logs the stack.
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

// Serial marks the mux as handling the events of a batch one after another, so
// that a relay splits batches among its workers.
func (m *Mux) Serial() {}

// Destination returns the destination that a relay pauses when a handler
// returns [waybill.Unavailable]: one per kind of event.
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

// find returns the handler of an event, wrapped in the middleware.
func (m *Mux) find(d *waybill.Delivery) Func {
	m.mu.RLock()
	defer m.mu.RUnlock()
	h := m.handlers[key{d.AggregateType, d.Type}]
	if h == nil {
		h = m.byType[d.Type]
	}
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

// PanicError is a handler's panic as the error of its delivery. The error text
// excludes the stack, so that the stack is not stored with the event;
// [PanicError.Stack] returns it.
type PanicError = panics.PanicError

// On registers a typed handler for a definition. A payload that does not decode
// makes the event a dead letter at once: a retry cannot help.
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

// AfterInfo is the argument of the function of [After].
type AfterInfo struct {
	Event waybill.Event
	// Err is the handler's result.
	Err error
}

// After returns middleware that calls fn with the handler's result after the
// handler has returned. An error or panic of fn does not change the result: it
// is logged with [slog.Default].
func After(fn func(ctx context.Context, info AfterInfo) error) func(Func) Func {
	return AfterLog(slog.Default(), fn)
}

// AfterLog is [After] with a custom logger.
func AfterLog(log *slog.Logger, fn func(ctx context.Context, info AfterInfo) error) func(Func) Func {
	log = log.With(slog.String(logkey.Component, "handler"))
	return func(next Func) Func {
		return func(ctx context.Context, ev waybill.Event) (err error) {
			defer func() {
				v := recover()
				if v != nil {
					err = panics.Recovered(v)
				}
				if failed := quietly(ctx, AfterInfo{Event: ev, Err: err}, fn); failed != nil {
					log.LogAttrs(ctx, slog.LevelError, "After function of a handler failed",
						slog.String(logkey.EventID, ev.ID.String()), slog.String(logkey.EventType, ev.Type), slog.String(logkey.Error, failed.Error()))
				}
			}()
			return next(ctx, ev)
		}
	}
}

// quietly calls the function of After, and turns its panic into an error.
func quietly(ctx context.Context, info AfterInfo, fn func(context.Context, AfterInfo) error) (failed error) {
	defer func() {
		if v := recover(); v != nil {
			failed = fmt.Errorf("panic: %v", v)
		}
	}()
	return fn(ctx, info)
}
