package mysqlstore

import (
	"cmp"
	"context"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// page reads whole rows, with a statement whose first row is the clock row.
func (s *backend) page(ctx context.Context, query string, args ...any) (driver.Page, error) {
	var p driver.Page
	var rec eventrow.Record
	dest := rec.DelayedDest()
	err := each(ctx, s.db, query, args, func() {
		row := rec.Decode()
		rec.Reset()
		if row.Lane < 0 {
			p.Now = row.CreatedAt
			return
		}
		p.Rows = append(p.Rows, row)
	}, dest...)
	if err != nil {
		return driver.Page{}, s.explain(err)
	}
	return p, nil
}

// Fetch implements [driver.Reader].
func (s *backend) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	if len(from) == 0 {
		return s.clock(ctx)
	}
	p, err := s.page(ctx, fill(s.sql.fetch, "{keys}", perLane(s.sql.fetchKeys, from, limit)))
	eventrow.Sort(p.Rows, func(r *store.Row) store.Key { return r.Key })
	return p, err
}

// clock returns a page without rows, only with the time.
func (s *backend) clock(ctx context.Context) (driver.Page, error) {
	return s.page(ctx, clockRow)
}

// perLane returns one SELECT per cursor, joined by UNION ALL.
func perLane(statement string, from []driver.Cursor, limit int) string {
	selects := make([]string, len(from))
	for i, c := range from {
		where := "lane = " + strconv.Itoa(c.Lane) + " AND seq > " + strconv.FormatInt(c.After, 10)
		if c.UpTo != 0 {
			where += " AND seq <= " + strconv.FormatInt(c.UpTo, 10)
		}
		selects[i] = fill(fill(statement, "{where}", where), "{limit}", strconv.Itoa(max(limit, 0)))
	}
	return strings.Join(selects, " UNION ALL ")
}

// Sweep implements [driver.Reader].
func (s *backend) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	if len(from) == 0 {
		return nil, nil
	}
	var seen []driver.RowRef
	var sight driver.RowRef
	var id scanID
	var agg aggregate
	err := each(ctx, s.db, perLane(s.sql.sweep, from, limit), nil, func() {
		sight.ID, sight.Aggregate = waybill.ID(id), agg.decode()
		seen = append(seen, sight)
	}, &sight.Lane, &sight.Seq, &id, &agg.tenant, &agg.kind, &agg.id)
	if err != nil {
		return nil, s.explain(err)
	}
	eventrow.Sort(seen, func(sight *driver.RowRef) store.Key { return sight.Key })
	return seen, nil
}

// Load implements [driver.Reader].
func (s *backend) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	if len(keys) == 0 {
		return s.clock(ctx)
	}
	var p driver.Page
	for part := range parts(keys, maxIDs) {
		var list strings.Builder
		for _, k := range part {
			appendKey(&list, int64(k.Lane), k.Seq)
		}
		list.WriteByte(']')
		more, err := s.page(ctx, fill(s.sql.load, "{keys}", list.String()))
		if err != nil {
			return driver.Page{}, err
		}
		p.Rows = append(p.Rows, more.Rows...)
		if p.Now.IsZero() {
			p.Now = more.Now
		}
	}
	eventrow.Sort(p.Rows, func(r *store.Row) store.Key { return r.Key })
	return p, nil
}

// dueKey is an entry of the index by which delayed events become due.
type dueKey struct {
	at, seq int64
	id      waybill.ID
}

// Due implements [driver.Reader]. It first reads the keys of all lanes from the
// index, and then the rows that have been due longest: sorting whole rows
// across the lanes would carry all their payloads through a sort on disk.
func (s *backend) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	if len(lanes) == 0 {
		return s.clock(ctx)
	}
	keys, next, err := s.dueKeys(ctx, lanes, limit)
	if err != nil {
		return driver.Page{}, err
	}
	var p driver.Page
	for part := range parts(keys[:min(max(limit, 0), len(keys))], maxIDs) {
		ids := make([]waybill.ID, len(part))
		for i, k := range part {
			ids[i] = k.id
		}
		more, err := s.page(ctx, fill(s.sql.due, "{ids}", idList(ids)))
		if err != nil {
			return driver.Page{}, err
		}
		p.Rows, p.Now = append(p.Rows, more.Rows...), more.Now
	}
	if len(p.Rows) == 0 {
		if p, err = s.clock(ctx); err != nil {
			return driver.Page{}, err
		}
	}
	p.Next = next
	slices.SortFunc(p.Rows, func(a, b store.Row) int {
		return cmp.Or(a.DueAt.Compare(b.DueAt), cmp.Compare(a.Seq, b.Seq))
	})
	return p, nil
}

// dueKeys returns the keys of due events, the longest due first, and the due
// time of the next event.
func (s *backend) dueKeys(ctx context.Context, lanes []int, limit int) (keys []dueKey, next time.Time, err error) {
	selects := make([]string, len(lanes))
	for i, lane := range lanes {
		selects[i] = fill(fill(s.sql.dueKeys, "{number}", strconv.Itoa(lane)), "{limit}", strconv.Itoa(max(limit, 0)))
	}
	var k dueKey
	var due bool
	err = each(ctx, s.db, strings.Join(selects, "\nUNION ALL "), nil, func() {
		if due {
			keys = append(keys, k)
		} else if at := time.UnixMicro(k.at).UTC(); next.IsZero() || at.Before(next) {
			next = at
		}
	}, &k.at, &k.seq, (*scanID)(&k.id), &due)
	if err != nil {
		return nil, next, s.explain(err)
	}
	slices.SortFunc(keys, func(a, b dueKey) int { return cmp.Or(cmp.Compare(a.at, b.at), cmp.Compare(a.seq, b.seq)) })
	return keys, next, nil
}
