package memstore

import (
	"cmp"
	"context"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// tables is what a database would keep. Everything below mu is guarded by it.
type tables struct {
	hub    store.Hub
	nlanes int

	mu       sync.Mutex
	seq      int64
	outbox   map[waybill.ID]*store.Row
	ready    map[int][]*store.Row // lane → rows of outbox in the order of seq; settled ones are dropped lazily
	delayed  map[waybill.ID]*store.Row
	dead     map[waybill.ID]*store.Row
	history  map[waybill.ID]*store.Row
	dedup    map[dedupKey]waybill.ID
	reserved map[dedupKey]*txn
	writing  map[waybill.ID]*txn     // ids of events in open transactions
	lost     map[waybill.ID]struct{} // events of transactions whose commit was left uncertain
	gap      bool                    // events were delivered and left no history

	nodes map[waybill.ID]node
	lanes []lane
}

type dedupKey struct{ tenant, key string }

func keyOf(ev waybill.Event) dedupKey { return dedupKey{ev.TenantID, ev.DedupKey} }

type node struct {
	store.Node
	expires time.Time
}

type lane struct {
	owner  waybill.ID
	epoch  int64
	token  waybill.ID
	window int
	dirty  bool
}

func newTables(cfg Config) (*tables, error) {
	if cfg.Lanes == 0 {
		cfg.Lanes = usualLanes
	}
	if cfg.Lanes < 1 || cfg.Lanes > maxLanes {
		return nil, fmt.Errorf("memstore: Config.Lanes: %d is not between 1 and %d", cfg.Lanes, maxLanes)
	}
	return &tables{
		nlanes: cfg.Lanes, outbox: make(map[waybill.ID]*store.Row), ready: make(map[int][]*store.Row),
		delayed: make(map[waybill.ID]*store.Row), dead: make(map[waybill.ID]*store.Row),
		history: make(map[waybill.ID]*store.Row), dedup: make(map[dedupKey]waybill.ID),
		reserved: make(map[dedupKey]*txn), writing: make(map[waybill.ID]*txn), lost: make(map[waybill.ID]struct{}),
		nodes: make(map[waybill.ID]node), lanes: make([]lane, cfg.Lanes),
	}, nil
}

// Local implements [store.Local].
func (t *tables) Local() *store.Hub { return &t.hub }

// clock is the time as a database keeps it: in microseconds, UTC. Leases are measured by the process's own clock, which
// nobody can set back.
func clock() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func (t *tables) laneFor(ev waybill.Event) int {
	if ev.Ordered() {
		return store.LaneOf(ev.TenantID, ev.AggregateType, ev.AggregateID, t.nlanes)
	}
	return t.hub.AnyLane(t.nlanes)
}

// known reports whether any table has the id; mu is held.
func (t *tables) known(id waybill.ID) bool {
	return t.outbox[id] != nil || t.delayed[id] != nil || t.dead[id] != nil || t.history[id] != nil
}

// insert puts a committed event into the table it belongs to; mu is held.
func (t *tables) insert(e store.Entry) {
	now := clock()
	t.seq++
	row := &store.Row{
		Key: store.Key{Lane: e.Lane, Seq: t.seq, ID: e.Event.ID}, Event: e.Event.Complete(), CreatedAt: now,
	}
	switch {
	case e.Event.Delay > 0:
		row.DueAt = now.Add(e.Event.Delay).Truncate(time.Microsecond)
	case e.Event.AvailableAt.After(now):
		row.DueAt = e.Event.AvailableAt
	}
	row.Event.AvailableAt, row.Event.Delay = row.DueAt, 0
	delete(t.lost, row.ID)
	if !row.DueAt.IsZero() {
		t.delayed[row.ID] = row
		return
	}
	t.outbox[row.ID] = row
	t.ready[row.Lane] = append(t.ready[row.Lane], row)
}

// Committed implements [store.Resolver].
func (t *tables) Committed(_ context.Context, id waybill.ID) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.known(id) {
		return true, nil
	}
	if _, lost := t.lost[id]; lost {
		return false, fmt.Errorf("memstore: event %s: %w: so was its commit", id, waybill.ErrUncertain)
	}
	if t.gap {
		return false, fmt.Errorf("memstore: event %s: %w: delivered events leave no history", id, waybill.ErrUncertain)
	}
	return false, nil
}

// Fetch implements [store.Reader].
func (t *tables) Fetch(_ context.Context, from []store.Cursor, limit int) (store.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	page := store.Page{Now: clock()}
	for _, c := range from {
		for _, row := range t.scan(c, limit) {
			page.Rows = append(page.Rows, copyRow(row))
		}
	}
	return page, nil
}

// Sweep implements [store.Reader].
func (t *tables) Sweep(_ context.Context, from []store.Cursor, limit int) ([]store.Key, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var keys []store.Key
	for _, c := range from {
		for _, row := range t.scan(c, limit) {
			keys = append(keys, row.Key)
		}
	}
	return keys, nil
}

// scan returns the ready rows of a stretch; mu is held.
func (t *tables) scan(c store.Cursor, limit int) []*store.Row {
	rows := t.ready[c.Lane]
	for len(rows) > 0 && t.outbox[rows[0].ID] != rows[0] {
		rows = rows[1:]
	}
	t.ready[c.Lane] = rows
	start, _ := slices.BinarySearchFunc(rows, c.After+1, func(r *store.Row, seq int64) int { return cmp.Compare(r.Seq, seq) })
	var found []*store.Row
	for _, row := range rows[start:] {
		if len(found) == limit || c.UpTo > 0 && row.Seq > c.UpTo {
			break
		}
		if t.outbox[row.ID] == row {
			found = append(found, row)
		}
	}
	return found
}

// Load implements [store.Reader].
func (t *tables) Load(_ context.Context, keys []store.Key) (store.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	page := store.Page{Now: clock()}
	for _, k := range keys {
		if row := t.outbox[k.ID]; row != nil && row.Lane == k.Lane {
			page.Rows = append(page.Rows, copyRow(row))
		}
	}
	slices.SortFunc(page.Rows, func(a, b store.Row) int {
		return cmp.Or(cmp.Compare(a.Lane, b.Lane), cmp.Compare(a.Seq, b.Seq))
	})
	return page, nil
}

// Due implements [store.Reader].
func (t *tables) Due(_ context.Context, lanes []int, limit int) (store.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	page := store.Page{Now: clock()}
	for _, row := range t.delayed {
		if !row.DueAt.After(page.Now) && slices.Contains(lanes, row.Lane) {
			page.Rows = append(page.Rows, copyRow(row))
		}
	}
	slices.SortFunc(page.Rows, func(a, b store.Row) int {
		return cmp.Or(a.DueAt.Compare(b.DueAt), cmp.Compare(a.Seq, b.Seq))
	})
	page.Rows = page.Rows[:min(limit, len(page.Rows))]
	return page, nil
}

// copyRow returns a row that shares nothing with the table.
func copyRow(r *store.Row) store.Row {
	c := *r
	c.Event = r.Event.Complete()
	return c
}
