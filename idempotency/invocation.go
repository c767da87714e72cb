package idempotency

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/backoff"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

const (
	// busyDelay is the retry delay for a key that is claimed without a lease.
	busyDelay = 200 * time.Millisecond
	// recordTime bounds the work for a run after its own context may have
	// ended.
	recordTime = 10 * time.Second
	// firstPause and longestPause bound the pause between two reads of a key
	// that another process holds.
	firstPause   = 5 * time.Millisecond
	longestPause = 500 * time.Millisecond
)

// invocation is one request. Either fn or tx is set.
type invocation[T any] struct {
	k   *Keys[T]
	req Request
	fn  func(ctx context.Context) (Answer, error)
	tx  func(ctx context.Context, tx T) (Answer, error)
	ran bool // fn or tx was called
}

// do answers the request and notifies the observer.
func (e *invocation[T]) do(ctx context.Context) (Reply, error) {
	if err := e.req.Validate(); err != nil {
		return Reply{}, err
	}
	if e.k.runner.Inside(ctx) {
		return Reply{}, e.wrap(fmt.Errorf("%w: the surrounding transaction may still fail after the answer is stored", waybill.ErrNested))
	}
	reply, err := e.answer(ctx)
	switch o := &e.k.cfg.Observe; {
	case err == nil && reply.Replayed && o.KeyRepeated != nil:
		o.KeyRepeated(e.req.Operation)
	case err != nil && !e.ran && o.KeyRefused != nil:
		o.KeyRefused(e.req.Operation, err)
	}
	return reply, err
}

// answer retries until there is an answer, or until WaitMax has passed.
func (e *invocation[T]) answer(ctx context.Context) (reply Reply, err error) {
	var until time.Time
	if e.req.WaitMax > 0 {
		until = time.Now().Add(e.req.WaitMax)
	}
	for n := 1; ; n++ {
		f, lead := e.k.enter(&e.req)
		if lead {
			reply, err = e.lead(ctx, f)
		} else {
			var again bool
			if reply, again, err = e.follow(ctx, f, until); again {
				continue
			}
		}
		if e.ran || e.req.WaitMax == 0 || !errors.Is(err, waybill.ErrInProgress) || time.Until(until) <= 0 {
			return reply, err
		}
		if werr := e.await(ctx, until, n); werr != nil {
			return Reply{}, werr
		}
	}
}

// await returns when another process may have finished with the key, or at
// until.
func (e *invocation[T]) await(ctx context.Context, until time.Time, n int) error {
	for ; ; n++ {
		timer := time.NewTimer(min(backoff.After(firstPause, longestPause, n), time.Until(until)))
		select {
		case <-ctx.Done():
			timer.Stop()
			return context.Cause(ctx)
		case <-timer.C:
		}
		rec, there, err := e.k.db.FindKey(ctx, e.req.id())
		switch {
		case err != nil:
			return e.wrap(storeError("finding the key", err))
		case !there || rec.State != store.KeyProcessing || !rec.LeaseUntil.After(rec.Now) || time.Until(until) <= 0:
			return nil
		}
	}
}

// lead claims the key, and runs the operation if the claim succeeds.
func (e *invocation[T]) lead(ctx context.Context, f *inflight) (Reply, error) {
	defer e.k.leave(&e.req, f)
	if reply, stands, err := e.peek(ctx); stands || err != nil {
		if stands {
			f.decline(reply, err)
		}
		return reply, err
	}
	if e.tx != nil {
		return e.inTransaction(ctx, f)
	}
	claim := e.claim()
	began := time.Now()
	rec, taken, err := e.k.db.ClaimKey(ctx, claim)
	switch {
	case err != nil:
		e.unclaim(ctx, claim.Owner)
		return Reply{}, e.wrap(storeError("claiming", err))
	case !taken:
		reply, err := e.judge(&rec)
		f.decline(reply, err)
		return reply, err
	}
	a := &attempt[T]{
		invocation: e, flight: f, key: driver.KeyAttempt{KeyID: claim.KeyID, Owner: claim.Owner, Fence: rec.Fence},
		created: rec.CreatedAt, point: rec.Point, until: began.Add(e.k.cfg.Lease),
	}
	f.take(a.until)
	return a.run(ctx)
}

