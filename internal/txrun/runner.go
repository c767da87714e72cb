package txrun

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// endTimeout bounds a commit or rollback, which is detached from the caller's
// context: canceling a request during its commit would only make the outcome
// uncertain.
const endTimeout = 30 * time.Second

// Database is the part of a store that a runner needs.
type Database[T any] interface {
	driver.Beginner[T]
	driver.Local
}

// Runner runs units of work on one store.
type Runner[T any] struct {
	db     Database[T]
	logger *slog.Logger

	mu   sync.Mutex
	live map[*Unit[T]]struct{}
}

// NewRunner returns a runner that logs the panics of callbacks to logger.
func NewRunner[T any](db Database[T], logger *slog.Logger) *Runner[T] {
	return &Runner[T]{db: db, logger: logger, live: make(map[*Unit[T]]struct{})}
}

// contextKey finds the unit of one hub, that is, of one set of tables.
type contextKey struct{ hub *driver.Hub }

// From returns the unit that ctx carries for this runner's tables, if any. The
// unit may have ended.
func (r *Runner[T]) From(ctx context.Context) (*Unit[T], bool) {
	u, ok := ctx.Value(contextKey{r.db.Local()}).(*Unit[T])
	return u, ok
}

// Owner returns the live unit that tx belongs to, or nil: the one that ctx
// carries or, if the caller passed a different context, any other that owns tx.
func (r *Runner[T]) Owner(ctx context.Context, tx T) *Unit[T] {
	if u, ok := r.From(ctx); ok && u.session.Owns(tx) {
		return u
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	for u := range r.live {
		if u.session.Owns(tx) {
			return u
		}
	}
	return nil
}

// Inside reports whether ctx carries a live unit of this runner's tables, of
// any driver.
func (r *Runner[T]) Inside(ctx context.Context) bool {
	u, ok := ctx.Value(contextKey{r.db.Local()}).(interface{ Usable() error })
	return ok && u.Usable() == nil
}

// Run calls fn in a transaction and commits it if fn returns nil. Inside a unit
// of the same tables Run joins that unit: the outer one commits, and an error
// here makes it roll back even if the caller swallows the error.
func (r *Runner[T]) Run(ctx context.Context, opts *sql.TxOptions, fn func(ctx context.Context, tx T) error) error {
	// A unit that has ended does not count: its context may have been retained.
	if outer, ok := ctx.Value(contextKey{r.db.Local()}).(interface{ Usable() error }); ok && outer.Usable() == nil {
		u, same := outer.(*Unit[T])
		if !same {
			return fmt.Errorf("%w: a transaction of another driver is open on the same tables", waybill.ErrNested)
		}
		return r.join(ctx, u, opts, fn)
	}
	session, err := r.db.Begin(ctx, opts)
	if err != nil {
		return fmt.Errorf("waybill: begin: %w", err)
	}
	u := &Unit[T]{session: session}
	if opts != nil {
		u.opts = *opts
	}
	r.mu.Lock()
	r.live[u] = struct{}{}
	r.mu.Unlock()
	defer func() {
		r.mu.Lock()
		delete(r.live, u)
		r.mu.Unlock()
	}()
	return r.run(ctx, u, fn)
}

func (r *Runner[T]) join(ctx context.Context, u *Unit[T], opts *sql.TxOptions, fn func(context.Context, T) error) error {
	if opts != nil && *opts != u.opts {
		return fmt.Errorf("%w: the outer transaction has different options", waybill.ErrNested)
	}
	returned := false
	defer func() {
		if !returned { // a panic, or runtime.Goexit
			u.Break(errors.New("waybill: an inner transaction panicked"))
		}
	}()
	err := fn(ctx, u.Tx())
	returned = true
	if err != nil {
		u.Break(err)
	}
	return err
}

func (r *Runner[T]) run(ctx context.Context, u *Unit[T], fn func(context.Context, T) error) (err error) {
	inner := context.WithValue(ctx, contextKey{r.db.Local()}, u)
	returned := false
	defer func() {
		if !returned { // a panic, or runtime.Goexit: roll back and propagate it
			_ = r.rollback(ctx, u)
		}
	}()
	err = fn(inner, u.Tx())
	if err == nil {
		err = r.prepare(inner, u)
	}
	returned = true
	if err != nil {
		return r.giveUp(ctx, u, err)
	}
	return r.commit(ctx, u)
}

// giveUp rolls back because of err, and joins err with the rollback's error.
func (r *Runner[T]) giveUp(ctx context.Context, u *Unit[T], err error) error {
	rerr := r.rollback(ctx, u)
	var uncertain *UncertainError
	switch {
	case rerr == nil:
		return err
	case errors.As(rerr, &uncertain):
		return &UncertainError{Events: uncertain.Events, Err: errors.Join(uncertain.Err, err)}
	}
	return errors.Join(err, fmt.Errorf("waybill: rollback: %w", rerr))
}

// prepare runs the last steps inside the transaction, and decides whether it
// may commit.
func (r *Runner[T]) prepare(ctx context.Context, u *Unit[T]) error {
	for i := 0; ; i++ { // by index: a function may add another
		u.mu.Lock()
		if i >= len(u.beforeCommit) {
			u.mu.Unlock()
			break
		}
		fn := u.beforeCommit[i]
		u.mu.Unlock()
		if err := fn(ctx); err != nil {
			return err
		}
	}
	u.mu.Lock()
	broken := u.broken
	u.mu.Unlock()
	if broken != nil {
		return rolledBack(broken)
	}
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return nil
}

func (r *Runner[T]) rollback(ctx context.Context, u *Unit[T]) error {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	batches, _, after := u.finish()
	err := u.session.Rollback(end)
	// the function ended it, by commit or rollback
	if errors.Is(err, waybill.ErrUncertain) {
		r.db.Local().Wake()
		return &UncertainError{Events: eventIDs(batches), Err: err}
	}
	r.tellRolledBack(ctx, batches, after)
	return err
}

func (r *Runner[T]) commit(ctx context.Context, u *Unit[T]) error {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	u.mu.Lock()
	var ids []waybill.ID
	check := false
	for _, b := range u.written {
		check = check || b.writer.WantsCommitted()
		for i := range b.evs {
			if b.accepted(i) {
				ids = append(ids, b.evs[i].ID)
			}
		}
	}
	u.mu.Unlock()

	begun := time.Now()
	// Commit may accept deferred events, so the batches are final only after
	// it.
	ending, err := u.session.Commit(end, ids, check)
	batches, afterCommit, afterRollback := u.finish()
	switch {
	case errors.Is(err, waybill.ErrUncertain):
		r.db.Local().Wake()
		return &UncertainError{Events: eventIDs(batches), Err: err}
	case err != nil:
		r.tellRolledBack(ctx, batches, afterRollback)
		return err
	}
	r.tellCommitted(ctx, batches, afterCommit, ending, begun)
	return nil
}

func (r *Runner[T]) tellCommitted(ctx context.Context, batches []*written, after []func(), ending driver.CommitInfo, begun time.Time) {
	// there may be as many as there are events
	undone := make(map[waybill.ID]bool, len(ending.Undone))
	for _, id := range ending.Undone {
		undone[id] = true
	}
	lost := func(b *written) func(int) bool {
		return func(i int) bool { return !b.accepted(i) || len(undone) > 0 && undone[b.evs[i].ID] }
	}
	if hub := r.db.Local(); hub.HasListeners() {
		publish(hub, batches, lost, driver.Commit{Checked: ending.Checked, BeganAt: begun})
	}
	for w, evs := range byWriter(batches, Writer.WantsCommitted, lost) {
		w.Committed(ctx, evs)
	}
	for _, fn := range after {
		contained(r.logger, "an AfterCommit callback", fn)
	}
}

// publish notifies the relays of this process of the committed events.
func publish(hub *driver.Hub, batches []*written, lost func(*written) func(int) bool, commit driver.Commit) {
	for _, b := range batches {
		gone := lost(b)
		for i := range b.evs {
			if gone(i) {
				continue
			}
			if ev, lane := &b.evs[i], b.placed[i].Lane; hub.NeedsPublish(ev, lane) {
				commit.Entries = append(commit.Entries, driver.Entry{Event: *ev, Lane: lane})
			}
		}
	}
	if len(commit.Entries) > 0 {
		hub.Publish(commit)
	}
}

func (r *Runner[T]) tellRolledBack(ctx context.Context, batches []*written, after []func()) {
	absorbed := func(b *written) func(int) bool { return b.absorbed }
	for w, evs := range byWriter(batches, func(Writer) bool { return true }, absorbed) {
		w.RolledBack(ctx, evs)
	}
	for _, fn := range after {
		contained(r.logger, "an AfterRollback callback", fn)
	}
}

// byWriter groups the events by writer, in the order of writing, without those
// that drop selects.
func byWriter(batches []*written, wants func(Writer) bool, drop func(*written) func(int) bool) map[Writer][]waybill.Event {
	groups := make(map[Writer][]waybill.Event, 1)
	for _, b := range batches {
		if !wants(b.writer) {
			continue
		}
		evs := b.without(drop(b))
		if have, ok := groups[b.writer]; ok {
			evs = append(have[:len(have):len(have)], evs...)
		}
		if len(evs) > 0 {
			groups[b.writer] = evs
		}
	}
	return groups
}

// eventIDs returns the ids of all events that were not absorbed.
func eventIDs(batches []*written) []waybill.ID {
	var ids []waybill.ID
	for _, b := range batches {
		for i := range b.evs {
			if !b.absorbed(i) {
				ids = append(ids, b.evs[i].ID)
			}
		}
	}
	return ids
}
