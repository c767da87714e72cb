package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store/driver"
)

// Outcome is the outcome of a write for one event.
type Outcome int

// The outcomes.
const (
	// Written: the transaction contains the event.
	Written Outcome = iota + 1
	// Duplicate: a pending event has the same dedup key; the receipt has the id
	// of that event.
	Duplicate
	// Suppressed: a hook removed the event.
	Suppressed
)

// String returns the outcome's name in lower case.
func (o Outcome) String() string {
	switch o {
	case Written:
		return "written"
	case Duplicate:
		return "duplicate"
	case Suppressed:
		return "suppressed"
	}
	return fmt.Sprintf("outcome(%d)", int(o))
}

// Receipt is the result of a write for one event.
type Receipt struct {
	// ID is the id of the pending event: the event's own id or, for a
	// Duplicate, the id of the event that absorbed it. Zero for a suppressed
	// event.
	ID      waybill.ID
	Outcome Outcome
}

// Hook is a set of callbacks around every write, like httptrace.ClientTrace;
// any field may be nil.
type Hook struct {
	// BeforeWrite returns the events to write. Returning no events suppresses
	// the write; returning an error fails it. BeforeWrite may change the slice
	// that it receives and replace the payloads and headers in it, but must not
	// modify these in place.
	BeforeWrite func(ctx context.Context, info BeforeWriteInfo) ([]waybill.Event, error)
	// AfterWrite runs after the events were written in the transaction. Like
	// AfterCommit and AfterRollback, it cannot fail the write: a panic is
	// logged.
	AfterWrite func(ctx context.Context, info AfterWriteInfo)
	// AfterCommit runs once per committed transaction of InTx, with all its
	// events.
	AfterCommit func(ctx context.Context, info AfterCommitInfo)
	// AfterRollback runs once per rolled-back transaction of InTx, with all its
	// events.
	AfterRollback func(ctx context.Context, info AfterRollbackInfo)
}

// BeforeWriteInfo is the argument of [Hook.BeforeWrite].
type BeforeWriteInfo struct {
	Events []waybill.Event
}

// AfterWriteInfo is the argument of [Hook.AfterWrite].
type AfterWriteInfo struct {
	Events []waybill.Event
}

// AfterCommitInfo is the argument of [Hook.AfterCommit].
type AfterCommitInfo struct {
	Events []waybill.Event
}

// AfterRollbackInfo is the argument of [Hook.AfterRollback].
type AfterRollbackInfo struct {
	Events []waybill.Event
}

func (o *Outbox[T]) write(ctx context.Context, tx T, evs []waybill.Event, now bool) ([]Receipt, error) {
	if len(evs) == 0 {
		return nil, nil
	}
	if isNil(tx) {
		return nil, fmt.Errorf("outbox: write: %w: the transaction is nil", waybill.ErrNoTx)
	}
	return o.writer.write(ctx, evs, now, func(prepared []waybill.Event) ([]driver.AppendResult, error) {
		if u := o.runner.Owner(ctx, tx); u != nil {
			return u.Write(ctx, o.db, o.writer, tx, prepared, now)
		}
		placed, err := o.db.Append(ctx, tx, prepared)
		if err == nil {
			o.writer.acceptedOf(ctx, prepared, placed)
		}
		return placed, err
	})
}

// isNil reports whether a transaction is a nil interface or a nil pointer.
func isNil(tx any) bool {
	if tx == nil {
		return true
	}
	v := reflect.ValueOf(tx)
	return v.Kind() == reflect.Pointer && v.IsNil()
}

// SQLTx is the part of a [*sql.Tx] that [WriteSQL] uses. Libraries that hide
// their transaction still expose these methods.
type SQLTx = driver.SQLTx

// WriteSQL is [Outbox.Write] for transactions of libraries that hide their
// [*sql.Tx], such as gorm with prepared statements and ent. The store must work
// over database/sql. A nil tx, the result of a failed type assertion, gives
// [waybill.ErrNoTx].
//
// If a library exposes its *sql.Tx, use Write: events that are written through
// a wrapper inside [Outbox.InTx] are stored, but the outbox cannot match them
// to that transaction, so AfterCommit and AfterRollback hooks do not receive
// them. For bun.Tx, pass its field Tx.
func WriteSQL(ctx context.Context, o *Outbox[*sql.Tx], tx SQLTx, evs ...waybill.Event) error {
	if len(evs) == 0 {
		return nil
	}
	if isNil(tx) {
		return fmt.Errorf("outbox: write: %w: the transaction is nil", waybill.ErrNoTx)
	}
	if plain, ok := tx.(*sql.Tx); ok {
		return o.Write(ctx, plain, evs...)
	}
	db, ok := o.db.(driver.SQLAppender)
	if !ok {
		return fmt.Errorf("outbox: write: %T cannot write to a %T", o.db, tx)
	}
	_, err := o.writer.write(ctx, evs, false, func(prepared []waybill.Event) ([]driver.AppendResult, error) {
		placed, err := db.AppendSQL(ctx, tx, prepared)
		if err == nil {
			o.writer.acceptedOf(ctx, prepared, placed)
			if u, ok := o.runner.From(ctx); ok {
				// Perhaps a wrapper of this transaction.
				_ = u.AfterCommit(o.Wake)
			}
		}
		return placed, err
	})
	return err
}

