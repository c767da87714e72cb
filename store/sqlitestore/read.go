package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"math"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// onlyLane is the lane of every row.
const onlyLane = 0

// Fetch implements [driver.Reader].
func (q *queue) Fetch(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	page := driver.Page{Now: clock()}
	for _, c := range from {
		if c.Lane != onlyLane {
			continue
		}
		if err := q.read(ctx, &page, q.sql.fetch, []any{c.After, upTo(c), limit}, q.scanReady()); err != nil {
			return driver.Page{}, err
		}
	}
	return page, nil
}

// Sweep implements [driver.Reader].
func (q *queue) Sweep(ctx context.Context, from []driver.Cursor, limit int) ([]driver.RowRef, error) {
	var seen []driver.RowRef
	for _, c := range from {
		if c.Lane != onlyLane {
			continue
		}
		some, err := q.sight(ctx, q.sql.sweep, c.After, upTo(c), limit)
		if err != nil {
			return nil, err
		}
		seen = append(seen, some...)
	}
	return seen, nil
}

// sight reads keys and aggregates.
func (q *queue) sight(ctx context.Context, st *statement, args ...any) ([]driver.RowRef, error) {
	if err := q.store.ready(ctx, q.store.db); err != nil {
		return nil, err
	}
	var seen []driver.RowRef
	rows, err := q.store.query(ctx, st, args...)
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		sight := driver.RowRef{Key: store.Key{Lane: onlyLane}}
		var agg aggregate
		if err := rows.Scan(append([]any{&sight.Seq, (*scanID)(&sight.ID)}, agg.dest()...)...); err != nil {
			return err
		}
		sight.Aggregate, sight.Tenant = agg.decode(), agg.tenant.String
		seen = append(seen, sight)
		return nil
	})
	if err != nil {
		return nil, q.store.explain(err)
	}
	return seen, nil
}

// Load implements [driver.Reader].
func (q *queue) Load(ctx context.Context, keys []store.Key) (driver.Page, error) {
	page := driver.Page{Now: clock()}
	ids := make(map[int64]waybill.ID, len(keys))
	seqs := make([]int64, 0, len(keys))
	for _, k := range keys {
		if k.Lane == onlyLane {
			ids[k.Seq] = k.ID
			seqs = append(seqs, k.Seq)
		}
	}
	// The chunks are read one after the other, in the order of seq.
	slices.Sort(seqs)
	seqs = slices.Compact(seqs)
	err := lists(seqs, func(seq int64) any { return seq }, func(index int, args []any) error {
		return q.read(ctx, &page, q.sql.load[index], args, q.scanReady())
	})
	if err != nil {
		return driver.Page{}, err
	}
	page.Rows = slices.DeleteFunc(page.Rows, func(row store.Row) bool { return ids[row.Seq] != row.ID })
	return page, nil
}

// Due implements [driver.Reader].
func (q *queue) Due(ctx context.Context, lanes []int, limit int) (driver.Page, error) {
	page := driver.Page{Now: clock()}
	if !slices.Contains(lanes, onlyLane) {
		return page, nil
	}
	if err := q.read(ctx, &page, q.sql.due, []any{micros(page.Now), limit}, scanDelayed); err != nil {
		return driver.Page{}, err
	}
	// Events that are committed between the two reads are not missed. An event
	// that is due is as late as an event that is committed after both reads; an
	// event that is not due is seen here.
	var next sql.NullInt64
	rows, err := q.store.query(ctx, q.sql.nextDue, micros(page.Now))
	if _, err := scanOne(rows, err, &next); err != nil {
		return driver.Page{}, q.store.explain(err)
	}
	page.Next = timeOf(next)
	return page, nil
}

// clock returns the database's time, in the precision of stored times.
func clock() time.Time { return time.Now().UTC().Truncate(time.Microsecond) }

func upTo(c driver.Cursor) int64 {
	if c.UpTo == 0 {
		return math.MaxInt64
	}
	return c.UpTo
}

// timeOf returns a stored time; NULL is the zero time.
func timeOf(at sql.NullInt64) time.Time {
	if !at.Valid {
		return time.Time{}
	}
	return time.UnixMicro(at.Int64).UTC()
}

// scan returns the scan targets of a row, and the function that decodes it.
type scan func(record *eventrow.Record) (dest []any, decode func(now time.Time) store.Row)

// scanReady returns the scan of a ready row.
func (q *queue) scanReady() scan {
	if q.isBacklog() {
		return scanBacklog
	}
	return scanOutbox
}

// scanOutbox reads a row of outbox. A due time in the past counts as none.
func scanOutbox(record *eventrow.Record) (dest []any, decode func(now time.Time) store.Row) {
	return record.ReadyDest(), func(now time.Time) store.Row {
		row := record.Decode()
		if !row.DueAt.After(now) {
			row.DueAt, row.Event.AvailableAt = time.Time{}, time.Time{}
		}
		return row
	}
}

// scanBacklog reads a row of backlog.
func scanBacklog(record *eventrow.Record) (dest []any, decode func(now time.Time) store.Row) {
	final := new(bool)
	return append(record.DelayedDest(), final), func(time.Time) store.Row {
		row := record.Decode()
		row.Final = *final
		return row
	}
}

// scanDelayed reads a row of delayed.
func scanDelayed(record *eventrow.Record) (dest []any, decode func(now time.Time) store.Row) {
	return record.DelayedDest(), func(time.Time) store.Row { return record.Decode() }
}

// read appends the rows of a statement to page.
func (q *queue) read(ctx context.Context, page *driver.Page, st *statement, args []any, scan scan) error {
	if err := q.store.ready(ctx, q.store.db); err != nil {
		return err
	}
	var record eventrow.Record
	// dest points into record, which stays in place.
	dest, decode := scan(&record)
	rows, err := q.store.query(ctx, st, args...)
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		record.Reset()
		if err := rows.Scan(dest...); err != nil {
			return fmt.Errorf("row cannot be read: %w", err)
		}
		row := decode(page.Now)
		row.Lane -= q.base
		return page.Add(row)
	})
	if err != nil {
		return q.store.explain(err)
	}
	return nil
}
