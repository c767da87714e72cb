package inbox

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/panics"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Result describes how an event was applied.
type Result struct {
	// Replayed reports that the event had been applied before; the handler was
	// not called.
	Replayed bool
	// Attempt is the number of the attempt that applied the event now.
	Attempt int
}

// ErrConsumeFailed is returned by a group that waited for a concurrent attempt
// (Options.WaitIfInProgress) when that attempt failed.
var ErrConsumeFailed = errors.New("waybill: the concurrent attempt failed")

// Consume applies an event once: it runs fn in a transaction together with the
// event's record. Consume returns nil if and only if the effect is committed,
// now or earlier. Otherwise the error's class determines what happens to the
// delivery: after [waybill.ErrInProgress], [waybill.ErrNotDue] and a recorded
// failure the event must be delivered again later; [waybill.ErrDead] and
// [waybill.ErrConflict] never succeed.
//
// Consume never joins an open transaction; it returns [waybill.ErrNested]. If
// ctx carries a delivery ([waybill.ContextWithDelivery]) that is not the first
// one, or may not be ([waybill.Delivery.Repeated]), the attempt is recorded
// before fn runs, so that an event that kills its process becomes dead too.
func (g *Group[T]) Consume(ctx context.Context, ev waybill.Event, fn HandlerFunc[T]) (Result, error) {
	if fn == nil {
		return Result{}, errors.New("inbox: the handler is nil")
	}
	return g.consume(ctx, &consumption[T]{ev: &ev, fn: fn})
}

// consume makes one attempt, and waits for a concurrent one if the options say
// so.
func (g *Group[T]) consume(ctx context.Context, e *consumption[T]) (res Result, err error) {
	e.g = g
	if e.in, err = g.intake(e.ev); err == nil {
		err = g.nested(ctx)
	}
	if err != nil {
		return Result{}, err
	}
	began := time.Now()
	res, err = e.run(ctx)
	if g.opts.WaitIfInProgress && errors.Is(err, waybill.ErrInProgress) {
		res, err = e.wait(ctx, began.Add(g.opts.WaitMax), err)
	}
	g.tell(e.ev, res, err, time.Since(began))
	return res, err
}

// nested returns ErrNested inside a transaction of the same tables.
func (g *Group[T]) nested(ctx context.Context) error {
	if g.inbox.runner.Inside(ctx) {
		return fmt.Errorf("inbox: group %s: %w", g.name, waybill.ErrNested)
	}
	return nil
}

// tell reports the outcome of an event to the observer.
func (g *Group[T]) tell(ev *waybill.Event, res Result, err error, took time.Duration) {
	o := &g.inbox.cfg.Observe
	class, _ := waybill.Classify(err)
	switch {
	case class == waybill.ClassDone && o.Consumed != nil:
		o.Consumed(observe.ConsumedInfo{Group: g.name, Event: ev, Took: took, Replayed: res.Replayed})
	case class == waybill.ClassPermanent && o.ConsumeDied != nil:
		o.ConsumeDied(observe.ConsumeDiedInfo{Group: g.name, Event: ev, Err: err})
	case class != waybill.ClassDone && class != waybill.ClassPermanent && o.ConsumeFailed != nil:
		o.ConsumeFailed(observe.ConsumeFailedInfo{Group: g.name, Event: ev, Err: err, Took: took})
	}
}

// busyDelay is the delay before a redelivery of an event that a transaction
// without a lease is handling.
const busyDelay = 200 * time.Millisecond

// consumption is one call of Consume.
type consumption[T any] struct {
	g     *Group[T]
	in    store.InboxEntry
	ev    *waybill.Event
	fn    HandlerFunc[T]
	fence *waybill.Delivery // settled in the same transaction
	// leased, if not nil, is called instead of fn, without a transaction.
	leased func(ctx context.Context, l *Lease[T]) error
	until  time.Time // latest end of the claim, by the local clock
	// suspect reports that the event may have killed its last consumer.
	suspect bool
	// shared reports that other events used a part of the context's time.
	shared bool
}

