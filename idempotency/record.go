package idempotency

// This file connects a request with its record in the store: how the request
// claims the record, which reply a record means for it, and what a run stores.
// It calls no function of the user, and does not depend on the kind of run.

import (
	"cmp"
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// busyDelay is the retry delay for a key that is claimed without a lease.
const busyDelay = 200 * time.Millisecond

// entry is a request and the store of its record.
type entry[T any] struct {
	k   *core[T]
	req Request
}

// lease returns the lease of the request.
func (e *entry[T]) lease() time.Duration { return cmp.Or(e.req.Lease, e.k.cfg.Lease) }

// claim returns the claim of the request's key, with a new owner.
func (e *entry[T]) claim() driver.KeyClaim {
	claim := driver.KeyClaim{KeyID: e.req.id(), Hash: string(e.req.Hash), Owner: waybill.NewID(), Lease: e.lease(), Retention: e.retention()}
	if e.k.cfg.ResultRetention > 0 {
		claim.Retention = min(claim.Retention, e.k.cfg.ResultRetention)
	}
	return claim
}

// judge returns the reply for a record that could not be taken.
func (e *entry[T]) judge(rec *store.KeyRecord) (Reply, error) {
	if rec.Hash != string(e.req.Hash) {
		return Reply{}, e.conflict()
	}
	switch rec.State {
	case store.KeySucceeded:
		if rec.Lost || rec.ResultExpired {
			return Reply{}, e.wrap(&NoResultError{Ref: rec.Ref, Expired: rec.ResultExpired && !rec.Lost})
		}
		return Reply{Answer: Answer{Body: rec.Result, ContentType: rec.ContentType, Ref: rec.Ref}, Replayed: true}, nil
	case store.KeyUncertain:
		return Reply{}, e.wrap(ErrUnresolved)
	case store.KeyProcessing:
		return Reply{}, e.inProgress(rec.LeaseUntil.Sub(rec.Now))
	case store.KeyFailed: // failed after it was read
		return Reply{}, e.inProgress(busyDelay)
	}
	return Reply{}, e.wrap(fmt.Errorf("%w: unknown state %d", ErrCorrupt, int(rec.State)))
}

// judged returns the outcome of a record that could not be taken.
func (e *entry[T]) judged(rec *store.KeyRecord) outcome {
	reply, err := e.judge(rec)
	return outcome{reply: reply, err: err, shared: true}
}

func (e *entry[T]) conflict() error {
	return waybill.Permanent(e.wrap(fmt.Errorf("%w: use a new key for a new request", waybill.ErrConflict)))
}

func (e *entry[T]) inProgress(left time.Duration) error {
	left = max(left, busyDelay)
	return waybill.Later(left, e.wrap(&InProgressError{RetryAfter: left}))
}

// wrap adds the operation and the hashed key to an error.
func (e *entry[T]) wrap(err error) error {
	return fmt.Errorf("idempotency: %s: key %s: %w", e.req.Operation, hidden(e.req.Key), err)
}

func (e *entry[T]) warn(ctx context.Context, what string, err error) {
	e.k.warn(ctx, &e.req, what, err)
}

// Codes of failures.
const (
	codeFailed   = "failed"
	codePanicked = "panicked"
	codeReleased = "released"
)

// failure returns the end of an attempt whose key may be taken again.
func (e *entry[T]) failure(code, text string) driver.KeyEnd {
	return driver.KeyEnd{State: store.KeyFailed, Code: code, Error: text, Answer: driver.KeyAnswer{Retention: e.retention()}}
}

func (e *entry[T]) retention() time.Duration {
	if e.req.Retention > 0 {
		return e.req.Retention
	}
	return e.k.cfg.Retention
}

// final returns the answer as it is stored, with its reference. An answer that
// is too large is marked as lost.
func (e *entry[T]) final(ctx context.Context, answer *Answer, said string) driver.KeyAnswer {
	if answer.Ref == "" {
		answer.Ref = said
	}
	if len(answer.Ref) > maxRef {
		e.warn(ctx, "a reference was not stored", fmt.Errorf("reference has %d bytes, more than the maximum of %d", len(answer.Ref), maxRef))
		answer.Ref = ""
	}
	out := driver.KeyAnswer{Ref: answer.Ref, Retention: e.retention(), Lost: answer.Lost}
	if limit := e.k.cfg.MaxResult; limit > 0 && len(answer.Body) > limit {
		out.Lost = true
	}
	if !out.Lost {
		out.Result, out.ContentType = answer.Body, answer.ContentType
		if e.k.cfg.ResultRetention > 0 && e.k.cfg.ResultRetention < out.Retention {
			out.ResultRetention = e.k.cfg.ResultRetention
		}
	}
	return out
}

// kept returns the answer for requests that wait in this process.
func kept(stored *driver.KeyAnswer) *Answer {
	if stored.Lost {
		return nil
	}
	return &Answer{Body: stored.Result, ContentType: stored.ContentType, Ref: stored.Ref}
}

// reportRun notifies the observer of a run.
func (e *entry[T]) reportRun(began time.Time, err error) {
	if fn := e.k.cfg.Observe.KeyRan; fn != nil {
		fn(observe.KeyRanInfo{Operation: e.req.Operation, Took: time.Since(began), Err: err})
	}
}

// bounded returns a context that ends after MaxExecution.
func (e *entry[T]) bounded(ctx context.Context) (context.Context, context.CancelFunc) {
	if limit := e.k.cfg.MaxExecution; limit > 0 {
		return context.WithTimeoutCause(ctx, limit, errTooLong)
	}
	return ctx, func() {}
}
