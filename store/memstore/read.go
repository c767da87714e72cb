package memstore

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// pageOf returns copies of records; mu is held.
func pageOf(rs []*record) driver.Page {
	page := driver.Page{Now: clock(), Rows: make([]store.Row, len(rs))}
	size := 0
	for _, r := range rs {
		size += len(r.Event.Payload)
	}
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
	return page
}

// pieceSize is the number of payload bytes that share one allocation.
const pieceSize = 64 << 10

// copyRow returns a row that shares no memory with the table.
func copyRow(r *record) store.Row { return pageOf([]*record{r}).Rows[0] }

// scan reads a series of each cursor's lane; mu is held.
func (t *tables) scan(from []driver.Cursor, limit int, of func(*queue) *series) []*record {
	var found []*record
	for _, c := range from {
		if t.has(c.Lane) {
			found = of(&t.queues[c.Lane]).stretch(found, c.After, c.UpTo, limit)
		}
	}
	return found
}

func (t *tables) has(lane int) bool { return lane >= 0 && lane < len(t.lanes) }

func ready(q *queue) *series { return &q.ready }

// Fetch implements [driver.Reader].
func (t *tables) Fetch(_ context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return pageOf(t.scan(from, limit, ready)), nil
}

// Sweep implements [driver.Reader].
func (t *tables) Sweep(_ context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var seen []driver.RowRef
	for _, r := range t.scan(from, limit, ready) {
		seen = append(seen, driver.RowRef{Key: r.Key, Aggregate: driver.AggregateOf(&r.Event)})
	}
	return seen, nil
}

// FetchPriority implements [driver.Seeker].
func (t *tables) FetchPriority(_ context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var seen []driver.RowRef
	for _, r := range t.scan(from, eventrow.AheadReach*max(limit, 0), func(q *queue) *series { return &q.urgent }) {
		seen = append(seen, driver.RowRef{Key: r.Key, Aggregate: driver.AggregateOf(&r.Event)})
	}
	keys, _, err := eventrow.Ahead(from, seen, limit, t.plain)
	if err != nil {
		return driver.Page{}, err
	}
	return pageOf(t.load(keys)), nil
}

// plain returns the first row without a priority of each aggregate in a range;
// mu is held.
func (t *tables) plain(c driver.Cursor, aggs []store.Aggregate) (map[store.Aggregate]int64, error) {
	first := make(map[store.Aggregate]int64, len(aggs))
	for _, agg := range aggs {
		for r := range t.follow[agg].between(c.After, c.UpTo) {
			if r.Event.Priority <= 0 {
				first[agg] = r.Seq
				break
			}
		}
	}
	return first, nil
}

// FetchAggregate implements [driver.Seeker].
func (t *tables) FetchAggregate(_ context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	s := t.follow[agg]
	if s == nil || len(s.rows) == 0 || s.rows[0].Lane != from.Lane {
		return pageOf(nil), nil
	}
	return pageOf(s.stretch(nil, from.After, from.UpTo, limit)), nil
}

// Load implements [driver.Reader].
func (t *tables) Load(_ context.Context, keys []store.Key) (driver.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return pageOf(t.load(keys)), nil
}

// load returns ready records by key; mu is held.
func (t *tables) load(keys []store.Key) []*record {
	var found []*record
	for _, k := range keys {
		if r := t.rows[k.ID]; r != nil && r.state == store.Ready && r.Lane == k.Lane {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, byLane)
	return slices.Compact(found)
}

func byLane(a, b *record) int { return cmp.Or(cmp.Compare(a.Lane, b.Lane), bySeq(a, b)) }

// Due implements [driver.Reader].
func (t *tables) Due(_ context.Context, lanes []int, limit int) (driver.Page, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := clock()
	var found []*record
	var first time.Time
	for _, lane := range distinct(lanes) {
		if !t.has(lane) {
			continue
		}
		q := &t.queues[lane]
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
	page := pageOf(found[:min(max(limit, 0), len(found))])
	page.Now, page.Next = now, first
	return page, nil
}

func distinct(lanes []int) []int {
	return slices.Compact(slices.Sorted(slices.Values(lanes)))
}

// Holds implements [driver.Seeker].
func (t *tables) Holds(_ context.Context, lanes []int) ([]driver.Hold, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	wanted := make(map[int]bool, len(lanes))
	for _, lane := range lanes {
		wanted[lane] = true
	}
	var found []*record
	for _, r := range t.holding {
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