func (e *invocation[T]) claim() driver.KeyClaim {
	claim := driver.KeyClaim{KeyID: e.req.id(), Hash: string(e.req.Hash), Owner: waybill.NewID(), Lease: e.k.cfg.Lease, TTL: e.ttl()}
	if e.k.cfg.ResultRetention > 0 {
		claim.TTL = min(claim.TTL, e.k.cfg.ResultRetention)
	}
	return claim
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
		e.warn(ctx, "waybill: a key may be held until its lease expires", err)
	}
}

// detach returns a context for work that must be done even if the caller has
// gone.
func detach(ctx context.Context) (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(ctx), recordTime)
}

// judge returns the reply for a record that could not be taken.
func (e *invocation[T]) judge(rec *store.KeyRecord) (Reply, error) {
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

func (e *invocation[T]) conflict() error {
	return waybill.Permanent(e.wrap(fmt.Errorf("%w: use a new key for a new request", waybill.ErrConflict)))
}

func (e *invocation[T]) inProgress(left time.Duration) error {
	left = max(left, busyDelay)
	return waybill.Later(left, e.wrap(&InProgressError{RetryAfter: left}))
}

// wrap adds the operation and the hashed key to an error.
func (e *invocation[T]) wrap(err error) error {
	return fmt.Errorf("idempotency: %s: key %s: %w", e.req.Operation, hidden(e.req.Key), err)
}

func (e *invocation[T]) warn(ctx context.Context, what string, err error) {
	e.k.warn(ctx, &e.req, what, err)
}

func (k *Keys[T]) warn(ctx context.Context, req *Request, what string, err error) {
	k.cfg.Logger.LogAttrs(ctx, slog.LevelWarn, what, slog.String("tenant", req.TenantID), slog.String("operation", req.Operation),
		slog.String("key", hidden(req.Key)), slog.String("error", err.Error()))
}

// Codes of failures.
const (
	codeFailed   = "failed"
	codePanicked = "panicked"
	codeReleased = "released"
)

// failure returns the end of an attempt whose key may be taken again.
func (e *invocation[T]) failure(code, text string) driver.KeyEnd {
	return driver.KeyEnd{State: store.KeyFailed, Code: code, Error: text, Answer: driver.KeyAnswer{TTL: e.ttl()}}
}

func (e *invocation[T]) ttl() time.Duration {
	if e.req.Retention > 0 {
		return e.req.Retention
	}
	return e.k.cfg.Retention
}

// final returns the answer as it is stored, with its reference. An answer that
// is too large is marked as lost.
func (e *invocation[T]) final(ctx context.Context, answer *Answer, said string) driver.KeyAnswer {
	if answer.Ref == "" {
		answer.Ref = said
	}
	if len(answer.Ref) > maxRef {
		e.warn(ctx, "waybill: a reference was not stored", fmt.Errorf("reference has %d bytes, more than the maximum of %d", len(answer.Ref), maxRef))
		answer.Ref = ""
	}
	out := driver.KeyAnswer{Ref: answer.Ref, TTL: e.ttl(), Lost: answer.Lost}
	if limit := e.k.cfg.MaxResult; limit > 0 && len(answer.Body) > limit {
		out.Lost = true
	}
	if !out.Lost {
		out.Result, out.ContentType = answer.Body, answer.ContentType
		if e.k.cfg.ResultRetention > 0 && e.k.cfg.ResultRetention < out.TTL {
			out.ResultTTL = e.k.cfg.ResultRetention
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
func (e *invocation[T]) reportRun(began time.Time, err error) {
	if fn := e.k.cfg.Observe.KeyRan; fn != nil {
		fn(e.req.Operation, time.Since(began), err)
	}
}

// unkept reports an answer that was not stored.
func (k *Keys[T]) unkept(ctx context.Context, req *Request, err error) {
	k.warn(ctx, req, "waybill: an answer was not stored", err)
	if fn := k.cfg.Observe.KeyUnkept; fn != nil {
		fn(req.Operation, err)
	}
}
