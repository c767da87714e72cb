// Package outboxtest asserts which events a test has committed to an outbox,
// and replaces the outbox in tests without a database.
package outboxtest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/outbox"
)

// Recorder records committed events. The zero value is ready to use; a Recorder
// is safe for concurrent use.
type Recorder struct {
	mu     sync.Mutex
	events []waybill.Event
}

// Hook returns a hook for [outbox.Config] that records the events of every
// committed transaction of InTx, and none of a rolled-back one.
func (r *Recorder) Hook() outbox.Hook {
	return outbox.Hook{AfterCommit: func(_ context.Context, info outbox.AfterCommitInfo) { r.record(info.Events) }}
}

// Emit replaces [outbox.Outbox.Emit] in tests of code that needs no other
// method: it validates the events and records them as committed.
func (r *Recorder) Emit(ctx context.Context, evs ...waybill.Event) error {
	origin := waybill.OriginFrom(ctx)
	var errs []error
	completed := make([]waybill.Event, len(evs))
	for i, ev := range evs {
		ev = eventfill.Origin(origin, ev)
		errs = append(errs, ev.Validate())
		completed[i] = eventfill.Defaults(ev)
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	r.record(completed)
	return nil
}

func (r *Recorder) record(evs []waybill.Event) {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = append(r.events, evs...)
}

// Events returns the committed events in the order of their transactions.
func (r *Recorder) Events() []waybill.Event {
	r.mu.Lock()
	defer r.mu.Unlock()
	return slices.Clone(r.events)
}

// Reset removes all recorded events.
func (r *Recorder) Reset() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.events = nil
}

// One returns the only committed event of the definition, and its payload. It
// ends the test if there is no such event or more than one.
func One[P any](t testing.TB, r *Recorder, d waybill.Definition[P]) (waybill.Event, P) {
	t.Helper()
	found := of(r, d)
	if len(found) != 1 {
		t.Fatalf("outboxtest: %d events of type %s were committed, want 1; committed in all: %v", len(found), d.Type(), types(r))
	}
	payload, err := d.Decode(found[0])
	if err != nil {
		t.Fatalf("outboxtest: %v", err)
	}
	return found[0], payload
}

// None fails the test if an event of the definition was committed.
func None[P any](t testing.TB, r *Recorder, d waybill.Definition[P]) {
	t.Helper()
	if found := of(r, d); len(found) > 0 {
		t.Errorf("outboxtest: %d events of type %s were committed, want none", len(found), d.Type())
	}
}

func of[P any](r *Recorder, d waybill.Definition[P]) []waybill.Event {
	return slices.DeleteFunc(r.Events(), func(ev waybill.Event) bool {
		return ev.Type != d.Type() || ev.AggregateType != d.AggregateType()
	})
}

// types returns the types of all committed events, without their payloads, for
// failure messages.
func types(r *Recorder) []string {
	var names []string
	for _, ev := range r.Events() {
		names = append(names, ev.Type)
	}
	return names
}
