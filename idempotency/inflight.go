package idempotency

import (
	"context"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// flight is a request that this process is at. Others of the same key share what comes of it, and do not ask the store.
//
// It is in the map from when it is entered until it has ended. Whoever comes meanwhile waits for claimed, which is one round trip of the
// store away: only then is it known whether there is a run under the flight's hash, or a stored answer, or nothing at all. To answer
// before would be wrong both ways: "in progress" for an answer that is stored, "conflict" because of a request that is itself the wrong one.
type inflight struct {
	hash    Hash
	claimed event // the outcome of the claim is known
	ended   event // the request is over

	// These are set before claimed.
	taken, declined bool
	reply           Reply // what the store said, if it was declined: others may share it
	err             error

	until  atomic.Int64 // when the lease ends, in Unix nanoseconds
	answer *Answer      // what was stored; set before ended
}

// event happens once. It has a channel only if somebody waits for it, which for most requests nobody does.
type event struct {
	mu   sync.Mutex
	over bool
	done chan struct{}
}

// happen wakes who waits.
func (e *event) happen() {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.over = true
	if e.done != nil {
		close(e.done)
	}
}

// happened returns a channel that is closed when it has.
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

// enter returns the flight of a key, and whether the caller leads it: then he must leave it.
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

// leave ends a flight. Its key is free before anybody is woken, so that one of them can lead the next.
func (k *Keys[T]) leave(req *Request, f *inflight) {
	k.mu.Lock()
	delete(k.flights, req.id())
	k.mu.Unlock()
	switch {
	case f.taken:
		k.habit.ran()
	case f.reply.Replayed:
		k.habit.repeated()
	case !f.declined: // the store failed: each finds out himself
		f.claimed.happen()
	}
	f.ended.happen()
}

// take says that the flight has the key.
func (f *inflight) take(until time.Time) {
	f.until.Store(until.UnixNano())
	if !f.taken {
		f.taken = true
		f.claimed.happen()
	}
}

// decline says that it has not, and why.
func (f *inflight) decline(reply Reply, err error) {
	if !f.taken {
		f.declined, f.reply, f.err = true, reply, err
		f.claimed.happen()
	}
}

// left is how long its lease will be.
func (f *inflight) left() time.Duration { return time.Until(time.Unix(0, f.until.Load())) }

// follow waits for a flight that somebody else leads. With again, there is nothing to share.
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

// awaitEnd waits for the end of a run, if the request waits at all.
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

// shared returns a reply whose bytes are the caller's own.
func shared(r Reply) Reply {
	r.Body = slices.Clone(r.Body)
	return r
}