// run makes one attempt, unless the record rules it out.
func (e *consumption[T]) run(ctx context.Context) (Result, error) {
	if !e.g.enter(e.in.Key) {
		return Result{}, e.inProgress(busyDelay)
	}
	defer e.g.leave(e.in.Key)
	d, ok := waybill.DeliveryFrom(ctx)
	if !ok || d.ID != e.ev.ID || !d.Repeated() {
		if e.leased != nil {
			return e.claim(ctx, e.underLease)
		}
		return e.consumeInTx(ctx)
	}
	// A redelivered event is often applied already: reading the record is
	// cheaper than waiting for a turn.
	rec, there, err := e.g.inbox.db.FindRecord(ctx, e.g.name, e.in.Key)
	if err != nil {
		return Result{}, e.storeFailure(err)
	}
	if there {
		if res, err, open := e.judge(rec); !open {
			return res, err
		}
	}
	// A record that is still in processing means that the consumer died, so the
	// event is suspect. A recorded failure clears the suspicion: every attempt
	// since then is on record.
	e.suspect = d.Suspect
	if there {
		e.suspect = rec.State == store.InboxProcessing
	}
	if e.leased != nil {
		return e.claim(ctx, e.underLease)
	}
	return e.claim(ctx, e.claimed)
}

// errRecordExists reports that the event has a record, or that a concurrent
// transaction is about to write it.
type errRecordExists struct{ acceptance driver.AcceptResult }

func (*errRecordExists) Error() string { return "the record exists" }

// failedError wraps the handler's error.
type failedError struct{ error }

func (e failedError) Unwrap() error { return e.error }

// consumeInTx records the event and applies it in one transaction: the normal
// case.
func (e *consumption[T]) consumeInTx(ctx context.Context) (Result, error) {
	g := e.g
	owner := waybill.NewID()
	err := e.transaction(ctx, func(ctx context.Context, tx T) error {
		got, err := g.inbox.db.Accept(ctx, tx, owner, []store.InboxEntry{e.in})
		if err != nil {
			return err
		}
		if !got[0].Accepted {
			return &errRecordExists{got[0]}
		}
		if err := e.apply(ctx, tx, 1); err != nil {
			return err
		}
		return g.prove(ctx, tx)
	})
	var stands *errRecordExists
	var failed failedError
	switch {
	case err == nil:
		return Result{Attempt: 1}, nil
	case errors.As(err, &stands):
		if stands.acceptance.Busy {
			return Result{}, e.inProgress(busyDelay)
		}
		if res, err, open := e.judge(stands.acceptance.Record); !open {
			return res, err
		}
		e.suspect = stands.acceptance.Record.State == store.InboxProcessing
		return e.claim(ctx, e.claimed)
	case errors.As(err, &failed):
		return Result{}, e.failed(ctx, driver.Attempt{Owner: owner}, 1, failed.error)
	case errors.Is(err, waybill.ErrUncertain):
		return e.uncertain(ctx, owner, 1, err)
	}
	return Result{}, e.storeFailure(err)
}

// claim records an attempt durably and then makes it: if the event kills the
// process, the attempt has been counted. No other attempt is counted with it,
// because a suspect is attempted while no other counted attempt is in flight.
func (e *consumption[T]) claim(ctx context.Context, then func(context.Context, driver.Attempt, int) (Result, error)) (Result, error) {
	g := e.g
	wait := g.inbox.turns.among
	if e.suspect {
		wait = g.inbox.turns.alone
	}
	ctx, release, err := wait(ctx)
	if err != nil {
		return Result{}, waybill.Later(0, e.wrap(err))
	}
	defer release()
	owner := waybill.NewID()
	e.until = time.Now().Add(g.opts.Lease)
	rec, ok, err := g.inbox.db.ClaimEvent(ctx, e.in, owner, g.opts.Lease, g.opts.attempts(), e.kept())
	if err != nil {
		if ctx.Err() != nil {
			e.unclaim(ctx, owner)
		}
		return Result{}, e.storeFailure(err)
	}
	if !ok {
		res, err, open := e.judge(rec)
		if open { // a concurrent claim won
			err = e.inProgress(busyDelay)
		}
		return res, err
	}
	return then(ctx, driver.Attempt{Group: g.name, Key: e.in.Key, Owner: owner, Fence: rec.Fence}, rec.Attempts)
}

