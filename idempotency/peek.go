package idempotency

import (
	"context"
	"sync/atomic"
)

// habit guesses from the latest requests whether the next one is a repeat. A look before the claim makes a repeat as cheap as it can be, and is
// wasted on a new key. What a wasted look costs is about half of what a claim that fails costs beyond a look, so looks pay when more than
// every third request is a repeat: hence one step up for a new key, and two down for a repeat. It starts at the bottom: what a process
// is asked first may be what the one before it did not answer.
type peekPolicy struct{ fresh atomic.Int32 }

const (
	// habitFresh is from where on the next request is expected to be new.
	habitFresh = 16
	// habitMost is as far as the past counts: nine repeats in a row outweigh any number of new keys.
	habitMost = 32
)

// Two that come at the same moment may count as one; it is a guess.
func (h *peekPolicy) ran() {
	if n := h.fresh.Load(); n < habitMost {
		h.fresh.Store(n + 1)
	}
}

func (h *peekPolicy) repeated() {
	if n := h.fresh.Load(); n > 0 {
		h.fresh.Store(max(n-2, 0))
	}
}

func (h *peekPolicy) expectsRepeat() bool { return h.fresh.Load() < habitFresh }

// peek answers from what is stored already, where the store can tell at little cost and it is worth a look. Without it, it is the claim that finds
// the answer, at the cost of a round trip or two.
func (e *invocation[T]) peek(ctx context.Context) (reply Reply, stands bool, err error) {
	if p := e.k.peeker; p == nil || !p.PeekAlways() && !e.k.habit.expectsRepeat() {
		return Reply{}, false, nil
	}
	rec, stands, err := e.k.peeker.PeekKey(ctx, e.req.id())
	switch {
	case err != nil:
		return Reply{}, false, e.wrap(storeError("looking", err))
	case stands:
		reply, err = e.judge(&rec)
	}
	return reply, stands, err
}
