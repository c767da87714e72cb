package pgstore

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store/driver"
)

// chosenEvents is the condition of a driver.HistoryQuery. $1, $2: times, NULL
// for none, $3 to $5: texts, $6: the aggregate id. history_done_idx (done_at),
// in the partitions of the time span.
const chosenEvents = `done_at >= coalesce($1::timestamptz, '-infinity') AND done_at < coalesce($2::timestamptz, 'infinity')
  AND (cardinality($3::text[]) = 0 OR type = ANY($3)) AND (cardinality($4::text[]) = 0 OR ` + aggregateType + ` = ANY($4))
  AND (cardinality($5::text[]) = 0 OR coalesce(tenant_id, '') = ANY($5)) AND ($6::text = '' OR aggregate_id = $6)`

// countHistory counts delivered events.
const countHistory = `SELECT count(*) FROM {history} WHERE ` + chosenEvents

// lockRefill serializes the refills of a destination, and keeps it from being
// removed: two refills would not see each other's rows. Primary key of
// destination.
const lockRefill = `SELECT true FROM {destination} WHERE number = {number} FOR NO KEY UPDATE`

// refillBacklog copies delivered events to the backlog. $7, $8: the cursor. The
// statement returns the number of events that match, of those that were copied,
// and the last event that matches. history_done_idx (done_at) finds the events
// in their order, the unique (id, lane) of the three tables finds those that
// have a row.
//
// The number of lanes may have changed since the delivery. The lane of an event
// is that of its aggregate now; an unordered event keeps a lane that exists.
const refillBacklog = `WITH ` + durable + `, page AS MATERIALIZED (
  SELECT h.* FROM durable, {history} h WHERE ` + chosenEvents + `
    AND done_at >= coalesce($7::timestamptz, '-infinity') AND (done_at > coalesce($7::timestamptz, '-infinity') OR id > $8::uuid)
  ORDER BY done_at, id LIMIT {limit}
), present AS MATERIALIZED (
  SELECT id FROM {outbox} WHERE id = ANY(ARRAY(SELECT id FROM page)) AND ` + theLane + `
  UNION ALL SELECT id FROM {delayed} WHERE id = ANY(ARRAY(SELECT id FROM page)) AND ` + theLane + `
  UNION ALL SELECT id FROM {dead} WHERE id = ANY(ARRAY(SELECT id FROM page)) AND ` + theLane + `
), copied AS (
  INSERT INTO {outbox} (lane, seq, {events}, created_at, replay, attempts, final)
  SELECT {low} + {lane_now}, seq, {events}, created_at, replay + 1, 0, false FROM page WHERE id NOT IN (SELECT id FROM present)
  ON CONFLICT (id, lane) DO NOTHING RETURNING 1
)
SELECT (SELECT count(*) FROM page), (SELECT count(*) FROM copied), last.done_at, last.id
FROM (SELECT) AS once LEFT JOIN (SELECT done_at, id FROM page ORDER BY done_at DESC, id DESC LIMIT 1) AS last ON true`

// laneNow is the lane of a row of the history.
var laneNow = `CASE WHEN coalesce(aggregate_id, '') = '' AND lane < {lane_count}() THEN lane ELSE ` +
	strings.ReplaceAll(rightLane, "{n}", "{lane_count}()") + ` END`

// historyArgs returns the arguments of chosenEvents.
func historyArgs(e encoder, q driver.HistoryQuery) []any {
	list := func(values []string) any { return e.texts(append([]string{}, values...)) }
	return []any{
		boundOrNull(q.Since), boundOrNull(q.Until), list(q.Types), list(q.AggregateTypes), list(q.Tenants), q.AggregateID,
	}
}

// boundOrNull returns the argument for a bound; the zero time is NULL. The
// driver would cut the nanoseconds off, and move the bound to an earlier row.
func boundOrNull(t time.Time) any {
	if t.IsZero() {
		return nil
	}
	return sqlstore.WholeMicrosecond(t)
}

// CountHistory implements [driver.Backlog].
func (b *backlog) CountHistory(ctx context.Context, q driver.HistoryQuery) (int64, error) {
	var n int64
	rows, err := b.core.db.query(ctx, b.core.sql.countHistory, historyArgs(b.core.db, q)...)
	err = collect(rows, err, func() error { return nil }, &n)
	return n, b.core.explain(err)
}

// Refill implements [driver.Backlog]. It returns [driver.ErrNoDestination] if
// the destination is not registered.
func (b *backlog) Refill(ctx context.Context, q driver.HistoryQuery, after driver.HistoryCursor, limit int) (driver.Refilled, error) {
	c := b.core
	out := driver.Refilled{Next: after}
	err := c.db.within(ctx, func(tx database) error {
		registered := false
		rows, err := tx.query(ctx, c.sql.lockRefill)
		if err := collect(rows, err, func() error { return nil }, &registered); err != nil {
			return err
		}
		if !registered {
			return fmt.Errorf("refill: destination %d: %w", b.base, driver.ErrNoDestination)
		}
		// The snapshot of the next statement is newer than the lock.
		var discard string
		rows, err = tx.query(ctx, walkIndex)
		if err := collect(rows, err, func() error { return nil }, &discard, &discard, &discard, &discard, &discard); err != nil {
			return err
		}
		var at instant
		next := after
		rows, err = tx.query(ctx, limited(c.sql.refill, limit), append(historyArgs(tx, q), boundOrNull(after.At), after.ID.UUID())...)
		err = collect(rows, err, func() error { return nil }, &out.Matched, &out.Copied, &at, tx.scanID(&next.ID))
		if out.Matched > 0 {
			next.At = time.Time(at)
			out.Next = next
		}
		if err != nil {
			return err
		}
		return c.note(ctx, tx, int64(out.Copied))
	})
	if err != nil {
		return driver.Refilled{}, c.explain(err)
	}
	return out, nil
}
