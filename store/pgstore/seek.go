package pgstore

import (
	"context"

	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
)

// holdingRows finds what holds its aggregate back. delayed_holds_idx and dead_holds_idx (lane) where holds.
const holdingRows = `SELECT lane, seq, id, ` + aggregateColumns + `, dead FROM (
  SELECT lane, seq, id, tenant_id, aggregate_type, aggregate_id, false AS dead FROM {delayed} WHERE holds AND lane = ANY($1::smallint[])
  UNION ALL
  SELECT lane, seq, id, tenant_id, aggregate_type, aggregate_id, true FROM {dead} WHERE holds AND lane = ANY($1::smallint[])
) AS r ORDER BY lane, seq`

// followAggregate reads one aggregate. Primary key of outbox (lane, seq): the rest of the lane is passed over, in order, until there are
// enough. The condition is a CASE because a planner that could tell how rare the aggregate is would collect the whole lane, and sort it,
// for every page.
const followAggregate = `SELECT ` + readColumns + `, r.available_at, 0, 0, false, '', now() FROM (SELECT) AS once LEFT JOIN (
  SELECT * FROM {outbox} WHERE lane = $1::smallint AND seq > $2::bigint AND seq <= $3::bigint
    AND CASE WHEN aggregate_id = $6::text AND $6::text <> '' THEN ` + aggregateType + ` = $5::text AND coalesce(tenant_id, '') = $4::text ELSE false END
  ORDER BY seq LIMIT {limit}
) AS r ON true`

// urgentRows reads what goes first. outbox_priority_idx (lane, seq) where priority > 0.
const urgentRows = `SELECT ` + readColumns + `, r.available_at, 0, 0, false, '', now() FROM (SELECT) AS once LEFT JOIN (
  unnest($1::smallint[], $2::bigint[], $3::bigint[]) AS c(l, after, up_to)
  CROSS JOIN LATERAL (
    SELECT * FROM {outbox} o WHERE o.lane = c.l AND o.seq > c.after AND o.seq <= c.up_to AND o.priority > 0 AND coalesce(o.aggregate_id, '') = ''
    ORDER BY o.seq LIMIT {limit}
  ) AS r
) ON true`

// Holds implements [store.Seeker].
func (c *core) Holds(ctx context.Context, lanes []int) ([]store.Hold, error) {
	var holds []store.Hold
	var h store.Hold
	rows, err := c.db.query(ctx, c.sql.holds, c.db.int16s(int16s(lanes)))
	err = collect(rows, err, func() error {
		if h.Aggregate.IsZero() {
			h.Aggregate = store.Aggregate{}
		}
		holds = append(holds, h)
		return nil
	}, &h.Lane, &h.Seq, c.db.scanID(&h.ID), &h.Aggregate.Tenant, &h.Aggregate.Type, &h.Aggregate.ID, &h.Dead)
	return holds, c.explain(err)
}

// Follow implements [store.Seeker].
func (c *core) Follow(ctx context.Context, agg store.Aggregate, from store.Cursor, limit int) (store.Page, error) {
	lanes, after, upTo := cursors([]store.Cursor{from})
	return c.page(ctx, limited(c.sql.follow, limit), lanes[0], after[0], upTo[0], agg.Tenant, agg.Type, agg.ID)
}

// Urgent implements [store.Seeker].
func (c *core) Urgent(ctx context.Context, from []store.Cursor, limit int) (store.Page, error) {
	lanes, after, upTo := cursors(from)
	p, err := c.page(ctx, limited(c.sql.urgent, limit), c.db.int16s(lanes), c.db.int64s(after), c.db.int64s(upTo))
	eventrow.Sort(p.Rows, func(r *store.Row) store.Key { return r.Key })
	return p, err
}
