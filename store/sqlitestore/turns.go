package sqlitestore

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"
)

// errWaited is wrapped by the error of a writer whose turn did not come in time.
var errWaited = errors.New("sqlitestore: another transaction holds the write lock")

// turns is the queue in front of the one writer that SQLite has. Whoever is done hands over to the one who has waited longest.
// Without it writers would poll, and whoever happens to look at the right moment would win.
type turns struct {
	mu    sync.Mutex
	taken bool
	queue []chan struct{} // of those who wait, the first in front; closed when the turn is theirs
}

// take waits for the turn until ctx ends, and at most for patience: a transaction that waits for itself, because it was not
// handed its own context, must end with an error, not hang.
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

// give hands the turn to the next.
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

// giveUp leaves the queue. The turn may have come in the same moment: then it goes to the next.
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

// waiting returns how many wait.
func (t *turns) waiting() int {
	t.mu.Lock()
	defer t.mu.Unlock()
	return len(t.queue)
}

func waitedFor(patience time.Duration) error {
	return fmt.Errorf("%w for longer than %v (Config.BusyTimeout); is one open around this call?", errWaited, patience)
}
