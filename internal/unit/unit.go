// Package unit runs one unit of work: a transaction, the events it has taken and what must happen after it. It is the
// one transaction runner of the flow: outbox, inbox and idempotency keys all use it, so that what one writes inside
// another joins it, and everything after the commit happens once.
package unit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Writer is told what became of the events it wrote. It is comparable: units group events by writer.
type Writer interface {
	// WantsCommitted says whether Committed does anything; knowing it saves a statement where savepoints cannot be seen.
	WantsCommitted() bool
	Accepted(ctx context.Context, evs []waybill.Event)
	Committed(ctx context.Context, evs []waybill.Event)
	RolledBack(ctx context.Context, evs []waybill.Event)
}

// Unit is one transaction that a [Runner] began. Its methods are safe for concurrent use as far as the transaction is.
type Unit[T any] struct {
	session store.Session[T]
	opts    sql.TxOptions

	mu            sync.Mutex
	over          bool
	broken        error
	entries       []entry
	beforeCommit  []func(context.Context) error
	afterCommit   []func()
	afterRollback []func()
	tracked       map[any]bool
}

// entry is an event that was written in the unit.
type entry struct {
	store.Entry
	writer Writer
	state  state
}

// state is how far a written event has come.
type state int

const (
	offered  state = iota // waits for the transaction's next round trip
	accepted              // the transaction has taken it
	absorbed              // a pending event with the same dedup key stands for it
)

// Tx returns the unit's transaction.
func (u *Unit[T]) Tx() T { return u.session.Tx() }

// Write puts events into the transaction tx, which the unit owns. With now, it returns where each went; without, they
// may wait for the transaction's next round trip, and placed is nil.
func (u *Unit[T]) Write(
	ctx context.Context, db store.Appender[T], w Writer, tx T, evs []waybill.Event, now bool,
) (placed []store.Placed, err error) {
	if err := u.Usable(); err != nil {
		return nil, err
	}
	start := u.offer(w, evs)
	accept := func(placed []store.Placed) { u.accept(ctx, w, start, evs, placed) }
	if d, ok := u.session.(store.Deferrer[T]); ok && !now {
		err = d.Defer(ctx, tx, evs, accept)
	} else if placed, err = db.Append(ctx, tx, evs); err == nil {
		accept(placed)
	}
	if err != nil {
		// The database refused: on most of them the transaction is worth nothing now, and on MySQL it may have ended.
		// Swallowing this error must not commit the rest.
		u.Break(err)
		return nil, err
	}
	return placed, nil
}

// offer notes events that are about to be written and returns the index of the first.
func (u *Unit[T]) offer(w Writer, evs []waybill.Event) int {
	u.mu.Lock()
	defer u.mu.Unlock()
	start := len(u.entries)
	u.entries = slices.Grow(u.entries, len(evs))
	for _, ev := range evs {
		u.entries = append(u.entries, entry{Entry: store.Entry{Event: ev}, writer: w})
	}
	return start
}

// accept notes what the transaction has taken, and tells the writer.
func (u *Unit[T]) accept(ctx context.Context, w Writer, start int, evs []waybill.Event, placed []store.Placed) {
	written := make([]waybill.Event, 0, len(evs))
	u.mu.Lock()
	for i, ev := range evs {
		e := &u.entries[start+i]
		if placed[i].ID != ev.ID {
			e.state = absorbed
			continue
		}
		e.state, e.Lane = accepted, placed[i].Lane
		written = append(written, ev)
	}
	u.mu.Unlock()
	if len(written) > 0 {
		w.Accepted(ctx, written)
	}
}

// Usable returns nil while the unit can take statements.
func (u *Unit[T]) Usable() error {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.over {
		return waybill.ErrTxDone
	}
	return nil
}

// Break makes the unit roll back at its end, whatever its function returns.
func (u *Unit[T]) Break(err error) {
	u.mu.Lock()
	defer u.mu.Unlock()
	if u.broken == nil {
		u.broken = err
	}
}

// BeforeCommit adds a function that runs inside the transaction, last; an error rolls it back. key makes a second call
// with the same key do nothing.
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

// finish closes the unit to further work and returns what it has; absorbed events are not its own.
func (u *Unit[T]) finish() (entries []entry, commit, rollback []func()) {
	u.mu.Lock()
	defer u.mu.Unlock()
	u.over = true
	u.entries = slices.DeleteFunc(u.entries, func(e entry) bool { return e.state == absorbed })
	return u.entries, u.afterCommit, u.afterRollback
}

// UncertainError says that a commit was sent and its answer never came.
type UncertainError struct {
	Events []waybill.ID
	Err    error
}

func (e *UncertainError) Error() string { return e.Err.Error() }
func (e *UncertainError) Unwrap() error { return e.Err }

// contained calls fn and logs a panic instead of passing it on: what runs after the write must not change it.
func contained(logger *slog.Logger, what string, fn func()) {
	defer func() {
		if r := recover(); r != nil {
			logger.Error("waybill: "+what+" panicked", "panic", fmt.Sprint(r))
		}
	}()
	fn()
}

// rolledBack is the error of a unit whose function returned nil although something in it had failed.
func rolledBack(cause error) error {
	if errors.Is(cause, waybill.ErrUncertain) {
		return cause
	}
	return fmt.Errorf("waybill: rolled back, because something inside failed: %w", cause)
}
