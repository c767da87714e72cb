package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// errWaited is wrapped by the error of a writer whose turn did not come in
// time.
var errWaited = errors.New("sqlitestore: another transaction holds the write lock")

// turns is the queue in front of the one writer of SQLite. A writer that is
// done hands over to the writer that has waited longest. Without the queue,
// writers would poll, and the lock would go to the writer that happens to poll
// at the right moment.
type turns struct {
	mu    sync.Mutex
	taken bool
	// queue is the waiting writers, first in front; a channel is closed when
	// its turn comes.
	queue []chan struct{}
}

// take waits for the turn until ctx ends, and at most for patience: a
// transaction that waits for itself, because its own context was not passed on,
// must end with an error instead of hanging.
func (t *turns) take(ctx context.Context, patience time.Duration) error {
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	t.mu.Lock()
	if !t.taken {
		t.taken = true
		t.mu.Unlock()
		return nil
	}
	mine := make(chan struct{})
	t.queue = append(t.queue, mine)
	t.mu.Unlock()

	timer := time.NewTimer(patience)
	defer timer.Stop()
	select {
	case <-mine:
		return nil
	case <-ctx.Done():
		t.giveUp(mine)
		return context.Cause(ctx)
	case <-timer.C:
		t.giveUp(mine)
		return waitedFor(patience)
	}
}

// give hands the turn to the next writer.
func (t *turns) give() {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.queue) == 0 {
		t.taken = false
		return
	}
	close(t.queue[0])
	t.queue = slices.Delete(t.queue, 0, 1)
}

// giveUp leaves the queue. If the turn came at the same moment, giveUp hands it
// to the next writer.
func (t *turns) giveUp(mine chan struct{}) {
	t.mu.Lock()
	i := slices.Index(t.queue, mine)
	if i >= 0 {
		t.queue = slices.Delete(t.queue, i, i+1)
	}
	t.mu.Unlock()
	if i < 0 {
		t.give()
	}
}

// waiting returns the number of waiting writers.
func (t *turns) waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queue)
}

func waitedFor(patience time.Duration) error {
	return fmt.Errorf("%w for longer than %v (Config.BusyTimeout); is this call inside another transaction?", errWaited, patience)
}