// writer is the part of an outbox that does not depend on the transaction's
// type. It implements txrun.Writer.
type writer struct {
	hooks   []Hook
	observe observe.Hooks
	logger  *slog.Logger
}

// write prepares the events, passes them to put, and returns a receipt for each
// one if put returns their results.
func (w *writer) write(
	ctx context.Context, evs []waybill.Event, receipts bool, put func([]waybill.Event) ([]driver.AppendResult, error),
) ([]Receipt, error) {
	given := make([]waybill.ID, len(evs))
	prepared, err := w.prepare(ctx, evs, given)
	if err != nil {
		return nil, err
	}
	var placed []driver.AppendResult
	if len(prepared) > 0 {
		if placed, err = put(prepared); err != nil {
			return nil, fmt.Errorf("outbox: write: %w", err)
		}
	}
	if !receipts {
		return nil, nil
	}
	byID := make(map[waybill.ID]Receipt, len(prepared))
	for i, ev := range prepared {
		outcome := Written
		if placed[i].ID != ev.ID {
			outcome = Duplicate
		}
		byID[ev.ID] = Receipt{ID: placed[i].ID, Outcome: outcome}
	}
	out := make([]Receipt, len(evs))
	for i, id := range given {
		receipt, ok := byID[id]
		if !ok {
			receipt = Receipt{Outcome: Suppressed}
		}
		out[i] = receipt
	}
	return out, nil
}

// prepare returns the events as they will be stored, and stores the id of each
// event that was passed in into given.
func (w *writer) prepare(ctx context.Context, evs []waybill.Event, given []waybill.ID) ([]waybill.Event, error) {
	origin := waybill.OriginFrom(ctx)
	prepared := make([]waybill.Event, len(evs))
	for i, ev := range evs {
		if ev.ID.IsZero() {
			// Before the hooks, so that receipts can match the events.
			ev.ID = waybill.NewID()
		}
		given[i] = ev.ID
		prepared[i] = eventfill.Origin(origin, ev)
	}
	for _, hook := range w.hooks {
		if hook.BeforeWrite == nil || len(prepared) == 0 {
			continue
		}
		changed, err := hook.BeforeWrite(ctx, BeforeWriteInfo{Events: prepared})
		if err != nil {
			return nil, fmt.Errorf("outbox: before write: %w", err)
		}
		prepared = slices.Clone(changed) // the hook may retain its slice
	}
	var errs []error
	for i := range prepared {
		if w.observe.Write != nil {
			prepared[i] = addHeaders(prepared[i], w.observe.Write(ctx, observe.WriteInfo{Event: prepared[i]}))
		}
		if err := prepared[i].Validate(); err != nil {
			errs = append(errs, fmt.Errorf("outbox: write: event %d of %d: %w", i+1, len(prepared), err))
			continue
		}
		prepared[i] = eventfill.Defaults(prepared[i])
	}
	return prepared, errors.Join(errs...)
}

// addHeaders returns the event with the headers that it lacks; it does not
// change the event's own map.
func addHeaders(ev waybill.Event, headers map[string]string) waybill.Event {
	if len(headers) == 0 {
		return ev
	}
	merged := maps.Clone(headers)
	maps.Copy(merged, ev.Headers)
	ev.Headers = merged
	return ev
}

// acceptedOf passes the events that were written and not absorbed to the hooks.
func (w *writer) acceptedOf(ctx context.Context, evs []waybill.Event, placed []driver.AppendResult) {
	written := make([]waybill.Event, 0, len(evs))
	for i, ev := range evs {
		if placed[i].ID == ev.ID {
			written = append(written, ev)
		}
	}
	if len(written) > 0 {
		w.Accepted(ctx, written)
	}
}

// WantsCommitted reports whether a hook follows the commit.
func (w *writer) WantsCommitted() bool {
	for _, hook := range w.hooks {
		if hook.AfterCommit != nil {
			return true
		}
	}
	return false
}

// Accepted runs the AfterWrite hooks.
func (w *writer) Accepted(ctx context.Context, evs []waybill.Event) {
	for _, hook := range w.hooks {
		if hook.AfterWrite != nil {
			w.contain("AfterWrite", func() { hook.AfterWrite(ctx, AfterWriteInfo{Events: evs}) })
		}
	}
}

// Committed runs the AfterCommit hooks.
func (w *writer) Committed(ctx context.Context, evs []waybill.Event) {
	for _, hook := range w.hooks {
		if hook.AfterCommit != nil {
			w.contain("AfterCommit", func() { hook.AfterCommit(ctx, AfterCommitInfo{Events: evs}) })
		}
	}
}

// RolledBack runs the AfterRollback hooks.
func (w *writer) RolledBack(ctx context.Context, evs []waybill.Event) {
	for _, hook := range w.hooks {
		if hook.AfterRollback != nil {
			w.contain("AfterRollback", func() { hook.AfterRollback(ctx, AfterRollbackInfo{Events: evs}) })
		}
	}
}

func (w *writer) contain(name string, fn func()) {
	defer func() {
		if r := recover(); r != nil {
			w.logger.Error("hook panicked", logkey.Hook, name, logkey.Panic, fmt.Sprint(r))
		}
	}()
	fn()
}
