package pgstore

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// holdingRows finds the events that hold their aggregate, and the timeline.
// delayed_holds_idx and dead_holds_idx (lane) where holds.
const holdingRows = timelineRow + `, false UNION ALL SELECT lane, seq, id, ` + aggregateColumns + `, dead FROM (
  SELECT lane, seq, id, tenant_id, aggregate_type, aggregate_id, false AS dead FROM {delayed} WHERE holds AND lane = ANY($1::smallint[])
  UNION ALL
  SELECT lane, seq, id, tenant_id, aggregate_type, aggregate_id, true FROM {dead} WHERE holds AND lane = ANY($1::smallint[])
) AS r`

// followAggregate reads one aggregate. Primary key of outbox (lane, seq): the
// statement skips the other rows of the lane, in order, until it reaches the
// limit. The condition is a CASE because a planner that knew how rare the
// aggregate is would collect and sort the whole lane for every page.
func followAggregate(columns string) string {
	return `SELECT ` + columns + ` FROM (SELECT) AS once LEFT JOIN (
  SELECT * FROM {outbox} WHERE lane = $1::smallint AND seq > $2::bigint AND seq <= $3::bigint
    AND CASE WHEN aggregate_id = $6::text AND $6::text <> '' THEN ` + aggregateType + ` = $5::text AND coalesce(tenant_id, '') = $4::text ELSE false END
  ORDER BY seq LIMIT {limit}
) AS r ON true`
}

// urgentKeys finds events with a priority. outbox_priority_idx (lane, seq)
// where priority > 0. Every row contains the clock and the timeline, and there
// is always at least one row.
const urgentKeys = `SELECT coalesce(r.lane, -1), coalesce(r.seq, 0), coalesce(r.id, '00000000-0000-0000-0000-000000000000'), ` + aggregateColumns + `, now()` + readTimeline + `
FROM (SELECT) AS once LEFT JOIN (
  unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS c(l, after, up_to)
  CROSS JOIN LATERAL (
    SELECT lane, seq, id, tenant_id, aggregate_type, aggregate_id FROM {outbox} o
    WHERE o.lane = c.l AND o.seq > c.after AND o.seq <= c.up_to AND o.priority > 0 ORDER BY o.seq LIMIT {limit}
  ) AS r
) ON true`

// plainRows finds the first rows without a priority of aggregates with these
// ids, and the timeline as the seq of an aggregate without an id. Primary key
// of outbox (lane, seq): the statement reads the range once, regardless of the
// number of aggregates. The condition is a CASE so that the ids are hashed and
// not joined.
const plainRows = `SELECT '', '', '', {timeline}() UNION ALL SELECT ` + aggregateColumns + `, min(seq) FROM {outbox}
WHERE lane = $1::smallint AND seq > $2::bigint AND seq <= $3::bigint AND priority <= 0
 AND CASE WHEN aggregate_id IN (SELECT unnest($4::text[])) THEN true ELSE false END
GROUP BY 1, 2, 3`

// Holds implements [driver.Seeker].
func (c *core) Holds(ctx context.Context, lanes []int) ([]driver.Hold, error) {
	var holds []driver.Hold
	var h driver.Hold
	var timeline int64
	rows, err := c.db.query(ctx, c.sql.holds, c.db.int16s(int16s(lanes)))
	err = collect(rows, err, func() error {
		if h.Lane < 0 {
			timeline = h.Seq
			return nil
		}
		if h.Aggregate.IsZero() {
			h.Aggregate = store.Aggregate{}
		}
		holds = append(holds, h)
		return nil
	}, &h.Lane, &h.Seq, c.db.scanID(&h.ID), &h.Aggregate.Tenant, &h.Aggregate.Type, &h.Aggregate.ID, &h.Dead)
	if err != nil {
		return nil, c.explain(err)
	}
	if err := c.readOn(timeline, slices.Values(lanes)); err != nil {
		return nil, err
	}
	eventrow.Sort(holds, func(h *driver.Hold) store.Key { return h.Key })
	return holds, nil
}

// FetchAggregate implements [driver.Seeker].
func (c *core) FetchAggregate(ctx context.Context, agg store.Aggregate, from driver.Cursor, limit int) (driver.Page, error) {
	lanes, after, upTo := cursors([]driver.Cursor{from})
	return c.page(ctx, limited(c.sql.follow, limit), lanes[0], after[0], upTo[0], agg.Tenant, agg.Type, agg.ID)
}

// FetchPriority implements [driver.Seeker]. It finds the keys first, and then
// reads only the rows that do not wait for other rows.
func (c *core) FetchPriority(ctx context.Context, from []driver.Cursor, limit int) (driver.Page, error) {
	lanes, after, upTo := cursors(from)
	var seen []driver.RowRef
	var s driver.RowRef
	var now time.Time
	var timeline int64
	rows, err := c.db.ordered(ctx, limited(c.sql.urgent, eventrow.AheadReach*limit), c.db.int16s(lanes), c.db.int64s(after), c.db.int64s(upTo))
	err = collect(rows, err, func() error {
		if s.Aggregate.IsZero() {
			s.Aggregate = store.Aggregate{}
		}
		if s.Lane >= 0 {
			seen = append(seen, s)
		}
		return nil
	}, &s.Lane, &s.Seq, c.db.scanID(&s.ID), &s.Aggregate.Tenant, &s.Aggregate.Type, &s.Aggregate.ID, &now, &timeline)
	if err != nil {
		return driver.Page{}, c.explain(err)
	}
	if err := c.readOn(timeline, lanesOfCursors(from)); err != nil {
		return driver.Page{}, err
	}
	eventrow.Sort(seen, func(s *driver.RowRef) store.Key { return s.Key })
	keys, looked, err := eventrow.Ahead(from, seen, limit, func(cur driver.Cursor, aggs []store.Aggregate) (map[store.Aggregate]int64, error) {
		return c.plain(ctx, cur, aggs)
	})
	if err != nil {
		return driver.Page{}, err
	}
	p := driver.Page{Now: now.UTC()}
	if len(keys) > 0 {
		p, err = c.Load(ctx, keys)
	}
	p.Plain, p.RowsScanned = eventrow.Plain(from, seen, limit), looked
	return p, err
}

// plain returns the positions of the first rows without a priority of
// aggregates with these ids.
func (c *core) plain(ctx context.Context, cur driver.Cursor, aggs []store.Aggregate) (map[store.Aggregate]int64, error) {
	ids := make([]string, len(aggs))
	for i, agg := range aggs {
		ids[i] = agg.ID
	}
	first := make(map[store.Aggregate]int64)
	var agg store.Aggregate
	var seq, timeline int64
	rows, err := c.db.ordered(ctx, c.sql.plain, int16(cur.Lane), cur.After, cur.UpTo, c.db.texts(ids))
	err = collect(rows, err, func() error {
		if agg.ID == "" {
			timeline = seq
			return nil
		}
		first[agg] = seq
		return nil
	}, &agg.Tenant, &agg.Type, &agg.ID, &seq)
	if err != nil {
		return nil, c.explain(err)
	}
	return first, c.readOn(timeline, lanesOfCursors([]driver.Cursor{cur}))
}
