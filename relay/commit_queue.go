package relay

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store/driver"
)

// hotQueue holds commits of this process until the engine takes them. Its
// capacity is a number of events, and includes events that the engine has taken
// and not delivered yet. Events that find no room are not lost: their rows are
// in the table.
type hotQueue struct {
	capacity int64
	maxBytes int // of the commits that the engine has not taken; 0: no limit
	signal   chan struct{}
	log      *slog.Logger
	observe  observe.Hooks

	depth  atomic.Int64
	lost   atomic.Int64 // since the last warning
	warned atomic.Int64 // time of the last warning, in Unix nanoseconds

	mu      sync.Mutex
	closed  bool
	bytes   int
	commits []driver.Commit
	spare   []driver.Commit // the slice that take gave back, for reuse
}

func newHotQueue(cfg Config) *hotQueue {
	return &hotQueue{capacity: int64(max(cfg.HotQueue, 0)), maxBytes: max(cfg.MaxBytes, 0), signal: make(chan struct{}, 1), log: cfg.Logger, observe: cfg.Observe}
}

// offer queues a commit. Writers call it after their commit; it never blocks.
func (q *hotQueue) offer(c driver.Commit) {
	n := int64(len(c.Entries))
	if room := q.capacity - q.depth.Add(n); room < 0 {
		over := min(-room, n)
		q.depth.Add(-over)
		c.Entries = c.Entries[:n-over]
		q.full(int(over))
	}
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		q.cold(len(c.Entries), observe.DropStopped)
		return
	}
	over := q.admit(&c)
	short := len(c.Entries) < int(n)
	first := len(q.commits) == 0
	if last := len(q.commits) - 1; len(c.Entries) > 0 || last < 0 || len(q.commits[last].Entries) > 0 {
		q.commits = append(q.commits, c) // one bare wake-up is as good as many
	}
	if short && len(c.Entries) > 0 {
		// The rows of the other events are committed: wake the reads.
		q.commits = append(q.commits, driver.Commit{})
	}
	q.mu.Unlock()
	if over > 0 {
		q.done(over)
		q.full(over)
	}
	if !first {
		return // the engine has been signaled already
	}
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// admit removes the entries of a commit that are too large for the room, and
// returns their number; mu is held.
func (q *hotQueue) admit(c *driver.Commit) (over int) {
	if q.maxBytes == 0 {
		return 0
	}
	for i := range c.Entries {
		if q.bytes >= q.maxBytes {
			over = len(c.Entries) - i
			c.Entries = c.Entries[:i:i]
			return over
		}
		q.bytes += len(c.Entries[i].Event.Payload)
	}
	return 0
}

// warnEvery is the minimum interval between warnings about a full queue.
const warnEvery = 10 * time.Second

// full counts events that found no room.
func (q *hotQueue) full(n int) {
	q.dropped(n, observe.DropQueueFull)
	if q.capacity == 0 {
		return // the hot path is off: nothing to warn about
	}
	lost := q.lost.Add(int64(n))
	now, last := time.Now().UnixNano(), q.warned.Load()
	if now-last > int64(warnEvery) && q.warned.CompareAndSwap(last, now) {
		q.lost.Add(-lost)
		q.log.Warn("the hot queue is full; events are read from the table instead",
			slog.Int64(logkey.Dropped, lost), slog.Int64(logkey.Capacity, q.capacity))
	}
}

func (q *hotQueue) dropped(n int, why observe.Drop) {
	if q.observe.HotDropped != nil {
		q.observe.HotDropped(observe.HotDroppedInfo{Events: n, Reason: why})
	}
}

// take calls fn with the commits that have been offered.
func (q *hotQueue) take(fn func([]driver.Commit)) {
	q.mu.Lock()
	commits := q.commits
	q.commits, q.spare, q.bytes = q.spare, nil, 0
	q.mu.Unlock()
	fn(commits)
	clear(commits)
	q.mu.Lock()
	q.spare = commits[:0]
	q.mu.Unlock()
}

// waits reports whether a commit waits for the engine.
func (q *hotQueue) waits() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	return len(q.commits) > 0
}

// done frees the room of n events.
func (q *hotQueue) done(n int) { q.depth.Add(-int64(n)) }

// cold frees the room of events that take the cold path.
func (q *hotQueue) cold(n int, why observe.Drop) {
	if n > 0 {
		q.done(n)
		q.dropped(n, why)
	}
}

// close makes the queue reject commits from now on.
func (q *hotQueue) close() {
	q.mu.Lock()
	commits := q.commits
	q.closed, q.commits, q.spare = true, nil, nil
	q.mu.Unlock()
	for _, c := range commits {
		q.cold(len(c.Entries), observe.DropStopped)
	}
}
