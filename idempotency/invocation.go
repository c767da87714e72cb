package idempotency

// This file answers one request. The first request of a key in this process
// leads: it reads or claims the record, and starts a run (attempt.go, tx.go).
// Concurrent requests with the same key follow it (wait.go).

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// invocation is one request. Either fn or tx is set.
type invocation[T any] struct {
	entry[T]
	keys *Keys[T]
	fn   func(ctx context.Context) (Answer, error)
	tx   func(ctx context.Context, tx T) (Answer, error)
}

func newInvocation[T any](k *Keys[T], req Request) *invocation[T] {
	return &invocation[T]{entry: entry[T]{k: &k.core, req: req}, keys: k}
}

// outcome is the outcome of one try to answer a request.
type outcome struct {
	reply Reply
	err   error
	// ran reports that the function was called.
	ran bool
	// shared reports that reply and err come from the record of another run, so
	// that they are also the outcome of the requests that follow this one.
	shared bool
	// retry reports that the request that was followed left no outcome.
	retry bool
}

// do answers the request and notifies the observer.
func (e *invocation[T]) do(ctx context.Context) (Reply, error) {
	if err := e.req.Validate(); err != nil {
		return Reply{}, err
	}
	if e.k.runner.Inside(ctx) {
		return Reply{}, e.wrap(fmt.Errorf("%w: the surrounding transaction may still fail after the answer is stored", waybill.ErrNested))
	}
	out := e.answer(ctx)
	reply, err := out.reply, out.err
	switch o := &e.k.cfg.Observe; {
	case err == nil && reply.Replayed && o.KeyRepeated != nil:
		o.KeyRepeated(observe.KeyRepeatedInfo{Operation: e.req.Operation})
	case err != nil && !out.ran && o.KeyRefused != nil:
		o.KeyRefused(observe.KeyRefusedInfo{Operation: e.req.Operation, Err: err})
	}
	return reply, err
}

// answer retries until there is an answer, or until WaitMax has passed.
func (e *invocation[T]) answer(ctx context.Context) outcome {
	var until time.Time
	if e.req.WaitMax > 0 {
		until = time.Now().Add(e.req.WaitMax)
	}
	for n := 1; ; n++ {
		var out outcome
		if f, lead := e.keys.flights.enter(e.req.id(), e.req.Hash); lead {
			out = e.lead(ctx, f)
		} else if out = e.follow(ctx, f, until); out.retry {
			continue
		}
		if out.ran || e.req.WaitMax == 0 || !errors.Is(out.err, waybill.ErrInProgress) || time.Until(until) <= 0 {
			return out
		}
		if err := e.await(ctx, until, n); err != nil {
			return outcome{err: err}
		}
	}
}

// lead answers the request from its record, or runs the operation.
func (e *invocation[T]) lead(ctx context.Context, f *inflight) outcome {
	defer e.leave(f)
	out, known := e.peek(ctx)
	switch {
	case known:
	case e.tx != nil:
		t := &taking[T]{entry: &e.entry, fn: e.tx, flight: f, owner: waybill.NewID()}
		out = t.do(ctx)
	default:
		out = e.attempt(ctx, f)
	}
	if out.shared {
		f.decline(out.reply, out.err)
	}
	return out
}

// leave ends an inflight, and tells the policy of peeks what it was.
func (e *invocation[T]) leave(f *inflight) {
	e.keys.flights.leave(e.req.id(), f)
	switch {
	case f.taken:
		e.keys.policy.ran()
	case f.reply.Replayed:
		e.keys.policy.repeated()
	}
}

// attempt claims the key, and runs the operation if the claim succeeds.
func (e *invocation[T]) attempt(ctx context.Context, f *inflight) outcome {
	claim := e.claim()
	began := time.Now()
	rec, taken, err := e.k.db.ClaimKey(ctx, claim)
	switch {
	case err != nil:
		e.unclaim(ctx, claim.Owner)
		return outcome{err: e.wrap(storeError("claiming", err))}
	case !taken:
		return e.judged(&rec)
	}
	a := &attempt[T]{
		entry: &e.entry, fn: e.fn, flight: f, key: driver.KeyAttempt{KeyID: claim.KeyID, Owner: claim.Owner, Fence: rec.Fence},
		created: rec.CreatedAt, point: rec.Point, until: began.Add(e.lease()),
	}
	f.take(a.until)
	return a.run(ctx)
}

// unclaim releases a key if a claim whose response was lost has taken it:
// nothing has run.
func (e *invocation[T]) unclaim(ctx context.Context, owner waybill.ID) {
	ctx, cancel := detach(ctx)
	defer cancel()
	rec, there, err := e.k.db.FindKey(ctx, e.req.id())
	if err == nil && there && rec.State == store.KeyProcessing && rec.Owner == owner {
		_, err = e.k.db.EndKey(ctx, driver.KeyAttempt{KeyID: rec.KeyID, Owner: owner, Fence: rec.Fence}, e.failure(codeReleased, "the response to the claim was lost"))
	}
	if err != nil {
		e.warn(ctx, "a key may be held until its lease expires", err)
	}
}
