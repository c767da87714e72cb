package idempotency

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// inflight is a request that is in flight in this process. Other requests with
// the same key share its outcome and do not query the store.
//
// It is in the map from enter until leave. A request that arrives in between
// waits for claimed, which takes one round trip of the store: only then is it
// known whether there is a run with the same hash, a stored answer, or nothing
// at all. An earlier answer could be wrong in both ways: "in progress" although
// an answer is stored, or "conflict" with a request that is itself the
// conflicting one.
type inflight struct {
	hash    Hash
	claimed event // the outcome of the claim is known
	ended   event // the request has ended

	// Set before claimed.
	taken, declined bool
	reply           Reply // the store's answer if declined; others may share it
	err             error

	until  atomic.Int64 // end of the lease, in Unix nanoseconds
	answer *Answer      // the stored answer; set before ended
}

// event is a one-time event. It allocates its channel only when a goroutine
// waits, which is rare.
type event struct {
	mu   sync.Mutex
	over bool
	done chan struct{}
}

// happen wakes the waiting goroutines.
func (e *event) happen() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	if e.done != nil {
		close(e.done)
	}
}

// happened returns a channel that is closed when the event has happened.
func (e *event) happened() <-chan struct{} {
	e.mu.Lock()
	defer e.mu.Unlock()
	if e.done == nil {
		e.done = make(chan struct{})
		if e.over {
			close(e.done)
		}
	}
	return e.done
}

// enter returns the inflight of a key, and whether the caller leads it: a
// leader must call leave.
func (k *Keys[T]) enter(req *Request) (*inflight, bool) {
	id := req.id()
	k.mu.Lock()
	defer k.mu.Unlock()
	if f := k.flights[id]; f != nil {
		return f, false
	}
	f := &inflight{hash: req.Hash}
	k.flights[id] = f
	return f, true
}

// leave ends an inflight. It frees the key before it wakes the waiting
// requests, so that one of them can lead the next.
func (k *Keys[T]) leave(req *Request, f *inflight) {
	k.mu.Lock()
	delete(k.flights, req.id())
	k.mu.Unlock()
	switch {
	case f.taken:
		k.policy.ran()
	case f.reply.Replayed:
		k.policy.repeated()
	case !f.declined: // the store failed: each request tries by itself
		f.claimed.happen()
	}
	f.ended.happen()
}

// take reports that the inflight holds the key.
func (f *inflight) take(until time.Time) {
	f.until.Store(until.UnixNano())
	if !f.taken {
		f.taken = true
		f.claimed.happen()
	}
}

// decline reports that the inflight does not hold the key, and why.
func (f *inflight) decline(reply Reply, err error) {
	if !f.taken {
		f.declined, f.reply, f.err = true, reply, err
		f.claimed.happen()
	}
}

// left returns the remaining lease.
func (f *inflight) left() time.Duration { return time.Until(time.Unix(0, f.until.Load())) }

// follow waits for an inflight that another request leads. If again is set,
// there is no outcome to share.
func (e *invocation[T]) follow(ctx context.Context, f *inflight, until time.Time) (reply Reply, again bool, err error) {
	select {
	case <-f.claimed.happened():
	case <-ctx.Done():
		return Reply{}, false, context.Cause(ctx)
	}
	switch {
	case f.taken && f.hash != e.req.Hash:
		return Reply{}, false, e.conflict()
	case f.taken:
		return e.awaitEnd(ctx, f, until)
	case !f.declined || f.hash != e.req.Hash:
		return Reply{}, true, nil
	}
	return shared(f.reply), false, f.err
}

// awaitEnd waits for the end of a run, if the request has a WaitMax.
func (e *invocation[T]) awaitEnd(ctx context.Context, f *inflight, until time.Time) (reply Reply, again bool, err error) {
	left := time.Until(until)
	if e.req.WaitMax == 0 || left <= 0 {
		return Reply{}, false, e.inProgress(f.left())
	}
	timer := time.NewTimer(left)
	defer timer.Stop()
	select {
	case <-f.ended.happened():
		if f.answer != nil {
			return shared(Reply{Answer: *f.answer, Replayed: true}), false, nil
		}
		return Reply{}, true, nil
	case <-timer.C:
		return Reply{}, false, e.inProgress(f.left())
	case <-ctx.Done():
		return Reply{}, false, context.Cause(ctx)
	}
}

// shared returns a reply with a copy of the bytes.
func shared(r Reply) Reply {
	r.Body = slices.Clone(r.Body)
	return r
}
