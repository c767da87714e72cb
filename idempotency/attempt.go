package idempotency

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// attempt is a run whose claim is committed.
type attempt[T any] struct {
	*invocation[T]
	flight  *inflight
	key     store.KeyAttempt
	created time.Time
	point   store.KeyPoint // where earlier attempts got to
	until   time.Time      // when its lease ends, by this process's clock and at the latest
	note    runFlags

	phasing sync.Mutex // held by the phase that is under way
	phases  phases
}

// errPanicked is what is recorded for a panic, or runtime.Goexit. The panic's value is not looked at: it passes on with its stack.
var errPanicked = errors.New("it panicked, or ended its goroutine")

// run calls the function, and records how it ended.
func (a *attempt[T]) run(ctx context.Context) (Reply, error) {
	if err := a.phases.load(a.point); err != nil {
		err = a.wrap(err)
		a.fail(ctx, codeFailed, err)
		return Reply{}, err
	}
	a.ran = true
	a.note.run = a
	began := time.Now()
	inner, stop := a.hold(ctx)
	returned := false
	defer func() {
		if !returned {
			stop()
			a.fail(ctx, codePanicked, errPanicked)
			a.told(began, errPanicked)
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
		a.told(began, err)
		return Reply{}, err
	}
	reply, err := a.settle(ctx, answer)
	a.told(began, err)
	return reply, err
}

// fail gives the key back, or leaves it to an operator if something has happened that must not happen twice.
func (a *attempt[T]) fail(ctx context.Context, code string, cause error) {
	ctx, cancel := detach(ctx)
	defer cancel()
	end := a.failure(code, cause.Error())
	if _, effect, _ := a.note.read(); effect {
		end.State = store.KeyUncertain
	}
	if _, err := a.k.db.EndKey(ctx, a.key, end); err != nil {
		a.warn(ctx, "waybill: a key is held until its lease runs out", errors.Join(err, cause))
	}
}

// settle stores the answer, and returns what the caller gets.
func (a *attempt[T]) settle(ctx context.Context, answer Answer) (Reply, error) {
	said, _, dontStore := a.note.read()
	stored := a.final(ctx, &answer, said)
	if answer.Release || dontStore {
		a.fail(ctx, codeReleased, errors.New("its answer was not to be stored"))
		return Reply{Answer: answer}, nil
	}
	ctx, cancel := detach(ctx)
	defer cancel()
	ok, err := a.keep(ctx, stored)
	switch {
	case err != nil:
		// It is not given back: the caller gets the answer, and nobody must run it again at once.
		err = a.wrap(storeError("storing the answer", err))
		a.k.unkept(ctx, &a.req, err)
		return Reply{Answer: answer, Unkept: err}, nil
	case !ok:
		return a.late(ctx, answer, stored)
	}
	a.flight.answer = kept(&stored)
	return Reply{Answer: answer}, nil
}

// keepTries is how often an answer is offered to a store that fails: the run cannot be taken back.
const keepTries = 3

// keep stores the answer. It reports false if the attempt does not hold the key, also because an earlier try succeeded unnoticed.
func (a *attempt[T]) keep(ctx context.Context, stored store.KeyAnswer) (ok bool, err error) {
	for n := 1; ; n++ {
		ok, err = a.k.db.EndKey(ctx, a.key, store.KeyEnd{State: store.KeySucceeded, Answer: stored})
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

// late is for a run that finds that the key is not its own any more: another run has taken it over. That the lease has run out is not enough, because
// an answer that is thrown away makes the repeat run a second time. One key has one answer: the one that is stored, and that may be this
// run's own, after a try whose answer was lost. What the run made is dropped otherwise.
func (a *attempt[T]) late(ctx context.Context, answer Answer, stored store.KeyAnswer) (Reply, error) {
	rec, there, err := a.k.db.FindKey(ctx, a.key.KeyID)
	mine := there && rec.Owner == a.key.Owner && rec.Fence == a.key.Fence
	switch {
	case err != nil:
		return Reply{}, a.wrap(errors.Join(waybill.ErrLeaseLost, storeError("looking", err)))
	case mine && rec.State == store.KeySucceeded:
		a.flight.answer = kept(&stored)
		return Reply{Answer: answer}, nil
	case there && rec.Hash == string(a.req.Hash) && rec.State != store.KeyFailed:
		return a.judge(&rec)
	}
	return Reply{}, a.wrap(errLapsed)
}

var (
	// errLapsed says that another run may have the key by now.
	errLapsed = fmt.Errorf("%w: the run took longer than its lease could be renewed, and its answer is not stored", waybill.ErrLeaseLost)
	// errTooLong ends the context of a run.
	errTooLong = fmt.Errorf("idempotency: MaxExecution is over: %w", context.DeadlineExceeded)
)

// hold renews the lease until stop is called. The context that it returns ends when the lease is lost, or MaxExecution is over. Most runs are over
// long before their lease has to be renewed, so it takes a goroutine only when it is time.
func (a *attempt[T]) hold(ctx context.Context) (inner context.Context, stop func()) {
	lost, lose := context.WithCancelCause(ctx)
	inner, done := a.bounded(lost)
	beat, end := context.WithCancel(context.WithoutCancel(ctx))
	stopped := make(chan struct{})
	began := time.Now()
	timer := time.AfterFunc(a.k.cfg.Lease/3, func() {
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

// bounded returns a context that ends when MaxExecution is over.
func (e *invocation[T]) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if limit := e.k.cfg.MaxExecution; limit > 0 {
		return context.WithTimeoutCause(ctx, limit, errTooLong)
	}
	return ctx, func() {}
}

// beat renews the lease, now and then at every third of it. A store that fails is asked again until the lease has run out.
func (a *attempt[T]) beat(ctx context.Context, began time.Time, lose context.CancelCauseFunc) {
	every := a.k.cfg.Lease / 3
	for pause := time.Duration(0); ; {
		select {
		case <-ctx.Done():
			return
		case <-time.After(pause):
		}
		now := time.Now()
		if limit := a.k.cfg.MaxExecution; limit > 0 && now.Sub(began) >= limit {
			return // who does not end when his context does loses the key
		}
		renew, cancel := context.WithDeadline(ctx, a.until)
		ok, err := a.k.db.RenewKey(renew, a.key, a.k.cfg.Lease)
		cancel()
		left := time.Until(a.until)
		switch {
		case ctx.Err() != nil:
			return
		case ok:
			a.until = now.Add(a.k.cfg.Lease)
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
