package idempotency

// This file holds the flags that a function sets for its own run through its
// context.

import (
	"context"
	"sync"
)

// runFlags holds the settings that a handler makes for its run. It is a value
// of the handler's context.
type runFlags struct {
	mu sync.Mutex
	runSettings
	run any // *attempt[T], if the run has committed its claim
}

// runSettings are the settings of a run: its reference, whether it had an
// effect that must not happen twice, and whether its answer is not final.
type runSettings struct {
	ref       string
	effect    bool
	dontStore bool
}

type noteKey struct{}

func noteFrom(ctx context.Context) *runFlags {
	n, _ := ctx.Value(noteKey{}).(*runFlags)
	return n
}

// with changes the runFlags of ctx, if there are any.
func with(ctx context.Context, change func(n *runFlags)) {
	if n := noteFrom(ctx); n != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		change(n)
	}
}

// read returns the current settings.
func (n *runFlags) read() runSettings {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.runSettings
}

// restart resets the settings made in a transaction that is run again. Effects
// outside the database stay marked.
func (n *runFlags) restart() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ref, n.dontStore = "", false
}

// SetRef sets the reference of the run of ctx, such as a public id, at most 255
// bytes. Repeats get the reference even if the answer cannot be stored. A
// result with a PublicID method does not need it. Outside a run it does
// nothing.
func SetRef(ctx context.Context, ref string) {
	with(ctx, func(n *runFlags) { n.ref = ref })
}

// MarkEffect reports an effect outside the database that must not happen twice.
// If the run of ctx then fails, its key becomes uncertain: it does not run
// again until an operator resolves it. Outside a run it does nothing.
//
// The mark is kept in memory: if the process dies, the mark is lost, and a
// repeat runs again after the lease has expired. Effects that must survive a
// crash belong in phases ([Phase], [Call]).
func MarkEffect(ctx context.Context) {
	if n := noteFrom(ctx); n != nil {
		n.mark()
	}
}

func (n *runFlags) mark() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.effect = true
}

// DontStore marks the answer of the run of ctx as not final: only this caller
// gets it, and the key may be used again. The answer to a mistyped one-time
// code is an example. Outside a run it does nothing.
func DontStore(ctx context.Context) {
	with(ctx, func(n *runFlags) { n.dontStore = true })
}