// claimed applies an event in a transaction that commits only if the claim
// still holds.
func (e *consumption[T]) claimed(ctx context.Context, a driver.Attempt, number int) (Result, error) {
	err := e.transaction(ctx, func(ctx context.Context, tx T) error {
		if err := e.apply(ctx, tx, number); err != nil {
			return err
		}
		return e.succeed(ctx, tx, a)
	})
	var failed failedError
	switch {
	case err == nil:
		return Result{Attempt: number}, nil
	case errors.As(err, &failed):
		return Result{}, e.failed(ctx, a, number, failed.error)
	case errors.Is(err, waybill.ErrUncertain):
		return e.uncertain(ctx, a.Owner, number, err)
	}
	if !errors.Is(err, errLapsed) {
		e.release(ctx, a)
	}
	return Result{}, e.storeFailure(err)
}

// errLapsed reports that another attempt may have claimed the event. The
// attempt counts, because the event may take too long every time.
var errLapsed = fmt.Errorf("%w: the attempt took longer than Options.Lease and was rolled back", waybill.ErrLeaseLost)

// succeed records the attempt as succeeded if it still owns the event.
func (e *consumption[T]) succeed(ctx context.Context, tx T, a driver.Attempt) error {
	ok, err := e.g.inbox.db.Succeed(ctx, tx, a)
	if err == nil && !ok {
		err = errLapsed
	}
	return err
}

// transaction runs fn in a transaction, and reruns it after a conflict with
// other transactions. The delivery, if any, is settled after fn.
func (e *consumption[T]) transaction(ctx context.Context, fn func(ctx context.Context, tx T) error) error {
	return e.g.inbox.runner.RunAgain(ctx, e.g.restartable, func(ctx context.Context, tx T) error {
		if err := fn(ctx, tx); err != nil || e.fence == nil {
			return err
		}
		return e.g.inbox.settle(ctx, tx, []waybill.Delivery{*e.fence})
	})
}

// settle settles deliveries in the transaction, together with the commit if the
// store supports that.
func (i *Inbox[T]) settle(ctx context.Context, tx T, done []waybill.Delivery) error {
	if f, ok := i.finish.(driver.FinisherAtCommit[T]); ok {
		if later, err := f.FinishAtCommit(ctx, tx, done); later || err != nil {
			return err
		}
	}
	return i.finish.Finish(ctx, tx, done)
}

// restartable reports whether a transaction failed because of a conflict with
// other transactions.
func (g *Group[T]) restartable(err error) bool {
	r, ok := g.inbox.db.(driver.RetryClassifier)
	return ok && !errors.Is(err, waybill.ErrUncertain) && r.IsRetryable(err)
}

// delivered returns a context that carries the event being handled.
func (e *consumption[T]) delivered(ctx context.Context, attempt int) context.Context {
	if d, ok := waybill.DeliveryFrom(ctx); ok && d.ID == e.ev.ID {
		return ctx
	}
	return waybill.ContextWithDelivery(ctx, waybill.Delivery{Event: *e.ev, Attempt: attempt})
}

// opened returns the event as the handler receives it, and a context that
// carries it.
func (e *consumption[T]) opened(ctx context.Context, attempt int) (context.Context, waybill.Event, error) {
	ctx = e.delivered(ctx, attempt)
	if e.g.opts.Open == nil {
		return ctx, *e.ev, nil
	}
	ev, err := e.g.opts.Open(ctx, *e.ev)
	if err != nil {
		return ctx, ev, err
	}
	d, _ := waybill.DeliveryFrom(ctx)
	d.Event = ev
	return waybill.ContextWithDelivery(ctx, d), ev, nil
}

// prove checks that the handler's effects are in the transaction. Recording a
// success or settling a delivery proves it as well.
func (g *Group[T]) prove(ctx context.Context, tx T) error {
	if p, ok := g.inbox.db.(driver.TxChecker[T]); ok {
		return p.CheckOpen(ctx, tx)
	}
	return nil
}

