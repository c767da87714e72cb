package idempotency

// This file waits for other runs of a request's key: in this process through
// the inflight that another request leads, in other processes by reading the
// record.

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill/internal/backoff"
	"github.com/waybillhq/waybill/store"
)

// firstPause and longestPause bound the pause between two reads of a key that
// another process holds.
const (
	firstPause   = 5 * time.Millisecond
	longestPause = 500 * time.Millisecond
)

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

// follow waits for an inflight that another request leads.
func (e *invocation[T]) follow(ctx context.Context, f *inflight, until time.Time) outcome {
	select {
	case <-f.claimed.happened():
	case <-ctx.Done():
		return outcome{err: context.Cause(ctx)}
	}
	switch {
	case f.taken && f.hash != e.req.Hash:
		return outcome{err: e.conflict()}
	case f.taken:
		return e.awaitEnd(ctx, f, until)
	case !f.declined || f.hash != e.req.Hash:
		return outcome{retry: true}
	}
	return outcome{reply: copied(f.reply), err: f.err}
}

// awaitEnd waits for the end of a run, if the request has a WaitMax.
func (e *invocation[T]) awaitEnd(ctx context.Context, f *inflight, until time.Time) outcome {
	left := time.Until(until)
	if e.req.WaitMax == 0 || left <= 0 {
		return outcome{err: e.inProgress(f.left())}
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-f.ended.happened():
		if f.answer != nil {
			return outcome{reply: copied(Reply{Answer: *f.answer, Replayed: true})}
		}
		return outcome{retry: true}
	case <-timer.C:
		return outcome{err: e.inProgress(f.left())}
	case <-ctx.Done():
		return outcome{err: context.Cause(ctx)}
	}
}

// copied returns a reply with a copy of the bytes.
func copied(r Reply) Reply {
	r.Body = slices.Clone(r.Body)
	return r
}
