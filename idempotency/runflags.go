package idempotency

import (
	"context"
	"sync"
)

// note is what a handler says about its run. It travels in the handler's context.
type runFlags struct {
	mu        sync.Mutex
	ref       string
	effect    bool
	dontStore bool
	run       any // *attempt[T], of a run that has committed its claim
}

type noteKey struct{}

func noteFrom(ctx context.Context) *runFlags {
	n, _ := ctx.Value(noteKey{}).(*runFlags)
	return n
}

// with changes the note of ctx, if there is one.
func with(ctx context.Context, change func(n *runFlags)) {
	if n := noteFrom(ctx); n != nil {
		n.mu.Lock()
		defer n.mu.Unlock()
		change(n)
	}
}

// read returns what the handler has said so far.
func (n *runFlags) read() (ref string, effect, dontStore bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.ref, n.effect, n.dontStore
}

// restart forgets what was said in a transaction that is run again. What has happened outside stays.
func (n *runFlags) restart() {
	n.mu.Lock()
	defer n.mu.Unlock()
	n.ref, n.dontStore = "", false
}

// SetRef names what the run of ctx made, so that repeats get the name even if the answer cannot be kept: a public id, at most 255 bytes. A result
// that has a PublicID method needs none. Outside a run it does nothing.
func SetRef(ctx context.Context, ref string) {
	with(ctx, func(n *runFlags) { n.ref = ref })
}

// MarkEffect says that from now on something has happened outside that must not happen twice. If the run of ctx then fails, its key
// becomes uncertain: it is not run again until an operator decides. Outside a run it does nothing.
//
// It is kept in memory: of a process that dies after it nobody knows, and when the lease has run out a repeat runs again. What must survive
// that goes into phases ([Phase], [Call]).
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

// DontStore says that the answer of the run of ctx is not final: it goes to this caller only, and the key may be used again. A one-time code
// that was mistyped is such an answer. Outside a run it does nothing.
func DontStore(ctx context.Context) {
	with(ctx, func(n *runFlags) { n.dontStore = true })
}
