package idempotency

import (
	"context"
	"sync/atomic"
)

// peekPolicy predicts from the latest requests whether the next one is a
// repeat. A peek before the claim makes a repeat as cheap as possible, and is
// wasted on a new key. A wasted peek costs about half of the additional cost of
// a failed claim, so peeks pay off if more than a third of the requests are
// repeats: hence one step up for a new key, and two steps down for a repeat.
// The counter starts at zero: the first requests of a process may be those that
// its predecessor did not answer.
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

// peek returns a stored answer, if the store can read one cheaply and the
// policy expects a repeat. Without a peek the claim finds the answer, at the
// cost of one or two round trips.
func (e *invocation[T]) peek(ctx context.Context) (reply Reply, stands bool, err error) {
	if p := e.k.peeker; p == nil || !p.PeekAlways() && !e.k.policy.expectsRepeat() {
		return Reply{}, false, nil
	}
	rec, stands, err := e.k.peeker.PeekKey(ctx, e.req.id())
	switch {
	case err != nil:
		return Reply{}, false, e.wrap(storeError("finding the key", err))
	case stands:
		reply, err = e.judge(&rec)
	}
	return reply, stands, err
}
