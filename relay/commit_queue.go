package relay

import (
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// hotQueue is where commits of this process wait for the engine. It is bounded by events, including those that the engine
// has taken and not delivered yet. What finds no room is not lost: its row is in the table.
type hotQueue struct {
	capacity int64
	signal   chan struct{}
	log      *slog.Logger
	observe  observe.Hooks

	depth  atomic.Int64
	lost   atomic.Int64 // since the last warning
	warned atomic.Int64 // when that was, in Unix nanoseconds

	mu      sync.Mutex
	closed  bool
	commits []store.Commit
	spare   []store.Commit // for use again
}

func newHotQueue(cfg Config) *hotQueue {
	return &hotQueue{capacity: int64(max(cfg.HotQueue, 0)), signal: make(chan struct{}, 1), log: cfg.Logger, observe: cfg.Observe}
}

// offer is called by writers, after their commit; it never blocks.
func (q *hotQueue) offer(c store.Commit) {
	n := int64(len(c.Entries))
	if room := q.capacity - q.depth.Add(n); room < 0 {
		over := min(-room, n)
		q.depth.Add(-over)
		c.Entries = c.Entries[:n-over]
		q.full(int(over))
	}
	short := len(c.Entries) < int(n)
	q.mu.Lock()
	if q.closed {
		q.mu.Unlock()
		q.cold(len(c.Entries), observe.DropStopped)
		return
	}
	first := len(q.commits) == 0
	if last := len(q.commits) - 1; len(c.Entries) > 0 || last < 0 || len(q.commits[last].Entries) > 0 {
		q.commits = append(q.commits, c) // one bare wake-up is as good as many
	}
	if short && len(c.Entries) > 0 {
		q.commits = append(q.commits, store.Commit{}) // the others' rows are there: let them be read
	}
	q.mu.Unlock()
	if !first {
		return // somebody has said so
	}
	select {
	case q.signal <- struct{}{}:
	default:
	}
}

// warnEvery is how often a full queue is worth a warning.
const warnEvery = 10 * time.Second

// full counts events that found no room.
func (q *hotQueue) full(n int) {
	q.dropped(n, observe.DropQueueFull)
	if q.capacity == 0 {
		return // there is no hot path: nothing to warn of
	}
	lost := q.lost.Add(int64(n))
	now, last := time.Now().UnixNano(), q.warned.Load()
	if now-last > int64(warnEvery) && q.warned.CompareAndSwap(last, now) {
		q.lost.Add(-lost)
		q.log.Warn("waybill: the hot queue is full; events are read from the table instead",
			slog.Int64("dropped", lost), slog.Int64("capacity", q.capacity))
	}
}

func (q *hotQueue) dropped(n int, why observe.Drop) {
	if q.observe.HotDropped != nil {
		q.observe.HotDropped(n, why)
	}
}

// take calls fn with each commit that has been offered.
func (q *hotQueue) take(fn func(*store.Commit)) {
	q.mu.Lock()
	commits := q.commits
	q.commits, q.spare = q.spare, nil
	q.mu.Unlock()
	for i := range commits {
		fn(&commits[i])
	}
	clear(commits)
	q.mu.Lock()
	q.spare = commits[:0]
	q.mu.Unlock()
}

// done gives room back.
func (q *hotQueue) done(n int) { q.depth.Add(-int64(n)) }

// cold gives the room back of events that take the other path.
func (q *hotQueue) cold(n int, why observe.Drop) {
	if n > 0 {
		q.done(n)
		q.dropped(n, why)
	}
}

// close refuses what comes from now on.
func (q *hotQueue) close() {
	q.mu.Lock()
	commits := q.commits
	q.closed, q.commits, q.spare = true, nil, nil
	q.mu.Unlock()
	for _, c := range commits {
		q.cold(len(c.Entries), observe.DropStopped)
	}
}

// spare says whether writers of this process shall say what they commit. While many events come, all lanes are read again and again anyway, and a word about
// each costs its writer and the engine more. What was committed until they are asked again is looked for.
func (e *engine) spare() {
	spares := e.plan.rate > calmRate
	if spares == e.selfPolling {
		return
	}
	e.selfPolling = spares
	e.db.Local().SetSelfPolling(spares)
	if spares {
		return
	}
	for _, l := range e.lanes.list {
		l.wake = true
	}
	e.past.miss(time.Now())
}

// past remembers which unordered events were read, delivered and settled before this process's own writer had said that it
// committed them: a row can be seen before the writer's goroutine runs again, and its word would deliver the event a second time,
// straight from memory. Two generations of half a minute are much longer than that takes; a pause of the whole process stops
// the relay as well. When more events pass than can be remembered, nothing is delivered straight from memory for a while.
type recentlyDelivered struct {
	recent, older map[waybill.ID]struct{}
	turn          time.Time
	full          int // generations that could not remember all
}

const (
	pastLength = 30 * time.Second
	pastMost   = 50_000
)

func (p *recentlyDelivered) add(id waybill.ID) {
	if now := time.Now(); p.recent == nil || now.After(p.turn) {
		p.older, p.recent = p.recent, make(map[waybill.ID]struct{})
		p.turn = now.Add(pastLength)
		p.full = max(p.full-1, 0)
	}
	if len(p.recent) >= pastMost {
		p.full = 2
		return
	}
	p.recent[id] = struct{}{}
}

// miss notes that events have passed that are not remembered.
func (p *recentlyDelivered) miss(now time.Time) {
	p.full = 2
	if p.turn.Before(now) {
		p.turn = now.Add(pastLength)
	}
}

func (p *recentlyDelivered) has(id waybill.ID) bool {
	if _, ok := p.recent[id]; ok {
		return true
	}
	_, ok := p.older[id]
	return ok
}

// complete reports whether all that should be remembered is.
func (p *recentlyDelivered) complete() bool {
	if p.full > 0 && time.Now().After(p.turn.Add(pastLength)) {
		p.full = 0
	}
	return p.full == 0
}
