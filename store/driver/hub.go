package driver

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
)

// Hub connects the writers and relays of one process: a writer publishes its
// commits, and a relay listens. Correctness does not depend on the Hub: events
// of a missed commit are in the table.
//
// The zero value is ready to use. A Hub must not be copied.
type Hub struct {
	mu             sync.RWMutex
	listeners      map[*listener]struct{}
	lanes          []int
	selfPolling    bool
	onRemoteCommit func()
}

type listener struct{ fn func(Commit) }

// Commit is a committed transaction of a writer.
type Commit struct {
	// Entries are the events, in the order of their writes; empty for a bare
	// wake-up.
	Entries []Entry
	// Checked means that every entry has its row. If false, an unseen rollback
	// to a savepoint may have removed some rows: a listener must read the row
	// before it acts on the entry.
	Checked bool
	// BeganAt is a time before the events became visible: the moment before
	// their writer requested the commit.
	BeganAt time.Time
}

// Entry is a committed event and the lane of its row. All listeners share it:
// do not change it.
type Entry struct {
	Event waybill.Event
	Lane  int
}

// Listen calls fn for every later commit, on the writer's goroutine: fn must
// not block. After stop has returned, fn is not called any more.
func (h *Hub) Listen(fn func(Commit)) (stop func()) {
	l := &listener{fn: fn}
	h.mu.Lock()
	defer h.mu.Unlock()
	if h.listeners == nil {
		h.listeners = make(map[*listener]struct{})
	}
	h.listeners[l] = struct{}{}
	return func() {
		h.mu.Lock()
		defer h.mu.Unlock()
		delete(h.listeners, l)
		h.selfPolling = false
	}
}

// HasListeners reports whether there is a listener: without one, a writer need
// not publish.
func (h *Hub) HasListeners() bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.listeners) > 0 || h.onRemoteCommit != nil
}

// SetSelfPolling announces, if on, that the only listener polls its local lanes
// continuously: commits in those lanes need not be published, which saves the
// writer and the listener more work than the polling costs. Events that are not
// due yet are still published, and so is every event while there are other
// listeners. Self-polling ends with SetSelfPolling(false) or when a listener
// stops; the relay must poll these lanes once more afterwards.
func (h *Hub) SetSelfPolling(on bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.selfPolling = on
}

// NeedsPublish reports whether a writer has to publish an event that it has
// committed in a lane.
func (h *Hub) NeedsPublish(ev *waybill.Event, lane int) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if !h.selfPolling || len(h.listeners) != 1 || !slices.Contains(h.lanes, lane) {
		return true
	}
	return ev.Delay > 0 || !ev.AvailableAt.IsZero()
}

// Publish sends a commit to the listeners. Writers call Publish after the
// commit, once per transaction.
func (h *Hub) Publish(c Commit) {
	h.mu.RLock()
	defer h.mu.RUnlock()
	for l := range h.listeners {
		l.fn(c)
	}
	if h.onRemoteCommit != nil && h.hasRemote(c) {
		h.onRemoteCommit()
	}
}

// OnRemoteCommit sets a function that is called on the writer's goroutine after
// a commit with events in lanes that no relay of this process owns: a store
// uses it to wake other processes. fn must not block.
func (h *Hub) OnRemoteCommit(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onRemoteCommit = fn
}

// hasRemote reports whether a commit may concern other processes; mu is held.
func (h *Hub) hasRemote(c Commit) bool {
	if len(c.Entries) == 0 {
		return true
	}
	return slices.ContainsFunc(c.Entries, func(e Entry) bool { return !slices.Contains(h.lanes, e.Lane) })
}

// Wake notifies the listeners that events may have been committed.
func (h *Hub) Wake() {
	h.Publish(Commit{})
}

// SetLocalLanes sets the lanes that a relay of this process owns: unordered
// events are written to these lanes. The hub copies the slice.
func (h *Hub) SetLocalLanes(lanes []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes = slices.Clone(lanes)
}

// AnyLane returns a lane for an unordered event: one that this process owns,
// otherwise a random one of the n lanes.
func (h *Hub) AnyLane(n int) int {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if len(h.lanes) > 0 {
		if lane := h.lanes[rand.IntN(len(h.lanes))]; lane < n {
			return lane
		}
	}
	return rand.IntN(max(n, 1))
}