// apply calls the handler. A handler that ignores its context and returns after
// the deadline has failed: its transaction cannot be committed.
func (e *consumption[T]) apply(ctx context.Context, tx T, attempt int) error {
	err := panics.Call(func() error {
		ctx, ev, err := e.opened(ctx, attempt)
		if err != nil {
			return err
		}
		return e.fn(ctx, tx, ev)
	})
	if err == nil && errors.Is(ctx.Err(), context.DeadlineExceeded) {
		err = fmt.Errorf("the handler returned after its deadline: %w", ctx.Err())
	}
	if err == nil {
		return nil
	}
	if e.g.restartable(err) {
		return err // a database error, returned by the handler
	}
	return failedError{err}
}

// judge interprets an existing record and reports whether another attempt may
// be made.
func (e *consumption[T]) judge(rec store.InboxRecord) (res Result, err error, open bool) { //nolint:revive // the error is one of three answers
	if rec.Type != e.in.Type || rec.Hash != e.in.Hash {
		return Result{}, waybill.Permanent(fmt.Errorf("inbox: group %s: event %s of type %s: %w: recorded as %s",
			e.g.name, e.ev.ID, e.ev.Type, waybill.ErrConflict, rec.Type)), false
	}
	switch rec.State {
	case store.InboxSucceeded:
		return Result{Replayed: true}, nil, false
	case store.InboxDead:
		return Result{}, e.dead(rec.Attempts, errors.New(rec.LastError)), false
	case store.InboxProcessing:
		if left := rec.LeaseUntil.Sub(rec.Now); left > 0 {
			return Result{}, e.inProgress(left), false
		}
	case store.InboxFailed:
		if left := rec.NextRetryAt.Sub(rec.Now); left > 0 {
			return Result{}, waybill.Later(left, e.wrap(fmt.Errorf("%w: next attempt in %v; last error: %s",
				waybill.ErrNotDue, left.Round(time.Millisecond), rec.LastError))), false
		}
	}
	return Result{}, nil, true
}

func (e *consumption[T]) inProgress(left time.Duration) error {
	return waybill.Later(left, e.wrap(waybill.ErrInProgress))
}

func (e *consumption[T]) dead(attempts int, err error) error {
	return waybill.Permanent(e.wrap(fmt.Errorf("%w after %d attempts: %w", waybill.ErrDead, attempts, err)))
}

// wrap adds the group and the event to an error.
func (e *consumption[T]) wrap(err error) error {
	return fmt.Errorf("inbox: group %s: event %s: %w", e.g.name, e.ev.ID, err)
}

// storeFailure wraps a database error: the event is delivered again and no
// attempt is counted.
func (e *consumption[T]) storeFailure(err error) error {
	return waybill.Later(e.g.opts.BackoffBase, e.wrap(err))
}

// recordTime bounds the work for an attempt after its own context may have
// ended.
const recordTime = 10 * time.Second

// failed records a failed attempt in a transaction of its own, because the
// transaction with the effects is rolled back. It returns the error for the
// caller.
func (e *consumption[T]) failed(ctx context.Context, a driver.Attempt, attempts int, err error) error {
	g := e.g
	class, delay := waybill.Classify(err)
	if e.interrupted(ctx) || class == waybill.ClassDefer || class == waybill.ClassUnavailable {
		e.release(ctx, a)
		if class != waybill.ClassDefer && class != waybill.ClassUnavailable {
			err = waybill.Later(0, err) // not the event's fault
		}
		return e.wrap(err)
	}
	f := driver.Failure{Owner: a.Owner, Fence: a.Fence, Delay: delay, Error: err.Error(), Stored: e.kept()}
	if f.Delay == 0 {
		f.Delay = g.opts.after(attempts)
	}
	switch {
	case class == waybill.ClassPermanent:
		f.Dead = true
	case attempts >= g.opts.attempts():
		f.Dead, f.Error = true, driver.ExceededError(err.Error())
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if _, ferr := g.inbox.db.FailEvent(ctx, e.in, f); ferr != nil {
		// The event will be delivered again; only the count is lost.
		return waybill.Later(g.opts.BackoffBase, e.wrap(errors.Join(err, fmt.Errorf("recording the failure: %w", ferr))))
	}
	if f.Dead {
		g.inbox.cfg.Logger.LogAttrs(ctx, slog.LevelError, "an event is dead in a consumer group", e.attrs(attempts, err)...)
		return e.dead(attempts, err)
	}
	g.inbox.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "an event failed in a consumer group", e.attrs(attempts, err)...)
	return waybill.Later(f.Delay, e.wrap(fmt.Errorf("attempt %d failed: %w", attempts, err)))
}

