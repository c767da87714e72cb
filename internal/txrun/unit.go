// Package txrun runs one unit of work: a transaction, its events, and its
// callbacks. It is the only transaction runner of the library: outbox, inbox
// and idempotency keys all use it, so that writes inside another unit join it,
// and every callback after the commit runs once.
package txrun

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/store/driver"
)

// Writer is notified of the outcome of its events. It is comparable: units
// group events by writer.
type Writer interface {
	// WantsCommitted reports whether Committed does anything; if not, a
	// statement is saved where savepoints are not visible.
	WantsCommitted() bool
	Accepted(ctx context.Context, evs []waybill.Event)
	Committed(ctx context.Context, evs []waybill.Event)
	RolledBack(ctx context.Context, evs []waybill.Event)
}

// Unit is one transaction that a [Runner] began. Its methods are as safe for
// concurrent use as the transaction is.
type Unit[T any] struct {
	session driver.Session[T]
	opts    sql.TxOptions

	mu            sync.Mutex
	over          bool
	broken        error
	written       []*written
	beforeCommit  []func(context.Context) error
	afterCommit   []func()
	afterRollback []func()
	tracked       map[any]bool
}

// written holds the events of one write, in one slice: a large write would
// otherwise be copied at every step.
type written struct {
	writer Writer
	evs    []waybill.Event
	// placed holds the result of each event, once the transaction has accepted
	// them. The result of an absorbed event has a different id than the event.
	placed []driver.AppendResult
}

// accepted reports whether the transaction has accepted the i-th event, as
// itself.
func (w *written) accepted(i int) bool { return w.placed != nil && w.placed[i].ID == w.evs[i].ID }

// absorbed reports whether a pending event with the same dedup key replaces the
// i-th.
func (w *written) absorbed(i int) bool { return w.placed != nil && w.placed[i].ID != w.evs[i].ID }

// without returns the events for which drop is false. It copies nothing if none
// is dropped.
func (w *written) without(drop func(i int) bool) []waybill.Event {
	for i := range w.evs {
		if !drop(i) {
			continue
		}
		kept := append([]waybill.Event(nil), w.evs[:i]...)
		for j := i + 1; j < len(w.evs); j++ {
			if !drop(j) {
				kept = append(kept, w.evs[j])
			}
		}
		return kept
	}
	return w.evs
}

// Tx returns the unit's transaction.
func (u *Unit[T]) Tx() T { return u.session.Tx() }

// Write writes events to the transaction tx, which the unit owns. With now, it
// returns the result of each; without, they may be deferred to the
// transaction's next round trip, and placed is nil.
func (u *Unit[T]) Write(
	ctx context.Context, db driver.Appender[T], w Writer, tx T, evs []waybill.Event, now bool,
) (placed []driver.AppendResult, err error) {
	if err := u.Usable(); err != nil {
		return nil, err
	}
	batch := u.offer(w, evs)
	accept := func(placed []driver.AppendResult) { u.accept(ctx, batch, placed) }
	if d, ok := u.session.(driver.Deferrer[T]); ok && !now {
		err = d.Defer(ctx, tx, evs, accept)
	} else if placed, err = db.Append(ctx, tx, evs); err == nil {
		accept(placed)
	}
	if err != nil {
		// After a database error the transaction is unusable on most databases,
		// and on MySQL it may have ended. Swallowing this error must not commit
		// the rest.
		u.Break(err)
		return nil, err
	}
	return placed, nil
}

// offer records events that are about to be written.
func (u *Unit[T]) offer(w Writer, evs []waybill.Event) *written {
	u.mu.Lock()
	defer u.mu.Unlock()
	batch := &written{writer: w, evs: evs}
	u.written = append(u.written, batch)
	return batch
}

// accept records the accepted events, and notifies the writer.
func (u *Unit[T]) accept(ctx context.Context, batch *written, placed []driver.AppendResult) {
	u.mu.Lock()
	batch.placed = placed
	u.mu.Unlock()
	if evs := batch.without(batch.absorbed); len(evs) > 0 {
		batch.writer.Accepted(ctx, evs)
	}
}

// Usable returns nil while the unit can execute statements.
func (u *Unit[T]) Usable() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return waybill.ErrTxDone
	}
	return nil
}

// Break makes the unit roll back at its end, even if its function returns nil.
func (u *Unit[T]) Break(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.broken == nil {
		u.broken = err
	}
}

// BeforeCommit adds a function that runs last inside the transaction; an error
// rolls it back. A second call with the same key has no effect.
func (u *Unit[T]) BeforeCommit(key any, fn func(context.Context) error) error {
	return u.register(func() {
		if u.tracked[key] {
			return
		}
		if u.tracked == nil {
			u.tracked = make(map[any]bool)
		}
		u.tracked[key] = true
		u.beforeCommit = append(u.beforeCommit, fn)
	})
}

// AfterCommit adds a function that runs once the transaction has committed.
func (u *Unit[T]) AfterCommit(fn func()) error {
	return u.register(func() { u.afterCommit = append(u.afterCommit, fn) })
}

// AfterRollback adds a function that runs once the transaction has rolled back.
func (u *Unit[T]) AfterRollback(fn func()) error {
	return u.register(func() { u.afterRollback = append(u.afterRollback, fn) })
}

func (u *Unit[T]) register(add func()) error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return waybill.ErrTxDone
	}
	add()
	return nil
}

// finish closes the unit to further work and returns its contents.
func (u *Unit[T]) finish() (batches []*written, commit, rollback []func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	return u.written, u.afterCommit, u.afterRollback
}

// UncertainError reports that a commit was sent and no response arrived.
type UncertainError struct {
	Events []waybill.ID
	Err    error
}

func (e *UncertainError) Error() string { return e.Err.Error() }
func (e *UncertainError) Unwrap() error { return e.Err }

// contained calls fn and logs a panic instead of propagating it: callbacks
// after the write must not change its outcome.
func contained(logger *slog.Logger, what string, fn func()) {
	defer func() {
		if r := recover(); r != nil {
			logger.Error(what+" panicked", logkey.Panic, fmt.Sprint(r))
		}
	}()
	fn()
}

// rolledBack returns the error of a unit whose function returned nil although
// an operation inside had failed.
func rolledBack(cause error) error {
	if errors.Is(cause, waybill.ErrUncertain) {
		return cause
	}
	return fmt.Errorf("waybill: rolled back after an inner failure: %w", cause)
}
