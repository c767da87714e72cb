package sqlitestore

import (
	"cmp"
	"context"
	"database/sql"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// shownType is the aggregate type that a read of a row returns.
const shownType = `ifnull(nullif(aggregate_type, ''), '` + waybill.GlobalAggregate + `')`

// aggregate receives the columns of an aggregate.
type aggregate struct{ tenant, kind, id sql.NullString }

// dest returns the scan targets, in the order of aggregateColumns.
func (a *aggregate) dest() []any { return []any{&a.tenant, &a.kind, &a.id} }

func (a *aggregate) decode() store.Aggregate {
	if a.id.String == "" {
		return store.Aggregate{}
	}
	return store.Aggregate{Tenant: a.tenant.String, Type: cmp.Or(a.kind.String, waybill.GlobalAggregate), ID: a.id.String}
}

// Holds implements [driver.Seeker].
func (q *queue) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	if err := q.store.ready(ctx, q.store.db); err != nil {
		return nil, err
	}
	if !slices.Contains(lanes, onlyLane) {
		return nil, nil
	}
	var holds []driver.Hold
	rows, err := q.store.query(ctx, q.sql.holds)
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		hold := driver.Hold{Key: store.Key{Lane: onlyLane}}
		var agg aggregate
		if err := rows.Scan(append(append([]any{&hold.Seq, (*scanID)(&hold.ID)}, agg.dest()...), &hold.Dead)...); err != nil {
			return err
		}
		hold.Aggregate = agg.decode()
		holds = append(holds, hold)
		return nil
	})
	if err != nil {
		return nil, q.store.explain(err)
	}
	slices.SortFunc(holds, func(a, b driver.Hold) int { return cmp.Compare(a.Seq, b.Seq) })
	return holds, nil
}

// FetchAggregate implements [driver.Seeker]. It scans the whole range and skips
// rows of other aggregates. Unordered events have no aggregate to fetch.
func (q *queue) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	page := driver.Page{Now: clock()}
	if from.Lane != onlyLane || agg.IsZero() {
		return page, nil
	}
	args := []any{from.After, upTo(from), agg.ID, agg.Type, agg.Tenant, max(limit, 0)}
	if err := q.read(ctx, &page, q.sql.follow, args, q.scanReady()); err != nil {
		return driver.Page{}, err
	}
	return page, nil
}

// FetchPriority implements [driver.Seeker]. It finds the keys first, and then
// reads only the rows that do not wait for other rows.
func (q *queue) FetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	page := driver.Page{Now: clock()}
	for _, c := range from {
		if c.Lane != onlyLane {
			continue
		}
		seen, err := q.sight(ctx, q.sql.urgent, c.After, upTo(c), eventrow.AheadReach*max(limit, 0))
		if err != nil {
			return driver.Page{}, err
		}
		keys, looked, err := eventrow.Ahead([]driver.Cursor{c}, seen, limit, func(c driver.Cursor, aggs []store.Aggregate) (map[store.Aggregate]int64, error) {
			return q.plain(ctx, c, aggs)
		})
		if err != nil {
			return driver.Page{}, err
		}
		more, err := q.Load(ctx, keys)
		if err != nil {
			return driver.Page{}, err
		}
		page.Rows, page.RowsScanned = append(page.Rows, more.Rows...), max(page.RowsScanned, looked)
		page.Plain = eventrow.Plain([]driver.Cursor{c}, seen, limit)
	}
	return page, nil
}

// plain returns the positions of the first rows without a priority of
// aggregates with these ids.
func (q *queue) plain(ctx context.Context, c driver.Cursor, aggs []store.Aggregate) (map[store.Aggregate]int64, error) {
	first := make(map[store.Aggregate]int64)
	id := func(agg store.Aggregate) any { return agg.ID }
	err := lists(aggs, id, func(index int, args []any) error {
		rows, err := q.store.query(ctx, q.sql.plain[index], append([]any{c.After, upTo(c)}, args...)...)
		return eachRow(rows, err, func(rows *sql.Rows) error {
			var agg aggregate
			var seq int64
			if err := rows.Scan(append(agg.dest(), &seq)...); err != nil {
				return err
			}
			// An aggregate without a type may appear under two names.
			if known, ok := first[agg.decode()]; !ok || seq < known {
				first[agg.decode()] = seq
			}
			return nil
		})
	})
	if err != nil {
		return nil, q.store.explain(err)
	}
	return first, nil
}
