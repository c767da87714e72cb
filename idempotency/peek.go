package idempotency

// This file decides whether a request reads its record before it claims the
// key.

import (
	"context"
	"sync/atomic"
)

// peekPolicy predicts from the latest requests whether the next one is a
// repeat. A peek saves a repeat about twice the time that it costs a new key,
// so the policy peeks while more than one in three requests is a repeat: a
// repeat lowers the counter by two, a new key raises it by one. The counter
// starts at zero, because the first requests of a process may be those that its
// predecessor did not answer.
type peekPolicy struct{ fresh atomic.Int32 }

const (
	// peekFresh is the count from which the next request is expected to be new.
	peekFresh = 16
	// peekMax is the maximum count: nine repeats in a row outweigh any number
	// of new keys.
	peekMax = 32
)

// Two concurrent updates may count as one; the policy is a heuristic.
func (h *peekPolicy) ran() {
	if n := h.fresh.Load(); n < peekMax {
		h.fresh.Store(n + 1)
	}
}

func (h *peekPolicy) repeated() {
	if n := h.fresh.Load(); n > 0 {
		h.fresh.Store(max(n-2, 0))
	}
}

func (h *peekPolicy) expectsRepeat() bool { return h.fresh.Load() < peekFresh }

// peek returns the outcome of a stored answer, or of a store that failed, if
// the store can read an answer cheaply and the policy expects a repeat. Without
// a peek the claim finds the answer, at the cost of one or two round trips.
func (e *invocation[T]) peek(ctx context.Context) (out outcome, known bool) {
	if p := e.k.peeker; p == nil || !p.PeekAlways() && !e.keys.policy.expectsRepeat() {
		return outcome{}, false
	}
	rec, there, err := e.k.peeker.PeekKey(ctx, e.req.id())
	switch {
	case err != nil:
		return outcome{err: e.wrap(storeError("finding the key", err))}, true
	case there:
		return e.judged(&rec), true
	}
	return outcome{}, false
}
