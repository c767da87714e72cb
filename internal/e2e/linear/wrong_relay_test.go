package linear

import (
	"context"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// wrongRelays are the memory store with one mistake each.
var wrongRelays = map[string]func(tracked *tracked) relayStore{
	"fence by a read before the write":     func(t *tracked) relayStore { return readFence{t} },
	"settlement without a fence":           func(t *tracked) relayStore { return noFence{t} },
	"settlement without the token":         func(t *tracked) relayStore { return noToken{t} },
	"settlement confirmed and lost":        func(t *tracked) relayStore { return &lostSettlement{tracked: t} },
	"settlement repeated later":            func(t *tracked) relayStore { return &lateSettlement{tracked: t} },
	"attempts counted by the store":        func(t *tracked) relayStore { return countedAttempts{t} },
	"replay number ignored":                func(t *tracked) relayStore { return noReplay{t} },
	"read from a cache":                    func(t *tracked) relayStore { return &cachedFind{tracked: t, last: make(map[waybill.ID][]store.Record)} },
	"epoch from a cache":                   func(t *tracked) relayStore { return &cachedEpoch{tracked: t, real: make(map[waybill.ID]driver.Lease)} },
	"acquisition that two nodes win":       func(t *tracked) relayStore { return twoWinners{t} },
	"acquisition before the lease expires": func(t *tracked) relayStore { return earlyTakeover{t} },
	"lane reported as clean":               func(t *tracked) relayStore { return alwaysClean{t} },
	"heartbeat that takes a lane back":     func(t *tracked) relayStore { return lateOwner{t} },
	"release of another owner's lane":      func(t *tracked) relayStore { return anyRelease{t} },
	"leave that keeps the lanes":           func(t *tracked) relayStore { return keptLanes{t} },
}

// yield lets other clients make calls. A store with a mistake calls it between
// its two steps.
func yield() {
	for range 30 {
		runtime.Gosched()
	}
}

// tracked is a store that knows the last lease of each lane. Its calls overlap
// more than those of the memory store.
type tracked struct {
	relayStore

	mu   sync.Mutex
	last map[int]driver.Lease
	past map[int][]waybill.ID // the owners of each lane
}

func track(db relayStore) *tracked {
	return &tracked{relayStore: db, last: make(map[int]driver.Lease), past: make(map[int][]waybill.ID)}
}

func (t *tracked) Acquire(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
	yield()
	t.mu.Lock()
	leases, err := t.relayStore.Acquire(ctx, n, lanes, window)
	for _, l := range leases {
		t.last[l.Lane] = l
		t.past[l.Lane] = append(t.past[l.Lane], n.ID)
	}
	t.mu.Unlock()
	yield()
	return leases, err
}

func (t *tracked) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	yield()
	defer yield()
	return t.relayStore.Settle(ctx, s)
}

// current returns the last leases of the lanes of some leases.
func (t *tracked) current(leases []driver.Lease, replace func(given, last driver.Lease) bool) []driver.Lease {
	t.mu.Lock()
	defer t.mu.Unlock()
	out := slices.Clone(leases)
	for i, l := range out {
		if last := t.last[l.Lane]; replace(l, last) {
			out[i] = last
		}
	}
	return out
}

func always(driver.Lease, driver.Lease) bool { return true }

// row returns an event's row.
func (t *tracked) row(ctx context.Context, id waybill.ID) store.Record {
	records, err := t.Find(ctx, id)
	if err != nil || len(records) == 0 {
		return store.Record{State: store.Delivered}
	}
	return records[0]
}

// readFence reads whether the leases are held, and then writes, under the lease
// that is the last one by then.
type readFence struct{ *tracked }

func (w readFence) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	read, err := w.relayStore.Settle(ctx, driver.Settlement{Leases: s.Leases})
	if err != nil {
		return read, err
	}
	for range 20 { // until a lease is lost
		yield()
		if !slices.Equal(s.Leases, w.current(s.Leases, always)) {
			break
		}
	}
	yield()
	s.Leases = slices.DeleteFunc(w.current(s.Leases, always), func(l driver.Lease) bool { return !slices.Contains(read.Held, l.Lane) })
	return w.relayStore.Settle(ctx, s)
}

type noFence struct{ *tracked }

func (w noFence) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	s.Leases = w.current(s.Leases, always)
	return w.tracked.Settle(ctx, s)
}

type noToken struct{ *tracked }

func (w noToken) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	s.Leases = w.current(s.Leases, func(given, last driver.Lease) bool { return given.Epoch == last.Epoch })
	return w.tracked.Settle(ctx, s)
}

// lostSettlement forgets one in eight settlements after it has answered.
type lostSettlement struct {
	*tracked
	calls atomic.Int64
}

func (w *lostSettlement) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	if w.calls.Add(1)%8 != 0 {
		return w.tracked.Settle(ctx, s)
	}
	out, err := w.relayStore.Settle(ctx, driver.Settlement{Leases: s.Leases})
	for i, res := range slices.Concat(s.Done, s.Retry, s.Dead) {
		row := w.row(ctx, res.ID)
		fits := i < len(s.Done) || row.Replay == res.Replay
		if row.State <= store.Delayed && fits && slices.Contains(out.Held, res.Lane) {
			out.Moved = append(out.Moved, res.ID)
		}
	}
	return out, err
}

// lateSettlement makes every settlement a second time, before the next one.
type lateSettlement struct {
	*tracked
	before driver.Settlement
}

