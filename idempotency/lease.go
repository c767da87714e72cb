package idempotency

// This file keeps the lease of an attempt while its function runs, and ends the
// function's context when the lease is lost or after MaxExecution.

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

var (
	// errLapsed reports that another run may hold the key.
	errLapsed = fmt.Errorf("%w: the run outlived its lease, and its answer is not stored", waybill.ErrLeaseLost)
	// errTooLong is the cause that ends a run's context.
	errTooLong = fmt.Errorf("idempotency: MaxExecution exceeded: %w", context.DeadlineExceeded)
)

// hold renews the lease until stop is called. The returned context ends when
// the lease is lost or after MaxExecution. Most runs end long before their
// lease must be renewed, so hold starts a goroutine only when the first renewal
// is due.
func (a *attempt[T]) hold(ctx context.Context) (inner context.Context, stop func()) {
	lost, lose := context.WithCancelCause(ctx)
	inner, done := a.bounded(lost)
	beat, end := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	began := time.Now()
	timer := time.AfterFunc(a.lease()/3, func() {
		defer close(stopped)
		a.beat(beat, began, lose)
	})
	return inner, func() {
		end()
		if !timer.Stop() {
			<-stopped
		}
		done()
		lose(nil)
	}
}

// beat renews the lease immediately and then at every third of it. If the store
// fails, beat retries until the lease has expired.
func (a *attempt[T]) beat(ctx context.Context, began time.Time, lose context.CancelCauseFunc) {
	every := a.lease() / 3
	for pause := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		now := time.Now()
		if limit := a.k.cfg.MaxExecution; limit > 0 && now.Sub(began) >= limit {
			return // a run that ignores the end of its context loses the key
		}
		renew, cancel := context.WithDeadline(ctx, a.until)
		ok, err := a.k.db.RenewKey(renew, a.key, a.lease())
		cancel()
		left := time.Until(a.until)
		switch {
		case ctx.Err() != nil:
			return
		case ok:
			a.until = now.Add(a.lease())
			a.flight.until.Store(a.until.UnixNano())
			pause = every
		case err == nil || left <= 0:
			lose(errLapsed)
			return
		default:
			pause = min(every/3, left)
		}
	}
}
