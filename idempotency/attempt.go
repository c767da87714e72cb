package idempotency

// This file runs a function under a committed claim, and ends the claim with
// the function's outcome.

import (
	"context"
	"errors"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// attempt is a run whose claim is committed.
type attempt[T any] struct {
	*entry[T]
	fn      func(ctx context.Context) (Answer, error)
	flight  *inflight
	key     driver.KeyAttempt
	created time.Time
	point   store.KeyPoint // progress of earlier attempts
	until   time.Time      // latest end of the lease, by this process's clock
	note    runFlags

	phasing sync.Mutex // held by the running phase
	phases  phases
}

// errPanicked is recorded for a panic or runtime.Goexit. The attempt does not
// recover the panic: it continues with its stack.
var errPanicked = errors.New("the function panicked or ended its goroutine")

// run calls the function and records the outcome.
func (a *attempt[T]) run(ctx context.Context) outcome {
	if err := a.phases.load(a.point); err != nil {
		err = a.wrap(err)
		a.fail(ctx, codeFailed, err)
		return outcome{err: err}
	}
	a.note.run = a
	began := time.Now()
	inner, stop := a.hold(ctx)
	returned := false
	defer func() {
		if !returned {
			stop()
			a.fail(ctx, codePanicked, errPanicked)
			a.reportRun(began, errPanicked)
		}
	}()
	answer, err := a.fn(context.WithValue(inner, noteKey{}, &a.note))
	returned = true
	stop()
	if err == nil {
		err = a.complete()
	}
	if err != nil {
		a.fail(ctx, codeFailed, err)
		a.reportRun(began, err)
		return outcome{err: err, ran: true}
	}
	reply, err := a.settle(ctx, answer)
	a.reportRun(began, err)
	return outcome{reply: reply, err: err, ran: true}
}

// fail releases the key, or marks it uncertain if the run had an effect that
// must not happen twice.
func (a *attempt[T]) fail(ctx context.Context, code string, cause error) {
	ctx, cancel := detach(ctx)
	defer cancel()
	end := a.failure(code, cause.Error())
	if a.note.read().effect {
		end.State = store.KeyUncertain
	}
	if _, err := a.k.db.EndKey(ctx, a.key, end); err != nil {
		a.warn(ctx, "a key is held until its lease expires", errors.Join(err, cause))
	}
}

// settle stores the answer and returns the caller's reply.
func (a *attempt[T]) settle(ctx context.Context, answer Answer) (Reply, error) {
	set := a.note.read()
	stored := a.final(ctx, &answer, set.ref)
	if answer.Release || set.dontStore {
		a.fail(ctx, codeReleased, errReleased)
		return Reply{Answer: answer}, nil
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	ok, err := a.keep(ctx, stored)
	switch {
	case err != nil:
		// The key is not released: the caller gets the answer, and no repeat
		// may run the operation again right away.
		err = a.wrap(storeError("storing the answer", err))
		a.k.unkept(ctx, &a.req, err)
		return Reply{Answer: answer, Unkept: err}, nil
	case !ok:
		return a.late(ctx, answer, stored)
	}
	a.flight.answer = kept(&stored)
	return Reply{Answer: answer}, nil
}

// keepTries is how often storing an answer is tried when the store fails: the
// run cannot be undone.
const keepTries = 3

// keep stores the answer. It reports false if the attempt no longer holds the
// key, which includes an earlier try that succeeded unnoticed.
func (a *attempt[T]) keep(ctx context.Context, stored driver.KeyAnswer) (ok bool, err error) {
	for n := 1; ; n++ {
		ok, err = a.k.db.EndKey(ctx, a.key, driver.KeyEnd{State: store.KeySucceeded, Answer: stored})
		if err == nil || n == keepTries {
			return ok, err
		}
		select {
		case <-time.After(time.Duration(n) * 50 * time.Millisecond):
		case <-ctx.Done():
			return ok, err
		}
	}
}

// late handles a run whose key another run has taken over. An expired lease
// alone is not a take-over: if the answer were discarded then, a repeat would
// run the operation a second time. One key has one answer, the stored one. The
// stored answer may be this run's own, if the response to an earlier try was
// lost; otherwise this run's answer is discarded.
func (a *attempt[T]) late(ctx context.Context, answer Answer, stored driver.KeyAnswer) (Reply, error) {
	rec, there, err := a.k.db.FindKey(ctx, a.key.KeyID)
	mine := there && rec.Owner == a.key.Owner && rec.Fence == a.key.Fence
	switch {
	case err != nil:
		return Reply{}, a.wrap(errors.Join(waybill.ErrLeaseLost, storeError("finding the key", err)))
	case mine && rec.State == store.KeySucceeded:
		a.flight.answer = kept(&stored)
		return Reply{Answer: answer}, nil
	case there && rec.Hash == string(a.req.Hash) && rec.State != store.KeyFailed:
		return a.judge(&rec)
	}
	return Reply{}, a.wrap(errLapsed)
}
