package outbox

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log/slog"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/txrun"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store/driver"
)

// Config configures an outbox; the zero value is ready to use.
type Config struct {
	// Hooks are called around every write, in this order. Defaults to none.
	Hooks []Hook
	// Observe receives writes and may add headers. Defaults to no hooks.
	Observe observe.Hooks
	// Logger receives panics of hooks and callbacks after a write. Defaults to
	// [slog.Default]; slog.New(slog.DiscardHandler) disables it.
	Logger *slog.Logger
}

// Outbox writes events. T is the type of the transactions that the events join.
// An Outbox is safe for concurrent use.
type Outbox[T any] struct {
	db     driver.Outbox[T]
	runner *txrun.Runner[T]
	writer *writer
}

// New returns an outbox over a store. It runs no SQL.
func New[T any](db driver.Store[T], cfg Config) (*Outbox[T], error) {
	roles, err := driver.Get(db, "outbox", "Outbox")
	if err != nil {
		return nil, err
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	cfg.Logger = cfg.Logger.With(slog.String(logkey.Component, "outbox"))
	w := &writer{hooks: cfg.Hooks, observe: cfg.Observe, logger: cfg.Logger}
	return &Outbox[T]{db: roles.Outbox, runner: txrun.NewRunner[T](roles.Outbox, cfg.Logger), writer: w}, nil
}

// InTx calls fn in a transaction and commits it if fn returns nil. If fn
// returns an error or panics, InTx rolls back and returns that error or
// propagates the panic. The context of fn carries the transaction for
// [Outbox.Emit] and for an inner InTx. An inner InTx joins the transaction: the
// outer InTx commits it, and a failed inner InTx makes the outer one roll back
// even if the caller ignores the error.
//
// InTx owns tx: ending tx inside fn is an error ([waybill.ErrTxOwned]). On pgx
// the handle itself rejects Commit and Rollback; a [*sql.Tx] cannot, so InTx
// reports the error.
//
// The commit runs detached from ctx: canceling ctx before the commit starts
// rolls back; canceling it later has no effect.
func (o *Outbox[T]) InTx(ctx context.Context, fn func(ctx context.Context, tx T) error) error {
	return o.InTxWith(ctx, nil, fn)
}

// InTxWith is [Outbox.InTx] with transaction options. Joining a transaction
// that has other options fails with [waybill.ErrNested].
func (o *Outbox[T]) InTxWith(ctx context.Context, opts *sql.TxOptions, fn func(ctx context.Context, tx T) error) error {
	err := o.runner.Run(ctx, opts, fn)
	var uncertain *txrun.UncertainError
	if errors.As(err, &uncertain) {
		return &UncertainError{Events: uncertain.Events, Err: uncertain.Err}
	}
	return err
}

// Write writes events in tx, in their order. It validates every event first; if
// any event is invalid, the error lists every invalid field and no event is
// written. Write without events does nothing.
//
// In a transaction of [Outbox.InTx] on pgx, the events are sent with the
// transaction's next round trip, usually the commit. An error of the database
// about these events is then returned by that statement or by InTx.
func (o *Outbox[T]) Write(ctx context.Context, tx T, evs ...waybill.Event) error {
	_, err := o.write(ctx, tx, evs, false)
	return err
}

// WriteEach is [Outbox.Write] and returns the outcome of each event. It costs a
// round trip.
func (o *Outbox[T]) WriteEach(ctx context.Context, tx T, evs ...waybill.Event) ([]Receipt, error) {
	return o.write(ctx, tx, evs, true)
}

// Emit writes events in the transaction that ctx carries, for code inside
// [Outbox.InTx] that has no tx. Without a transaction in ctx, Emit fails with
// [waybill.ErrNoTx].
func (o *Outbox[T]) Emit(ctx context.Context, evs ...waybill.Event) error {
	u, ok := o.runner.From(ctx)
	if !ok {
		return fmt.Errorf("outbox: emit: %w in the context; use the context that InTx passes to its function", waybill.ErrNoTx)
	}
	if err := u.Usable(); err != nil {
		return fmt.Errorf("outbox: emit: %w", err)
	}
	return o.Write(ctx, u.Tx(), evs...)
}

// Source is an aggregate that collects events; embedding [waybill.Log]
// implements it.
type Source interface {
	// Raised returns the events to write, oldest first.
	Raised() []waybill.Event
	// ForgetRaised removes the n oldest events after their commit.
	ForgetRaised(n int)
}

// Track writes the events of the sources when the transaction of ctx commits,
// including events raised after this call. After the commit the sources forget
// these events; after a rollback they keep them. Tracking a source twice is the
// same as once. Outside [Outbox.InTx], Track fails with [waybill.ErrNoTx].
func (o *Outbox[T]) Track(ctx context.Context, srcs ...Source) error {
	u, ok := o.runner.From(ctx)
	if !ok {
		return fmt.Errorf("outbox: track: %w in the context; use the context that InTx passes to its function", waybill.ErrNoTx)
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

// AfterCommit calls fn after the transaction of ctx has committed, and never
// otherwise. A panic in fn is logged and otherwise ignored. Outside
// [Outbox.InTx], AfterCommit fails with [waybill.ErrNoTx].
func (o *Outbox[T]) AfterCommit(ctx context.Context, fn func()) error {
	u, ok := o.runner.From(ctx)
	if !ok {
		return fmt.Errorf("outbox: after commit: %w", waybill.ErrNoTx)
	}
	return u.AfterCommit(fn)
}

// AfterRollback calls fn after the transaction of ctx has rolled back, and
// never otherwise.
func (o *Outbox[T]) AfterRollback(ctx context.Context, fn func()) error {
	u, ok := o.runner.From(ctx)
	if !ok {
		return fmt.Errorf("outbox: after rollback: %w", waybill.ErrNoTx)
	}
	return u.AfterRollback(fn)
}

// Committed reports whether the event with this id was committed, in whatever
// state the event is now. If the answer is currently unknown, the error matches
// [waybill.ErrUncertain]: retry later.
func (o *Outbox[T]) Committed(ctx context.Context, id waybill.ID) (bool, error) {
	return o.db.Committed(ctx, id)
}

// Wake notifies the relay in this process of a commit. Call Wake after
// committing a transaction that InTx did not begin. A missing call costs
// latency, never events.
func (o *Outbox[T]) Wake() {
	o.db.Local().Wake()
}

// UncertainError means that a commit was sent and its response was lost,
// because the connection broke or the server stopped. The events and everything
// else in the transaction were committed together or not at all;
// [Outbox.Committed] with any of the ids returns the outcome. Do not run the
// transaction again without checking. The error matches [waybill.ErrUncertain].
type UncertainError struct {
	// Events are the ids of the events written in the transaction.
	Events []waybill.ID
	// Err is the error of the driver.
	Err error
}

// Error describes the uncertain commit and how to resolve it.
func (e *UncertainError) Error() string {
	if len(e.Events) == 0 {
		return e.Err.Error()
	}
	return fmt.Sprintf("%v (%d events; check Committed(%s))", e.Err, len(e.Events), e.Events[0])
}

// Unwrap returns the error of the driver.
func (e *UncertainError) Unwrap() error { return e.Err }

// Is makes every UncertainError match [waybill.ErrUncertain].
func (e *UncertainError) Is(target error) bool { return target == waybill.ErrUncertain }
