package mysqlstore

import (
	"bytes"
	"cmp"
	"context"
	"iter"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// page reads whole rows, with a statement whose first row is the clock row. It
// refuses rows of another primary than that of the last heartbeat.
func (q *queue) page(ctx context.Context, query string, args ...any) (driver.Page, error) {
	var p driver.Page
	var rec eventrow.Record
	var at standing
	final := false
	dest := q.rowDest(&rec, &final)
	err := eachUntil(ctx, q.db, query, args, func() error {
		row := rec.Decode()
		row.Final = final
		rec.Reset()
		if row.Lane < 0 {
			p.Now = row.CreatedAt
			return at.scan(row.LastError)
		}
		return p.Add(row)
	}, dest...)
	if err == nil {
		err = q.primaries.check(at, lanesOfRows(p.Rows))
	}
	if err != nil {
		return driver.Page{}, q.explain(err)
	}
	return p, nil
}

// readOn checks the standing of the server that has answered a read of lanes.
func (q *queue) readOn(by []byte, lanes iter.Seq[int]) error {
	var at standing
	if err := at.scan(string(by)); err != nil {
		return err
	}
	return q.primaries.check(at, lanes)
}

// lanesOfCursors are the lanes of cursors.
func lanesOfCursors(from []driver.Cursor) iter.Seq[int] {
	return func(yield func(int) bool) {
		for _, cur := range from {
			if !yield(cur.Lane) {
				return
			}
		}
	}
}

// addPage adds the rows of another page.
func addPage(p *driver.Page, more driver.Page) error {
	for _, row := range more.Rows {
		if err := p.Add(row); err != nil {
			return err
		}
	}
	return nil
}

// Fetch implements [driver.Reader]. The server needs as long to plan one SELECT
// per lane as to read dozens of rows. While few rows are ready, one SELECT
// therefore reads all ranges: fewer rows than the limit are all that exist.
func (q *queue) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	if len(from) == 0 {
		return q.clock(ctx)
	}
	read := func(pages string) (driver.Page, error) {
		p, err := q.page(ctx, fill(q.sql.fetch, "{pages}", pages))
		eventrow.Sort(p.Rows, func(r *store.Row) store.Key { return r.Key })
		return p, err
	}
	if len(from) > 1 && !q.deep.Load() {
		if p, err := read(overall(q.sql.fetchPage, from, limit)); err != nil || len(p.Rows) < limit {
			return p, err
		}
	}
	p, err := read(perLane(q.sql.fetchPage, from, limit))
	if err == nil && len(from) > 1 {
		q.deep.Store(len(p.Rows) >= limit)
	}
	return p, err
}

// clock returns a page without rows, only with the time.
func (q *queue) clock(ctx context.Context) (driver.Page, error) {
	return q.page(ctx, q.sql.clock)
}

// perLane returns one SELECT per cursor, joined by UNION ALL.
func perLane(statement string, from []driver.Cursor, limit int) string {
	selects := make([]string, len(from))
	for i, c := range from {
		selects[i] = overall(statement, []driver.Cursor{c}, limit)
	}
	return strings.Join(selects, " UNION ALL ")
}

// overall returns one SELECT for all cursors together, in the order of the
// primary key.
func overall(statement string, from []driver.Cursor, limit int) string {
	ranges := make([]string, len(from))
	for i, c := range from {
		ranges[i] = "lane = " + strconv.Itoa(c.Lane) + " AND seq > " + strconv.FormatInt(c.After, 10)
		if c.UpTo != 0 {
			ranges[i] += " AND seq <= " + strconv.FormatInt(c.UpTo, 10)
		}
	}
	return fill(fill(statement, "{where}", strings.Join(ranges, " OR ")), "{limit}", strconv.Itoa(max(limit, 0)))
}

// Sweep implements [driver.Reader].
func (q *queue) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	if len(from) == 0 {
		return nil, nil
	}
	var seen []driver.RowRef
	var sight driver.RowRef
	var id scanID
	var agg aggregate
	var by []byte
	read := func(query string) error {
		seen = nil
		return each(ctx, q.db, q.sql.sweepOn+query, nil, func() {
			if sight.Lane < 0 {
				by = bytes.Clone(agg.tenant)
				return
			}
			sight.ID, sight.Aggregate, sight.Tenant = waybill.ID(id), agg.decode(), string(agg.tenant)
			seen = append(seen, sight)
		}, &sight.Lane, &sight.Seq, &id, &agg.tenant, &agg.kind, &agg.id)
	}
	// As in Fetch: fewer rows than the limit are all that exist.
	err := read(overall(q.sql.sweep, from, limit))
	if err == nil && len(from) > 1 && len(seen) >= limit {
		err = read(perLane(q.sql.sweep, from, limit))
	}
	if err == nil {
		err = q.readOn(by, lanesOfCursors(from))
	}
	if err != nil {
		return nil, q.explain(err)
	}
	eventrow.Sort(seen, func(sight *driver.RowRef) store.Key { return sight.Key })
	return seen, nil
}

