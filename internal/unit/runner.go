package unit

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// endTimeout bounds a commit or rollback, which runs detached from the caller's context: cancelling a request while its
// commit is under way would only make the outcome uncertain.
const endTimeout = 30 * time.Second

// Database is what a runner needs of a store.
type Database[T any] interface {
	store.Beginner[T]
	store.Local
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
type contextKey struct{ hub *store.Hub }

// From returns the unit that ctx carries for this runner's tables, if any. It may be over.
func (r *Runner[T]) From(ctx context.Context) (*Unit[T], bool) {
	u, ok := ctx.Value(contextKey{r.db.Local()}).(*Unit[T])
	return u, ok
}

// Owner returns the live unit that tx belongs to, or nil: the one that ctx carries, or, when the caller passed on
// another context than the one it was given, any other that owns tx.
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

// Run calls fn in a transaction and commits it if fn returns nil. Inside a unit of the same tables it joins that one:
// then the outer one commits, and an error here makes it roll back even if the caller swallows it.
func (r *Runner[T]) Run(ctx context.Context, opts *sql.TxOptions, fn func(ctx context.Context, tx T) error) error {
	// A unit that is over is nobody's: its context may have been kept.
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
		return fmt.Errorf("%w: the outer transaction has other options", waybill.ErrNested)
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
		if !returned { // a panic, or runtime.Goexit: roll back and let it pass on
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

// giveUp rolls back because of err, and returns it with what the rollback had to say.
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

// prepare does what comes last inside the transaction, and decides whether it may commit.
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
	entries, _, after := u.finish()
	err := u.session.Rollback(end)
	if errors.Is(err, waybill.ErrUncertain) { // it was ended inside, one way or the other
		r.db.Local().Wake()
		return &UncertainError{Events: eventIDs(entries), Err: err}
	}
	r.tellRolledBack(ctx, entries, after)
	return err
}

func (r *Runner[T]) commit(ctx context.Context, u *Unit[T]) error {
	end, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	u.mu.Lock()
	var ids []waybill.ID
	check := false
	for _, e := range u.entries {
		check = check || e.writer.WantsCommitted()
		if e.state == accepted {
			ids = append(ids, e.Event.ID)
		}
	}
	u.mu.Unlock()

	// Events that still wait are accepted in here, so the entries are final only after it.
	ending, err := u.session.Commit(end, ids, check)
	entries, afterCommit, afterRollback := u.finish()
	switch {
	case errors.Is(err, waybill.ErrUncertain):
		r.db.Local().Wake()
		return &UncertainError{Events: eventIDs(entries), Err: err}
	case err != nil:
		r.tellRolledBack(ctx, entries, afterRollback)
		return err
	}
	if len(ending.Undone) > 0 {
		undone := make(map[waybill.ID]bool, len(ending.Undone)) // there may be as many as there are events
		for _, id := range ending.Undone {
			undone[id] = true
		}
		entries = slices.DeleteFunc(entries, func(e entry) bool { return undone[e.Event.ID] })
	}
	r.tellCommitted(ctx, entries, afterCommit, ending.Checked)
	return nil
}

func (r *Runner[T]) tellCommitted(ctx context.Context, entries []entry, after []func(), checked bool) {
	if len(entries) > 0 {
		commit := store.Commit{Entries: make([]store.Entry, len(entries)), Checked: checked}
		for i, e := range entries {
			commit.Entries[i] = e.Entry
		}
		r.db.Local().Publish(commit)
	}
	if slices.ContainsFunc(entries, func(e entry) bool { return e.writer.WantsCommitted() }) {
		for w, evs := range byWriter(entries) {
			w.Committed(ctx, evs)
		}
	}
	for _, fn := range after {
		contained(r.logger, "an AfterCommit callback", fn)
	}
}

func (r *Runner[T]) tellRolledBack(ctx context.Context, entries []entry, after []func()) {
	for w, evs := range byWriter(entries) {
		w.RolledBack(ctx, evs)
	}
	for _, fn := range after {
		contained(r.logger, "an AfterRollback callback", fn)
	}
}

// byWriter groups the events by who wrote them, each group in the order it was written.
func byWriter(entries []entry) map[Writer][]waybill.Event {
	groups := make(map[Writer][]waybill.Event, 1)
	for _, e := range entries {
		groups[e.writer] = append(groups[e.writer], e.Event)
	}
	return groups
}

func eventIDs(entries []entry) []waybill.ID {
	ids := make([]waybill.ID, len(entries))
	for i, e := range entries {
		ids[i] = e.Event.ID
	}
	return ids
}
