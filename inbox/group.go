package inbox

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// HandlerFunc applies an event. Its effects belong in tx, which ctx also
// carries for an outbox of the same database; the group commits tx.
// [waybill.Classify] interprets the handler's error.
type HandlerFunc[T any] func(ctx context.Context, tx T, ev waybill.Event) error

// Group is a consumer group: it applies each event once, independently of other
// groups. It is safe for concurrent use.
type Group[T any] struct {
	inbox *Inbox[T]
	name  string
	opts  Options

	mu       sync.RWMutex
	handlers map[handlerKey]HandlerFunc[T]
	byType   map[string]HandlerFunc[T] // of every aggregate type

	busyMu sync.Mutex
	busy   map[[16]byte]struct{} // events that this process is handling
}

type handlerKey struct{ aggregateType, eventType string }

// Name returns the group's name.
func (g *Group[T]) Name() string { return g.name }

// Handle registers the handler of an event type. An empty aggregate type means
// [waybill.GlobalAggregate]. Handle panics if the type already has a handler:
// two listeners for one event are two groups, or one function that calls both.
func (g *Group[T]) Handle(aggregateType, eventType string, fn HandlerFunc[T]) {
	if fn == nil {
		panic("inbox: nil handler for " + eventType)
	}
	if eventType == "" {
		panic("inbox: empty event type")
	}
	if aggregateType == "" {
		aggregateType = waybill.GlobalAggregate
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	k := handlerKey{aggregateType, eventType}
	if g.handlers[k] != nil {
		panic(fmt.Sprintf("inbox: group %s: duplicate handler for %s of %s", g.name, eventType, aggregateType))
	}
	g.handlers[k] = fn
}

// HandleType registers the handler of an event type of every aggregate type. A
// handler that Handle or [On] has registered for the aggregate type comes
// first. HandleType panics if the event type alone already has a handler.
func (g *Group[T]) HandleType(eventType string, fn HandlerFunc[T]) {
	if fn == nil {
		panic("inbox: nil handler for " + eventType)
	}
	if eventType == "" {
		panic("inbox: empty event type")
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if g.byType[eventType] != nil {
		panic(fmt.Sprintf("inbox: group %s: duplicate handler for %s of every aggregate type", g.name, eventType))
	}
	g.byType[eventType] = fn
}

// On registers a typed handler for a definition. An event whose payload cannot
// be decoded is dead at once, because a retry would not change it.
func On[T, P any](g *Group[T], d waybill.Definition[P], fn func(ctx context.Context, tx T, ev waybill.Event, p P) error) {
	if fn == nil {
		panic("inbox: nil handler for " + d.Type())
	}
	g.Handle(d.AggregateType(), d.Type(), func(ctx context.Context, tx T, ev waybill.Event) error {
		p, err := d.Decode(ev)
		if err != nil {
			return waybill.Permanent(err)
		}
		return fn(ctx, tx, ev, p)
	})
}

// Handles reports whether the group has a handler for an event.
func (g *Group[T]) Handles(aggregateType, eventType string) bool {
	g.mu.RLock()
	defer g.mu.RUnlock()
	return g.handlers[handlerKey{aggregateType, eventType}] != nil || g.byType[eventType] != nil
}

// handler returns the handler of an event, or nil.
func (g *Group[T]) handler(ev *waybill.Event) HandlerFunc[T] {
	g.mu.RLock()
	defer g.mu.RUnlock()
	if fn := g.handlers[handlerKey{ev.AggregateType, ev.Type}]; fn != nil {
		return fn
	}
	return g.byType[ev.Type]
}

var errNoID = errors.New("the event has no id")

// intake returns the fields of the event's record.
func (g *Group[T]) intake(ev *waybill.Event) (store.InboxEntry, error) {
	if ev.ID.IsZero() {
		return store.InboxEntry{}, waybill.Permanent(fmt.Errorf("inbox: group %s: %w", g.name, errNoID))
	}
	in := store.InboxEntry{Group: g.name, Key: ev.ID, Event: ev.ID, Tenant: ev.TenantID, Type: ev.Type}
	if g.opts.Key == ByDedupKey && ev.DedupKey != "" {
		in.Key = DedupID(ev.TenantID, ev.DedupKey)
		return in, nil
	}
	sum := sha256.Sum256(ev.Payload)
	copy(in.Hash[:], sum[:])
	return in, nil
}

// DedupID returns the key under which a group with [ByDedupKey] records an
// event.
func DedupID(tenant, dedupKey string) waybill.ID {
	h := sha256.New()
	var n [8]byte
	binary.BigEndian.PutUint64(n[:], uint64(len(tenant)))
	h.Write(n[:])
	h.Write([]byte(tenant))
	h.Write([]byte(dedupKey))
	var id waybill.ID
	copy(id[:], h.Sum(nil))
	return id
}

// enter marks an event as being handled, and reports false if this process is
// already handling it.
func (g *Group[T]) enter(key waybill.ID) bool {
	g.busyMu.Lock()
	defer g.busyMu.Unlock()
	if _, taken := g.busy[key]; taken {
		return false
	}
	g.busy[key] = struct{}{}
	return true
}

func (g *Group[T]) leave(key waybill.ID) {
	g.busyMu.Lock()
	defer g.busyMu.Unlock()
	delete(g.busy, key)
}

// Find returns the group's record of an event, and whether it exists.
func (g *Group[T]) Find(ctx context.Context, ev waybill.Event) (store.InboxRecord, bool, error) {
	in, err := g.intake(&ev)
	if err != nil {
		return store.InboxRecord{}, false, err
	}
	return g.inbox.db.FindRecord(ctx, g.name, in.Key)
}
