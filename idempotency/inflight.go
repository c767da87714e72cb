package idempotency

// This file shares the outcome of one request with the concurrent requests of
// the same key in this process. It has no access to the store.

import (
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill/store"
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

// inflights are the requests that are in flight in this process.
type inflights struct {
	mu sync.Mutex
	by map[store.KeyID]*inflight
}

// enter returns the inflight of a key, and whether the caller leads it: a
// leader must call leave.
func (g *inflights) enter(id store.KeyID, hash Hash) (f *inflight, lead bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if f := g.by[id]; f != nil {
		return f, false
	}
	f = &inflight{hash: hash}
	g.by[id] = f
	return f, true
}

// leave ends an inflight. It frees the key before it wakes the waiting
// requests, so that one of them can lead the next.
func (g *inflights) leave(id store.KeyID, f *inflight) {
	g.mu.Lock()
	delete(g.by, id)
	g.mu.Unlock()
	if !f.taken && !f.declined { // the store failed: each request tries by itself
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
