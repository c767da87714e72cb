package memstore

import (
	"context"
	"fmt"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// tables are the contents of the store. mu guards all fields below it.
type tables struct {
	hub driver.Hub

	mu  sync.Mutex
	seq int64
	rowSet
	reads
	destinations [driver.MaxDestinations + 1]*destination // by number; the first one is unused

	dedup      map[dedupKey]waybill.ID
	reserved   map[dedupKey]*txn
	writing    map[waybill.ID]*txn     // ids of events in open transactions
	lost       map[waybill.ID]struct{} // events of uncertain commits
	inbox      map[inboxKey]*received
	accepting  map[inboxKey]*txn // records that open transactions will create
	keyed      map[store.KeyID]*keyed
	keyHolders map[store.KeyID]*txn // open transactions that hold a key
	jobs       map[string]*job
	reaches    string // see driver.HistoryReaches
	audit      []driver.AuditRecord
	rollups    map[rollupKey]driver.RollupCounts

	sink  string // see driver.SinkGuard
	nodes map[waybill.ID]node
	lanes []lane
}

// never means that the history is never complete.
const never = "never"

type dedupKey struct{ tenant, key string }

func keyOf(ev waybill.Event) dedupKey { return dedupKey{ev.TenantID, ev.DedupKey} }

type node struct {
	store.Node
	expires time.Time
	report  string
}

type lane struct {
	owner  waybill.ID
	epoch  int64
	token  waybill.ID
	window int
	dirty  bool
	shared map[*txn]struct{} // open transactions that have checked the fence
}

func newTables(cfg Config) (*tables, error) {
	if cfg.Lanes == 0 {
		cfg.Lanes = defaultLanes
	}
	if cfg.Lanes < 1 || cfg.Lanes > maxLanes {
		return nil, fmt.Errorf("memstore: Config.Lanes: %d is not between 1 and %d", cfg.Lanes, maxLanes)
	}
	t := &tables{
		rowSet: newRowSet(cfg.Lanes),
		dedup:  make(map[dedupKey]waybill.ID), reserved: make(map[dedupKey]*txn),
		writing: make(map[waybill.ID]*txn), lost: make(map[waybill.ID]struct{}),
		inbox: make(map[inboxKey]*received), accepting: make(map[inboxKey]*txn),
		keyed: make(map[store.KeyID]*keyed), keyHolders: make(map[store.KeyID]*txn),
		jobs: make(map[string]*job), nodes: make(map[waybill.ID]node), lanes: make([]lane, cfg.Lanes),
		rollups: make(map[rollupKey]driver.RollupCounts),
	}
	t.reads = reads{mu: &t.mu, set: func() *rowSet { return &t.rowSet }}
	return t, nil
}

// Local implements [driver.Local].
func (t *tables) Local() *driver.Hub { return &t.hub }

// clock is the current time with the precision of a database: in microseconds,
// UTC. Leases are measured by the process's monotonic clock.
func clock() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func (t *tables) laneFor(ev waybill.Event) int {
	if ev.Ordered() {
		return driver.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, len(t.lanes))
	}
	return t.hub.AnyLane(len(t.lanes))
}

// insert adds a committed event to its table; mu is held.
func (t *tables) insert(e driver.Entry) {
	now := clock()
	t.seq++
	r := &record{Row: store.Row{
		Key: store.Key{Lane: e.Lane, Seq: t.seq, ID: e.Event.ID}, Event: eventfill.Defaults(e.Event), CreatedAt: now,
	}}
	switch {
	case e.Event.Delay > 0:
		r.DueAt = now.Add(e.Event.Delay).Truncate(time.Microsecond)
	case e.Event.AvailableAt.After(now):
		r.DueAt = e.Event.AvailableAt
	}
	r.Event.AvailableAt, r.Event.Delay = r.DueAt, 0
	if !r.DueAt.IsZero() {
		r.state = store.Delayed
	}
	delete(t.lost, r.ID)
	t.put(r)
}

// freeKey releases the dedup key of a settled event; mu is held.
func (t *tables) freeKey(r *record) {
	if k := keyOf(r.Event); r.Event.DedupKey != "" && t.dedup[k] == r.ID {
		delete(t.dedup, k)
	}
}

// Committed implements [driver.Resolver].
func (t *tables) Committed(_ context.Context, id waybill.ID) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.rows[id] != nil {
		return true, nil
	}
	if _, lost := t.lost[id]; lost {
		return false, fmt.Errorf("memstore: event %s: %w: the commit was uncertain", id, waybill.ErrUncertain)
	}
	if !driver.HistoryReaches(t.reaches, id) {
		return false, fmt.Errorf("memstore: event %s: %w: the history does not cover it", id, waybill.ErrUncertain)
	}
	return false, nil
}

// await returns when a transaction has ended; mu is held, but not during the
// wait.
func (t *tables) await(ctx context.Context, x *txn) error {
	t.mu.Unlock()
	defer t.mu.Lock()
	select {
	case <-x.ended:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
