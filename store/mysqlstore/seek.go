package mysqlstore

import (
	"bytes"
	"cmp"
	"context"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// aggregate receives the columns of an aggregate.
type aggregate struct{ tenant, kind, id []byte }

func (a *aggregate) decode() store.Aggregate {
	if len(a.id) == 0 {
		return store.Aggregate{}
	}
	return store.Aggregate{Tenant: string(a.tenant), Type: cmp.Or(string(a.kind), waybill.GlobalAggregate), ID: string(a.id)}
}

// Holds implements [driver.Seeker].
func (q *queue) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	if len(lanes) == 0 {
		return nil, nil
	}
	numbers := make([]string, len(lanes))
	for i, lane := range lanes {
		numbers[i] = strconv.Itoa(lane)
	}
	var holds []driver.Hold
	var h driver.Hold
	var id scanID
	var agg aggregate
	var by []byte
	err := each(ctx, q.db, fill(q.sql.holds, "{numbers}", strings.Join(numbers, ", ")), nil, func() {
		if h.Lane < 0 {
			by = bytes.Clone(agg.tenant)
			return
		}
		h.ID, h.Aggregate = waybill.ID(id), agg.decode()
		holds = append(holds, h)
	}, &h.Lane, &h.Seq, &id, &agg.tenant, &agg.kind, &agg.id, &h.Dead)
	if err == nil {
		err = q.readOn(by, slices.Values(lanes))
	}
	if err != nil {
		return nil, q.explain(err)
	}
	eventrow.Sort(holds, func(h *driver.Hold) store.Key { return h.Key })
	return holds, nil
}

// FetchAggregate implements [driver.Seeker]. It scans the whole range and skips
// rows of other aggregates. Unordered events have no aggregate to fetch.
func (q *queue) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	if agg.IsZero() {
		return q.clock(ctx)
	}
	keys := perLane(q.sql.followKeys, []driver.Cursor{from}, limit)
	p, err := q.page(ctx, fill(q.sql.follow, "{keys}", keys), []byte(agg.ID), []byte(agg.Type), []byte(agg.Tenant))
	eventrow.Sort(p.Rows, func(r *store.Row) store.Key { return r.Key })
	return p, err
}

// FetchPriority implements [driver.Seeker]. It reads keys first, from an index
// that covers all rows and has few columns, and then only the rows that do not
// wait for others.
func (q *queue) FetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	if len(from) == 0 || limit <= 0 {
		return q.clock(ctx)
	}
	seen, drawn, all, err := q.urgentKeys(ctx, from, eventrow.AheadReach*limit)
	if err != nil {
		return driver.Page{}, q.explain(err)
	}
	keys, _, err := eventrow.Ahead(from, seen, limit, func(c driver.Cursor, aggs []store.Aggregate) (map[store.Aggregate]int64, error) {
		return q.plain(ctx, c, aggs)
	})
	if err != nil {
		return driver.Page{}, q.explain(err)
	}
	p, err := q.Load(ctx, keys)
	if all {
		p.Plain = eventrow.Plain(from, seen, limit)
	}
	for _, c := range from {
		p.RowsScanned = max(p.RowsScanned, int(drawn-c.After))
	}
	return p, err
}

// urgentKeys returns the first rows with a priority of each lane, and the
// highest seq. all reports whether it found the first ones of every lane: the
// lanes share one limit, and many rows of one lane hide those of another.
func (q *queue) urgentKeys(ctx context.Context, from []driver.Cursor, limit int) (seen []driver.RowRef, drawn int64, all bool, err error) {
	first := from[0].After
	cursor := make(map[int]driver.Cursor, len(from))
	numbers := make([]string, len(from))
	for i, c := range from {
		first, numbers[i], cursor[c.Lane] = min(first, c.After), strconv.Itoa(c.Lane), c
	}
	var sight driver.RowRef
	var id scanID
	var agg aggregate
	count := make(map[int]int, len(from))
	query := fill(fill(fill(q.sql.urgentKeys, "{numbers}", strings.Join(numbers, ", ")),
		"{first}", strconv.FormatInt(first, 10)), "{limit}", strconv.Itoa(limit*len(from)))
	var by []byte
	err = each(ctx, q.db, query, nil, func() {
		if sight.Lane < 0 {
			drawn, by = sight.Seq, bytes.Clone(agg.tenant)
			return
		}
		sight.ID, sight.Aggregate = waybill.ID(id), agg.decode()
		seen = append(seen, sight)
	}, &sight.Lane, &sight.Seq, &id, &agg.tenant, &agg.kind, &agg.id)
	if err == nil {
		err = q.readOn(by, lanesOfCursors(from))
	}
	all = len(seen) < limit*len(from)
	eventrow.Sort(seen, func(sight *driver.RowRef) store.Key { return sight.Key })
	return slices.DeleteFunc(seen, func(sight driver.RowRef) bool {
		c := cursor[sight.Lane]
		if sight.Seq <= c.After || c.UpTo != 0 && sight.Seq > c.UpTo {
			return true
		}
		count[sight.Lane]++
		return count[sight.Lane] > limit
	}), drawn, all, err
}

// plain returns the seq of the first row without a priority, for each aggregate
// with one of these ids. The server sorts the ids as constants and scans the
// range once.
func (q *queue) plain(ctx context.Context, c driver.Cursor, aggs []store.Aggregate) (map[store.Aggregate]int64, error) {
	ids := make([]string, len(aggs))
	for i, agg := range aggs {
		ids[i] = "X'" + hex.EncodeToString([]byte(agg.ID)) + "'"
	}
	first := make(map[store.Aggregate]int64)
	var seq int64
	var agg aggregate
	query := q.sql.plainOn + fill(perLane(q.sql.plain, []driver.Cursor{c}, 0), "{ids}", strings.Join(ids, ", "))
	var by []byte
	err := each(ctx, q.db, query, nil, func() {
		if len(agg.id) == 0 {
			by = bytes.Clone(agg.tenant)
			return
		}
		// Without a type, an aggregate may appear under two names.
		if known, ok := first[agg.decode()]; !ok || seq < known {
			first[agg.decode()] = seq
		}
	}, &agg.tenant, &agg.kind, &agg.id, &seq)
	if err == nil {
		err = q.readOn(by, lanesOfCursors([]driver.Cursor{c}))
	}
	return first, err
}