// Load implements [driver.Reader].
func (q *queue) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	if len(keys) == 0 {
		return q.clock(ctx)
	}
	var p driver.Page
	for part := range parts(keys, maxIDs) {
		var list strings.Builder
		for _, k := range part {
			appendKey(&list, int64(k.Lane), k.Seq)
		}
		list.WriteByte(']')
		more, err := q.page(ctx, fill(q.sql.load, "{keys}", list.String()))
		if err == nil {
			err = addPage(&p, more)
		}
		if err != nil {
			return driver.Page{}, err
		}
		if p.Now.IsZero() {
			p.Now = more.Now
		}
	}
	eventrow.Sort(p.Rows, func(r *store.Row) store.Key { return r.Key })
	return p, nil
}

// The kinds of rows that a read of due keys returns.
const (
	keyLater = 0 // an event that is not due
	keyDue   = 1 // a due event
	keyClock = 2 // the current time
)

// dueKey is an entry of the index by which delayed events become due.
type dueKey struct {
	at, seq int64
	id      waybill.ID
}

// Due implements [driver.Reader]. It first reads the keys of all lanes from the
// index, and then the rows that have been due longest: sorting whole rows
// across the lanes would carry all their payloads through a sort on disk. Most
// of the time few events are delayed: one SELECT reads all their keys, without
// one per lane.
func (q *queue) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	if len(lanes) == 0 {
		return q.clock(ctx)
	}
	keys, p, err := q.dueKeys(ctx, lanes, limit)
	if err != nil {
		return driver.Page{}, err
	}
	for part := range parts(keys[:min(max(limit, 0), len(keys))], maxIDs) {
		ids := make([]waybill.ID, len(part))
		for i, k := range part {
			ids[i] = k.id
		}
		more, err := q.page(ctx, fill(q.sql.due, "{ids}", idList(ids)))
		if err == nil {
			err = addPage(&p, more)
		}
		if err != nil {
			return driver.Page{}, err
		}
		p.Now = more.Now
	}
	slices.SortFunc(p.Rows, func(a, b store.Row) int {
		return cmp.Or(a.DueAt.Compare(b.DueAt), cmp.Compare(a.Seq, b.Seq))
	})
	return p, nil
}

// fewDelayed is the number of delayed events up to which Due reads the keys of
// all of them.
const fewDelayed = 64

// dueKeys returns the keys of due events, the longest due first, and a page
// without rows that has the times.
func (q *queue) dueKeys(ctx context.Context, lanes []int, limit int) (keys []dueKey, p driver.Page, err error) {
	numbers, selects := make([]string, len(lanes)), make([]string, len(lanes))
	for i, lane := range lanes {
		numbers[i] = strconv.Itoa(lane)
		selects[i] = fill(fill(q.sql.dueKeys, "{number}", numbers[i]), "{limit}", strconv.Itoa(max(limit, 0)))
	}
	var k dueKey
	var kind, delayed int
	var by, text []byte
	read := func(query string) error {
		keys, p, delayed = nil, driver.Page{}, 0
		return each(ctx, q.db, query, nil, func() {
			at := time.UnixMicro(k.at).UTC()
			switch kind {
			case keyClock:
				p.Now, by = at, bytes.Clone(text)
				return
			case keyDue:
				keys = append(keys, k)
			case keyLater:
				if p.Next.IsZero() || at.Before(p.Next) {
					p.Next = at
				}
			}
			delayed++
		}, &k.at, &k.seq, (*scanID)(&k.id), &kind, &text)
	}
	err = read(q.sql.dueClock + fill(q.sql.fewDelayed, "{numbers}", strings.Join(numbers, ", ")))
	if err == nil && delayed > fewDelayed {
		err = read(q.sql.dueClock + strings.Join(selects, "\nUNION ALL "))
	}
	if err == nil {
		err = q.readOn(by, slices.Values(lanes))
	}
	if err != nil {
		return nil, driver.Page{}, q.explain(err)
	}
	slices.SortFunc(keys, func(a, b dueKey) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
	return keys, p, nil
}
