package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// pageOf returns copies of records; mu is held.
func pageOf(rs []*record) (driver.Page, error) {
	size := 0
	for _, r := range rs {
		size += driver.RowSize(&r.Row)
	}
	if size > driver.MaxPageBytes && len(rs) > 1 {
		return driver.Page{}, driver.ErrPageTooLarge
	}
	page := driver.Page{Now: clock(), Rows: make([]store.Row, len(rs))}
	var piece []byte
	for i, r := range rs {
		page.Rows[i] = r.Row
		ev := &page.Rows[i].Event
		ev.Headers = maps.Clone(ev.Headers)
		n := len(ev.Payload)
		if n == 0 {
			continue
		}
		if cap(piece)-len(piece) < n {
			piece = make([]byte, 0, max(n, min(size, pieceSize)))
		}
		size -= n
		piece = append(piece, ev.Payload...)
		ev.Payload = piece[len(piece)-n : len(piece) : len(piece)]
	}
	return page, nil
}

// pieceSize is the number of payload bytes that share one allocation.
const pieceSize = 64 << 10

// copyRow returns a row that shares no memory with the table.
func copyRow(r *record) store.Row {
	page, _ := pageOf([]*record{r}) // one row is never too large
	return page.Rows[0]
}

// reads implements the roles that read rows.
type reads struct {
	mu  *sync.Mutex
	set func() *rowSet // under mu
}

// lock locks mu and returns the rows.
func (v reads) lock() *rowSet {
	v.mu.Lock()
	return v.set()
}

// scan reads a series of each cursor's lane.
func (s *rowSet) scan(from []driver.Cursor, limit int, of func(*queue) *series) []*record {
	var found []*record
	for _, c := range from {
		if s.has(c.Lane) {
			found = of(&s.queues[c.Lane]).stretch(found, c.After, c.UpTo, limit)
		}
	}
	return found
}

func ready(q *queue) *series { return &q.ready }

// Fetch implements [driver.Reader].
func (v reads) Fetch(_ context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	s := v.lock()
	defer v.mu.Unlock()
	return pageOf(s.scan(from, limit, ready))
}

// Sweep implements [driver.Reader].
func (v reads) Sweep(_ context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	s := v.lock()
	defer v.mu.Unlock()
	var seen []driver.RowRef
	for _, r := range s.scan(from, limit, ready) {
		seen = append(seen, driver.RowRef{Key: r.Key, Aggregate: driver.AggregateOf(&r.Event), Tenant: r.Event.TenantID})
	}
	return seen, nil
}

// FetchPriority implements [driver.Seeker].
func (v reads) FetchPriority(_ context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	s := v.lock()
	defer v.mu.Unlock()
	var seen []driver.RowRef
	for _, r := range s.scan(from, eventrow.AheadReach*max(limit, 0), func(q *queue) *series { return &q.urgent }) {
		seen = append(seen, driver.RowRef{Key: r.Key, Aggregate: driver.AggregateOf(&r.Event)})
	}
	keys, _, err := eventrow.Ahead(from, seen, limit, s.plain)
	if err != nil {
		return driver.Page{}, err
	}
	page, err := pageOf(s.load(keys))
	page.Plain = eventrow.Plain(from, seen, limit)
	return page, err
}

// plain returns the first row without a priority of each aggregate in a range.
func (s *rowSet) plain(c driver.Cursor, aggs []store.Aggregate) (map[store.Aggregate]int64, error) {
	first := make(map[store.Aggregate]int64, len(aggs))
	for _, agg := range aggs {
		for r := range s.follow[agg].between(c.After, c.UpTo) {
			if r.Event.Priority <= 0 {
				first[agg] = r.Seq
				break
			}
		}
	}
	return first, nil
}

// FetchAggregate implements [driver.Seeker].
func (v reads) FetchAggregate(_ context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	s := v.lock()
	defer v.mu.Unlock()
	group := s.follow[agg]
	if group == nil || len(group.rows) == 0 || group.rows[0].Lane != from.Lane {
		return pageOf(nil)
	}
	return pageOf(group.stretch(nil, from.After, from.UpTo, limit))
}

// Load implements [driver.Reader].
func (v reads) Load(_ context.Context, keys []store.Key) (driver.Page, error) {
	s := v.lock()
	defer v.mu.Unlock()
	return pageOf(s.load(keys))
}

// load returns ready records by key.
func (s *rowSet) load(keys []store.Key) []*record {
	var found []*record
	for _, k := range keys {
		if r := s.rows[k.ID]; r != nil && r.state == store.Ready && r.Lane == k.Lane {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, byLane)
	return slices.Compact(found)
}

func byLane(a, b *record) int { return cmp.Or(cmp.Compare(a.Lane, b.Lane), bySeq(a, b)) }

// Due implements [driver.Reader].
func (v reads) Due(_ context.Context, lanes []int, limit int) (driver.Page, error) {
	s := v.lock()
	defer v.mu.Unlock()
	now := clock()
	var found []*record
	var first time.Time
	for _, lane := range distinct(lanes) {
		if !s.has(lane) {
			continue
		}
		q := &s.queues[lane]
		if next := q.advance(now); first.IsZero() || !next.IsZero() && next.Before(first) {
			first = next
		}
		n := 0
		for r := range q.due.all {
			if n == limit {
				break
			}
			found = append(found, r)
			n++
		}
	}
	slices.SortFunc(found, byDue)
	page, err := pageOf(found[:min(max(limit, 0), len(found))])
	page.Now, page.Next = now, first
	return page, err
}

func distinct(lanes []int) []int {
	return slices.Compact(slices.Sorted(slices.Values(lanes)))
}

// Holds implements [driver.Seeker].
func (v reads) Holds(_ context.Context, lanes []int) ([]driver.Hold, error) {
	s := v.lock()
	defer v.mu.Unlock()
	wanted := make(map[int]bool, len(lanes))
	for _, lane := range lanes {
		wanted[lane] = true
	}
	var found []*record
	for _, r := range s.holding {
		if wanted[r.Lane] {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, byLane)
	var holds []driver.Hold
	for _, r := range found {
		holds = append(holds, driver.Hold{Key: r.Key, Aggregate: driver.AggregateOf(&r.Event), Dead: r.state == store.Dead})
	}
	return holds, nil
}