// interrupted reports that the context ended the attempt for a reason other
// than the event: a shutdown, or a deadline of which other events used a part.
// A handler that exceeds a deadline by itself has failed.
func (e *consumption[T]) interrupted(ctx context.Context) bool {
	err := ctx.Err()
	return err != nil && (e.shared || !errors.Is(err, context.DeadlineExceeded))
}

func (e *consumption[T]) attrs(attempts int, err error) []slog.Attr {
	return []slog.Attr{
		slog.String(logkey.Group, e.g.name), slog.String(logkey.EventID, e.ev.ID.String()), slog.String(logkey.EventType, e.ev.Type),
		slog.Int(logkey.Attempt, attempts), slog.String(logkey.Error, err.Error()),
	}
}

// release returns an attempt that does not count.
func (e *consumption[T]) release(ctx context.Context, a driver.Attempt) {
	if a.Fence == 0 {
		return // nothing was recorded
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	if _, err := e.g.inbox.db.ReleaseEvent(ctx, a); err != nil {
		e.g.inbox.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, "an attempt was not released; its lease will expire",
			slog.String(logkey.Group, e.g.name), slog.String(logkey.EventID, e.ev.ID.String()), slog.String(logkey.Error, err.Error()))
	}
}

// unclaim releases the lease that a claim may have left behind when its context
// ended. Otherwise the next attempt would have to wait until the lease expires.
func (e *consumption[T]) unclaim(ctx context.Context, owner waybill.ID) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	rec, ok, err := e.g.inbox.db.FindRecord(ctx, e.g.name, e.in.Key)
	if err == nil && ok && rec.State == store.InboxProcessing && rec.Owner == owner {
		e.release(ctx, driver.Attempt{Group: e.g.name, Key: e.in.Key, Owner: owner, Fence: rec.Fence})
	}
}

// uncertain resolves a commit whose outcome is unknown.
func (e *consumption[T]) uncertain(ctx context.Context, owner waybill.ID, attempt int, err error) (Result, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), recordTime)
	defer cancel()
	rec, ok, ferr := e.g.inbox.db.FindRecord(ctx, e.g.name, e.in.Key)
	if ferr == nil && ok && rec.State == store.InboxSucceeded && rec.Owner == owner {
		return Result{Attempt: attempt}, nil
	}
	return Result{}, waybill.Later(e.g.opts.BackoffBase, e.wrap(errors.Join(err, ferr)))
}

// wait waits for the concurrent attempt to end.
func (e *consumption[T]) wait(ctx context.Context, until time.Time, last error) (Result, error) {
	pause := 5 * time.Millisecond
	for {
		left := time.Until(until)
		if left <= 0 {
			return Result{}, last
		}
		select {
		case <-ctx.Done():
			return Result{}, waybill.Later(0, e.wrap(context.Cause(ctx)))
		case <-time.After(min(pause, left)):
		}
		pause = min(2*pause, 500*time.Millisecond)
		rec, ok, err := e.g.inbox.db.FindRecord(ctx, e.g.name, e.in.Key)
		if err != nil {
			return Result{}, e.storeFailure(err)
		}
		if ok && rec.State == store.InboxFailed {
			return Result{}, waybill.Later(max(rec.NextRetryAt.Sub(rec.Now), 0), e.wrap(fmt.Errorf("%w: %s", ErrConsumeFailed, rec.LastError)))
		}
		if ok && rec.State == store.InboxProcessing && rec.LeaseUntil.After(rec.Now) {
			continue
		}
		res, err := e.run(ctx)
		if errors.Is(err, waybill.ErrNotDue) {
			_, left := waybill.Classify(err)
			return res, waybill.Later(left, fmt.Errorf("%w: %w", ErrConsumeFailed, err))
		}
		if !errors.Is(err, waybill.ErrInProgress) {
			return res, err
		}
		last = err
	}
}
