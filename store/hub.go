package store

import (
	"math/rand/v2"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
)

// Hub is where the writers and relays of one process meet: a writer says what it has committed, a relay listens. Nothing
// depends on it for correctness: what was not heard is in the table.
//
// Its zero value is ready. A Hub must not be copied.
type Hub struct {
	mu             sync.RWMutex
	listeners      map[*listener]struct{}
	lanes          []int
	selfPolling    bool
	onRemoteCommit func()
}

type listener struct{ fn func(Commit) }

// Commit is what a writer has committed.
type Commit struct {
	// Entries are the events, in the order they were written; none for a bare wake-up.
	Entries []Entry
	// Checked says that every entry has its row. Where it is false, a rollback to a savepoint that nobody saw may have
	// taken some back: a listener must see the row before it acts on the entry.
	Checked bool
	// Begun is a time before which nobody can have seen the events: when their writer was about to ask for the commit.
	BeganAt time.Time
}

// Entry is a committed event and the lane its row is in. It is shared by all listeners: do not change it.
type Entry struct {
	Event waybill.Event
	Lane  int
}

// Listen calls fn for every commit from now on, on the writer's goroutine: fn must not block. After stop has returned, fn
// is not called any more.
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

// Listened reports whether anybody listens: a writer need not say what nobody hears.
func (h *Hub) HasListeners() bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	return len(h.listeners) > 0 || h.onRemoteCommit != nil
}

// Spare says that the only listener looks all the time in the lanes that it prefers: of a commit there it need not be told, which saves its writer and the
// listener more work than looking costs. Events whose time is to come are told of all the same, and everything is if there are other listeners. It ends
// with Spare(false), or when a listener stops; who goes on looks there once more afterwards.
func (h *Hub) SetSelfPolling(spared bool) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.selfPolling = spared
}

// Wants reports whether a writer has to publish an event that it has committed in a lane.
func (h *Hub) NeedsPublish(ev *waybill.Event, lane int) bool {
	h.mu.RLock()
	defer h.mu.RUnlock()
	if !h.selfPolling || len(h.listeners) != 1 || !slices.Contains(h.lanes, lane) {
		return true
	}
	return ev.Delay > 0 || !ev.AvailableAt.IsZero()
}

// Publish tells the listeners what has been committed. Writers call it after the commit, once per transaction.
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

// Beyond sets what is called, on the writer's goroutine, after a commit with events in lanes that no relay of this process
// owns: a store that can wake other processes does so. fn must not block.
func (h *Hub) OnRemoteCommit(fn func()) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.onRemoteCommit = fn
}

// elsewhere reports whether a commit may concern other processes; mu is held.
func (h *Hub) hasRemote(c Commit) bool {
	if len(c.Entries) == 0 {
		return true
	}
	return slices.ContainsFunc(c.Entries, func(e Entry) bool { return !slices.Contains(h.lanes, e.Lane) })
}

// Wake tells the listeners that something may have been committed.
func (h *Hub) Wake() {
	h.Publish(Commit{})
}

// SetLocalLanes says which lanes a relay of this process owns: unordered events may as well go there. The hub keeps its own
// copy.
func (h *Hub) SetLocalLanes(lanes []int) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.lanes = slices.Clone(lanes)
}

// AnyLane returns a lane for an event that may take any: one that this process owns, else a random one of the n.
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
