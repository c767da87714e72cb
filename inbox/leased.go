package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/contain"
	"github.com/waybillhq/waybill/store"
)

// Lease is the right to apply an event, until another attempt may begin.
type Lease[T any] struct {
	effort   *effort[T]
	attempt  store.Attempt
	number   int
	finished bool
}

// Key is the same for every attempt of this group at this event. Pass it on to services that know idempotency keys.
func (l *Lease[T]) Key() string { return l.effort.g.name + ":" + l.effort.ev.ID.String() }

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
// to it for LockTTL; fn's context ends with it. fn calls [Lease.Finish]; if it returns nil without, that is done for it. It returns nil if
// and only if the record says that the event is applied.
//
// Effects outside the database can happen more than once: of an attempt that was cut off, nobody knows how far it came.
// [Lease.Key] and [Lease.Fence] are for services that can tell.
func (g *Group[T]) ConsumeLeased(ctx context.Context, ev waybill.Event, fn func(ctx context.Context, l *Lease[T]) error) (Result, error) {
	if fn == nil {
		return Result{}, errors.New("inbox: the handler is nil")
	}
	in, err := g.intake(&ev)
	if err == nil {
		err = g.nested(ctx)
	}
	if err != nil {
		return Result{}, err
	}
	began := time.Now()
	e := &effort[T]{g: g, in: in, ev: &ev}
	e.leased = fn
	res, err := e.run(ctx)
	if g.opts.WaitIfInProgress && errors.Is(err, waybill.ErrInProgress) {
		res, err = e.wait(ctx, began.Add(g.opts.WaitMax), err)
	}
	g.tell(&ev, res, err, time.Since(began))
	return res, err
}

// underLease claims the event and applies it without a transaction.
func (e *effort[T]) underLease(ctx context.Context) (Result, error) {
	g := e.g
	owner := waybill.NewID()
	began := time.Now()
	rec, ok, err := g.inbox.db.ClaimEvent(ctx, e.in, owner, g.opts.LockTTL, g.opts.attempts(), e.kept())
	if err != nil {
		return Result{}, e.trouble(err)
	}
	if !ok {
		res, err, open := e.judge(rec)
		if open {
			err = e.inProgress(busyDelay)
		}
		return res, err
	}
	l := &Lease[T]{
		effort: e, number: rec.Attempts,
		attempt: store.Attempt{Group: g.name, Key: e.in.Key, Owner: owner, Fence: rec.Fence},
	}
	inner, cancel := context.WithDeadlineCause(ctx, began.Add(g.opts.LockTTL), fmt.Errorf("%w: LockTTL is over", waybill.ErrLeaseLost))
	err = contain.Call(func() error { return e.leased(e.delivered(inner, rec.Attempts), l) })
	cancel()
	switch {
	case l.finished:
		if err != nil {
			g.inbox.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "waybill: a handler failed after it had finished its event",
				e.attrs(rec.Attempts, err)...)
		}
		return Result{Attempt: rec.Attempts}, nil
	case err == nil:
		if err := l.Finish(ctx, nil); err != nil {
			return Result{}, e.trouble(err)
		}
		return Result{Attempt: rec.Attempts}, nil
	case errors.Is(err, waybill.ErrLeaseLost):
		return Result{}, e.trouble(err) // the next attempt counts itself
	}
	return Result{}, e.failed(ctx, l.attempt, rec.Attempts, err)
}
