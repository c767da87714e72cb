package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/txrun"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// Config holds what may be tuned; its zero value is ready.
type Config struct {
	// Hooks are called around every write, in this order. Defaults to none.
	Hooks []Hook
	// Observe is told about writes and may add headers. Defaults to nothing.
	Observe observe.Hooks
	// Logger gets what hooks and callbacks do wrong after a write. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

// Outbox writes events. T is the type of the transactions they join. It is safe for concurrent use.
type Outbox[T any] struct {
	db     store.Outbox[T]
	runner *txrun.Runner[T]
	writer *writer
}

// New returns an outbox over a store. It does not touch the database.
func New[T any](db store.Outbox[T], cfg Config) (*Outbox[T], error) {
	if db == nil {
		return nil, errors.New("outbox: the store is nil")
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	w := &writer{hooks: cfg.Hooks, observe: cfg.Observe, logger: cfg.Logger}
	return &Outbox[T]{db: db, runner: txrun.NewRunner[T](db, cfg.Logger), writer: w}, nil
}

// InTx calls fn in a transaction and commits it if fn returns nil; it rolls back if fn returns an error or panics, and
// then returns that error or lets the panic pass. The transaction is also in fn's context, for [Outbox.Emit] and for an
// inner InTx, which joins it: then the outer one commits, and an inner one that failed makes it roll back even if the
// error is swallowed.
//
// tx belongs to InTx: ending it inside fn is an error ([waybill.ErrTxOwned]). On pgx the handle refuses Commit and
// Rollback by itself; a [*sql.Tx] cannot, so there InTx reports it.
//
// The commit runs detached from ctx: cancelling ctx before it starts rolls back, later it has no effect.
func (o *Outbox[T]) InTx(ctx context.Context, fn func(ctx context.Context, tx T) error) error {
	return o.InTxWith(ctx, nil, fn)
}

// InTxWith is [Outbox.InTx] with an isolation level. Joining a transaction with other options fails with
// [waybill.ErrNested].
func (o *Outbox[T]) InTxWith(ctx context.Context, opts *sql.TxOptions, fn func(ctx context.Context, tx T) error) error {
	err := o.runner.Run(ctx, opts, fn)
	var uncertain *txrun.UncertainError
	if errors.As(err, &uncertain) {
		return &UncertainError{Events: uncertain.Events, Err: uncertain.Err}
	}
	return err
}

// Write puts events into tx, in their order. Every event is checked first; if one is wrong, the error names each wrong
// field and none is written. No events, no effect.
//
// In a transaction of [Outbox.InTx] on pgx, the events wait for the transaction's next round trip, usually the commit;
// what the database has to say about them is then the error of that statement or of InTx.
func (o *Outbox[T]) Write(ctx context.Context, tx T, evs ...waybill.Event) error {
	_, err := o.write(ctx, tx, evs, false)
	return err
}

// WriteEach is [Outbox.Write], and returns what became of each event. Finding that out costs a round trip.
func (o *Outbox[T]) WriteEach(ctx context.Context, tx T, evs ...waybill.Event) ([]Receipt, error) {
	return o.write(ctx, tx, evs, true)
}

// Emit writes events into the transaction that ctx carries: code deep inside [Outbox.InTx] needs no tx at hand. Without
// one it fails with [waybill.ErrNoTx].
func (o *Outbox[T]) Emit(ctx context.Context, evs ...waybill.Event) error {
	u, ok := o.runner.From(ctx)
	if !ok {
		return fmt.Errorf("outbox: emit: %w in the context; call it inside InTx with the context InTx gives", waybill.ErrNoTx)
	}
	if err := u.Usable(); err != nil {
		return fmt.Errorf("outbox: emit: %w", err)
	}
	return o.Write(ctx, u.Tx(), evs...)
}

// Source is an aggregate that collects events; [waybill.Log] makes one by embedding.
type Source interface {
	// Raised returns the events to be written, oldest first.
	Raised() []waybill.Event
	// ForgetRaised drops the n oldest: they are committed.
	ForgetRaised(n int)
}

// Track writes what the sources have raised when the transaction of ctx commits, also what they raise after this call,
// and has them forget it once it has committed. After a rollback they still have it. Tracking a source twice is the same
// as once. Outside [Outbox.InTx] it fails with [waybill.ErrNoTx].
func (o *Outbox[T]) Track(ctx context.Context, srcs ...Source) error {
	u, ok := o.runner.From(ctx)
	if !ok {
		return fmt.Errorf("outbox: track: %w in the context; call it inside InTx with the context InTx gives", waybill.ErrNoTx)
	}
	for _, src := range srcs {
		err := u.BeforeCommit(src, func(ctx context.Context) error {
			raised := src.Raised()
			if len(raised) == 0 {
				return nil
			}
			if err := o.Write(ctx, u.Tx(), raised...); err != nil {
				return fmt.Errorf("outbox: track: %w", err)
			}
			return u.AfterCommit(func() { src.ForgetRaised(len(raised)) })
		})
		if err != nil {
			return fmt.Errorf("outbox: track: %w", err)
		}
	}
	return nil
}

// AfterCommit calls fn once the transaction of ctx has committed, and never if it does not. What fn does wrong changes
// nothing. Outside [Outbox.InTx] it fails with [waybill.ErrNoTx].
func (o *Outbox[T]) AfterCommit(ctx context.Context, fn func()) error {
	u, ok := o.runner.From(ctx)
	if !ok {
		return fmt.Errorf("outbox: after commit: %w", waybill.ErrNoTx)
	}
	return u.AfterCommit(fn)
}

// AfterRollback calls fn once the transaction of ctx has rolled back, and never if it does not.
func (o *Outbox[T]) AfterRollback(ctx context.Context, fn func()) error {
	u, ok := o.runner.From(ctx)
	if !ok {
		return fmt.Errorf("outbox: after rollback: %w", waybill.ErrNoTx)
	}
	return u.AfterRollback(fn)
}

// Committed reports whether the event with this id was committed, whatever has become of it since. Where it cannot know,
// the error matches [waybill.ErrUncertain]: ask again in a moment.
func (o *Outbox[T]) Committed(ctx context.Context, id waybill.ID) (bool, error) {
	return o.db.Committed(ctx, id)
}

// Wake tells the relay in this process that something was committed: call it after the commit of a transaction that is
// not InTx's. Forgetting it costs latency, never events.
func (o *Outbox[T]) Wake() {
	o.db.Local().Wake()
}

// UncertainError says that a commit was sent and its answer never came: the connection broke, or the server went away. The
// events, and everything else in the transaction, were committed together or not at all; [Outbox.Committed] with
// any of the ids finds out. Do not blindly run the transaction again. It matches [waybill.ErrUncertain].
type UncertainError struct {
	// Events are the ids of the events written in the transaction.
	Events []waybill.ID
	// Err is what the driver said.
	Err error
}

// Error says what happened and what to do next.
func (e *UncertainError) Error() string {
	if len(e.Events) == 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("%v (%d events; Committed(%s) can tell)", e.Err, len(e.Events), e.Events[0])
}

// Unwrap returns what the driver said.
func (e *UncertainError) Unwrap() error { return e.Err }

// Is makes every UncertainError match [waybill.ErrUncertain].
func (e *UncertainError) Is(target error) bool { return target == waybill.ErrUncertain }