func (w *lateSettlement) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	w.mu.Lock()
	before := w.before
	w.before = s
	w.mu.Unlock()
	if _, err := w.relayStore.Settle(ctx, before); err != nil {
		return driver.Settled{}, err
	}
	return w.tracked.Settle(ctx, s)
}

// countedAttempts adds one to the stored number of attempts: a settlement that
// is repeated because its answer was lost counts twice.
type countedAttempts struct{ *tracked }

func (w countedAttempts) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	s.Retry = slices.Clone(s.Retry)
	for i, res := range s.Retry {
		s.Retry[i].Attempts = w.row(ctx, res.ID).Attempts + 1
	}
	return w.tracked.Settle(ctx, s)
}

type noReplay struct{ *tracked }

func (w noReplay) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	s.Retry = slices.Clone(s.Retry)
	for i, res := range s.Retry {
		s.Retry[i].Replay = w.row(ctx, res.ID).Replay
	}
	return w.tracked.Settle(ctx, s)
}

// cachedFind answers every second read of an event from a cache.
type cachedFind struct {
	*tracked
	last map[waybill.ID][]store.Record
}

func (w *cachedFind) Find(ctx context.Context, id waybill.ID) ([]store.Record, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if records, ok := w.last[id]; ok {
		delete(w.last, id)
		return records, nil
	}
	records, err := w.relayStore.Find(ctx, id)
	w.last[id] = records
	return records, err
}

// cachedEpoch assigns the epoch after the last one that the same node got.
type cachedEpoch struct {
	*tracked
	real map[waybill.ID]driver.Lease // by token
	next map[waybill.ID]int64        // by node
}

func (w *cachedEpoch) Acquire(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
	leases, err := w.tracked.Acquire(ctx, n, lanes, window)
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.next == nil {
		w.next = make(map[waybill.ID]int64)
	}
	for i, l := range leases {
		w.real[l.Token] = l
		w.next[n.ID]++
		leases[i].Epoch = w.next[n.ID]
	}
	return leases, err
}

func (w *cachedEpoch) translate(leases []driver.Lease) []driver.Lease {
	w.mu.Lock()
	defer w.mu.Unlock()
	out := slices.Clone(leases)
	for i, l := range out {
		if known, ok := w.real[l.Token]; ok {
			out[i] = known
		}
	}
	return out
}

func (w *cachedEpoch) Settle(ctx context.Context, s driver.Settlement) (driver.Settled, error) {
	s.Leases = w.translate(s.Leases)
	return w.tracked.Settle(ctx, s)
}

func (w *cachedEpoch) Release(ctx context.Context, leases []driver.Lease, dirty bool) error {
	return w.tracked.Release(ctx, w.translate(leases), dirty)
}

// twoWinners reads which lanes are free, and then takes them: a node that finds
// a lane taken in between returns the other node's lease.
type twoWinners struct{ *tracked }

func (w twoWinners) Acquire(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
	stats, err := w.Stats(ctx)
	if err != nil {
		return nil, err
	}
	leases, err := w.tracked.Acquire(ctx, n, lanes, window)
	if err != nil {
		return nil, err
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for _, l := range stats.Lanes {
		got := slices.ContainsFunc(leases, func(lease driver.Lease) bool { return lease.Lane == l.Lane })
		if !l.Live && !got && slices.Contains(lanes, l.Lane) {
			leases = append(leases, w.last[l.Lane])
		}
	}
	return leases, nil
}

type earlyTakeover struct{ *tracked }

func (w earlyTakeover) Acquire(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
	var owned []driver.Lease
	for _, lane := range lanes {
		owned = append(owned, driver.Lease{Lane: lane})
	}
	if err := w.Release(ctx, w.current(owned, always), true); err != nil {
		return nil, err
	}
	return w.tracked.Acquire(ctx, n, lanes, window)
}

type alwaysClean struct{ *tracked }

func (w alwaysClean) Acquire(ctx context.Context, n store.Node, lanes []int, window int) ([]driver.Lease, error) {
	leases, err := w.tracked.Acquire(ctx, n, lanes, window)
	for i := range leases {
		leases[i].Unclean = false
	}
	return leases, err
}

// lateOwner gives a former owner its lanes back when it renews its lease.
type lateOwner struct{ *tracked }

func (w lateOwner) Heartbeat(ctx context.Context, n store.Node, lease time.Duration) (store.Membership, error) {
	m, err := w.tracked.Heartbeat(ctx, n, lease)
	if err != nil || lease < 0 {
		return m, err
	}
	for _, l := range m.Lanes {
		w.mu.Lock()
		former := l.Owner != n.ID && slices.Contains(w.past[l.Lane], n.ID)
		w.mu.Unlock()
		if former {
			if _, err := earlyTakeover(w).Acquire(ctx, n, []int{l.Lane}, 1); err != nil {
				return m, err
			}
		}
	}
	return m, nil
}

type anyRelease struct{ *tracked }

func (w anyRelease) Release(ctx context.Context, leases []driver.Lease, dirty bool) error {
	return w.tracked.Release(ctx, w.current(leases, always), dirty)
}

// keptLanes only ends the node's lease.
type keptLanes struct{ *tracked }

func (w keptLanes) Leave(ctx context.Context, n store.Node) error {
	_, err := w.Heartbeat(ctx, n, over)
	return err
}
