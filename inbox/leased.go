package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/panics"
	"github.com/waybillhq/waybill/store/driver"
)

// Lease is the right to apply an event until another attempt may begin.
type Lease[T any] struct {
	effort   *consumption[T]
	attempt  driver.Attempt
	number   int
	finished bool
}

// Key is the same for every attempt of this group at this event; in a group
// with [ByDedupKey], under every id of the event. Pass it to services that
// support idempotency keys.
func (l *Lease[T]) Key() string { return l.effort.g.name + ":" + l.attempt.Key.String() }

// Fence is higher than the fence of every earlier attempt. A service that
// remembers the highest fence can refuse a late attempt.
func (l *Lease[T]) Fence() int64 { return l.attempt.Fence }

// Attempt counts from 1.
func (l *Lease[T]) Attempt() int { return l.number }

// Finish records the event as applied, in a transaction together with fn's
// effects. If the lease has expired and another attempt has claimed the event,
// Finish returns [waybill.ErrLeaseLost] and the effects of fn are rolled back.
// fn may be nil.
func (l *Lease[T]) Finish(ctx context.Context, fn func(ctx context.Context, tx T) error) error {
	if l.finished {
		return errors.New("inbox: the lease is already finished")
	}
	if err := l.effort.g.nested(ctx); err != nil {
		return err
	}
	err := l.effort.transaction(ctx, func(ctx context.Context, tx T) error {
		if fn != nil {
			if err := fn(ctx, tx); err != nil {
				return err
			}
		}
		return l.effort.succeed(ctx, tx, l.attempt)
	})
	if errors.Is(err, waybill.ErrUncertain) {
		_, err = l.effort.uncertain(ctx, l.attempt.Owner, l.number, err)
	}
	l.finished = err == nil
	return err
}

// ConsumeLeased applies an event whose effects are outside the database: no
// transaction is open while fn runs, and the event's record is leased to fn for
// Options.Lease; fn's context ends with the lease. fn calls [Lease.Finish]; if
// fn returns nil without calling it, ConsumeLeased does. ConsumeLeased returns
// nil if and only if the record shows that the event is applied.
//
// Effects outside the database can happen more than once: the progress of an
// interrupted attempt is unknown. [Lease.Key] and [Lease.Fence] let other
// services detect a repeated or late attempt. With Options.Open the opened
// event is the one of [waybill.DeliveryFrom].
func (g *Group[T]) ConsumeLeased(ctx context.Context, ev waybill.Event, fn func(ctx context.Context, l *Lease[T]) error) (Result, error) {
	if fn == nil {
		return Result{}, errors.New("inbox: the handler is nil")
	}
	return g.consume(ctx, &consumption[T]{ev: &ev, leased: fn})
}

// underLease applies an event without a transaction, while the claim holds.
func (e *consumption[T]) underLease(ctx context.Context, a driver.Attempt, number int) (Result, error) {
	g := e.g
	l := &Lease[T]{effort: e, attempt: a, number: number}
	inner, cancel := context.WithDeadlineCause(ctx, e.until, fmt.Errorf("%w: Options.Lease has expired", waybill.ErrLeaseLost))
	err := panics.Call(func() error {
		ctx, _, err := e.opened(inner, number)
		if err != nil {
			return err
		}
		return e.leased(ctx, l)
	})
	cancel()
	switch {
	case l.finished:
		if err != nil {
			g.inbox.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "a handler failed after it had finished its event",
				e.attrs(number, err)...)
		}
		return Result{Attempt: number}, nil
	case err == nil:
		if err := l.Finish(ctx, nil); err != nil {
			return Result{}, e.unfinished(ctx, a, err)
		}
		return Result{Attempt: number}, nil
	case errors.Is(err, waybill.ErrLeaseLost), errors.Is(err, waybill.ErrUncertain), g.restartable(err):
		// an error of Finish, returned by the handler
		return Result{}, e.unfinished(ctx, a, err)
	}
	return Result{}, e.failed(ctx, a, number, err)
}

// unfinished handles a database error while recording a success. The attempt is
// released, unless another attempt may have claimed the event or the event may
// be applied: the next attempt finds out.
func (e *consumption[T]) unfinished(ctx context.Context, a driver.Attempt, err error) error {
	if !errors.Is(err, waybill.ErrLeaseLost) && !errors.Is(err, waybill.ErrUncertain) {
		e.release(ctx, a)
	}
	return e.storeFailure(err)
}
