package inbox

import (
	"context"
	"sync"
)

// turns keeps attempts at a suspect and at other events from being counted at
// the same time. An attempt that is recorded beforehand stays counted when the
// process dies, so an attempt that dies together with a killer is counted with
// it. Any number of ordinary attempts may be in flight, or one suspect.
//
// An event that has killed no process yet is not a suspect, and the attempts in
// flight during its first crash may be counted with it, once. From then on
// their records are in processing, which makes them suspects too.
type turns struct {
	gate chan struct{} // its holder may begin; a suspect holds it throughout

	mu     sync.Mutex
	shared int           // ordinary attempts in flight
	idle   chan struct{} // closed when shared drops to 0, for a waiting suspect
}

func newTurns() *turns { return &turns{gate: make(chan struct{}, 1)} }

// turnKey marks the context of an attempt that has its turn. A handler without
// a transaction may have the same event applied by another group, which must
// not wait for its caller.
type turnKey struct{}

// alone waits until no other counted attempt is in flight, in any group, and
// lets none begin until release is called.
func (t *turns) alone(ctx context.Context) (_ context.Context, release func(), err error) {
	if ctx.Value(turnKey{}) == t {
		return ctx, func() {}, nil
	}
	if err := t.enter(ctx); err != nil {
		return ctx, nil, err
	}
	t.mu.Lock()
	var idle chan struct{}
	if t.shared > 0 {
		idle = make(chan struct{})
		t.idle = idle
	}
	t.mu.Unlock()
	if idle != nil {
		select {
		case <-idle:
		case <-ctx.Done():
			t.mu.Lock()
			t.idle = nil
			t.mu.Unlock()
			<-t.gate
			return ctx, nil, context.Cause(ctx)
		}
	}
	return context.WithValue(ctx, turnKey{}, t), func() { <-t.gate }, nil
}

// among waits until no suspect is being handled or waiting.
func (t *turns) among(ctx context.Context) (_ context.Context, release func(), err error) {
	if ctx.Value(turnKey{}) == t {
		return ctx, func() {}, nil
	}
	if err := t.enter(ctx); err != nil {
		return ctx, nil, err
	}
	t.mu.Lock()
	t.shared++
	t.mu.Unlock()
	<-t.gate
	return context.WithValue(ctx, turnKey{}, t), t.leave, nil
}

func (t *turns) enter(ctx context.Context) error {
	select {
	case t.gate <- struct{}{}:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}

// leave ends an ordinary attempt.
func (t *turns) leave() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.shared--; t.shared == 0 && t.idle != nil {
		close(t.idle)
		t.idle = nil
	}
}
