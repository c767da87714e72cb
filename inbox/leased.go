package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/panics"
	"github.com/waybillhq/waybill/store"
)

// Lease is the right to apply an event, until another attempt may begin.
type Lease[T any] struct {
	effort   *consumption[T]
	attempt  store.Attempt
	number   int
	finished bool
}

// Key is the same for every attempt of this group at this event: of a group that goes [ByDedupKey], under whatever id the event comes. Pass it on to
// services that know idempotency keys.
func (l *Lease[T]) Key() string { return l.effort.g.name + ":" + l.attempt.Key.String() }

// Fence is higher than that of every earlier attempt. A service that remembers the highest it has seen can refuse a late one.
func (l *Lease[T]) Fence() int64 { return l.attempt.Fence }

// Attempt counts from 1.
func (l *Lease[T]) Attempt() int { return l.number }

// Finish records the event as applied, in a transaction together with what fn does. If the lease has run out and somebody else has
// the event, it is [waybill.ErrLeaseLost], and what fn did is rolled back. fn may be nil.
func (l *Lease[T]) Finish(ctx context.Context, fn func(ctx context.Context, tx T) error) error {
	if l.finished {
		return errors.New("inbox: the lease is finished already")
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

// ConsumeLeased applies an event whose effects are outside the database: no transaction is open while fn runs, and the event's record is leased
// to it for Lease; fn's context ends with it. fn calls [Lease.Finish]; if it returns nil without, that is done for it. It returns nil if
// and only if the record says that the event is applied.
//
// Effects outside the database can happen more than once: of an attempt that was cut off, nobody knows how far it came.
// [Lease.Key] and [Lease.Fence] are for services that can tell.
func (g *Group[T]) ConsumeLeased(ctx context.Context, ev waybill.Event, fn func(ctx context.Context, l *Lease[T]) error) (Result, error) {
	if fn == nil {
		return Result{}, errors.New("inbox: the handler is nil")
	}
	return g.consume(ctx, &consumption[T]{ev: &ev, leased: fn})
}

// underLease applies an event without a transaction, for as long as the claim holds.
func (e *consumption[T]) underLease(ctx context.Context, a store.Attempt, number int) (Result, error) {
	g := e.g
	l := &Lease[T]{effort: e, attempt: a, number: number}
	inner, cancel := context.WithDeadlineCause(ctx, e.until, fmt.Errorf("%w: LockTTL is over", waybill.ErrLeaseLost))
	err := panics.Call(func() error { return e.leased(e.delivered(inner, number), l) })
	cancel()
	switch {
	case l.finished:
		if err != nil {
			g.inbox.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "waybill: a handler failed after it had finished its event",
				e.attrs(number, err)...)
		}
		return Result{Attempt: number}, nil
	case err == nil:
		if err := l.Finish(ctx, nil); err != nil {
			return Result{}, e.unfinished(ctx, a, err)
		}
		return Result{Attempt: number}, nil
	case errors.Is(err, waybill.ErrLeaseLost), errors.Is(err, waybill.ErrUncertain), g.restartable(err):
		return Result{}, e.unfinished(ctx, a, err) // what Finish said, passed on by the handler
	}
	return Result{}, e.failed(ctx, a, number, err)
}

// unfinished is what the database had against recording a success. The attempt is given back, unless it may be somebody else's by now, or
// done: the next one finds out.
func (e *consumption[T]) unfinished(ctx context.Context, a store.Attempt, err error) error {
	if !errors.Is(err, waybill.ErrLeaseLost) && !errors.Is(err, waybill.ErrUncertain) {
		e.release(ctx, a)
	}
	return e.storeFailure(err)
}
