package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store/driver"
)

const (
	// countUp is a part of the heartbeat: it stores the counts $5 if the lease
	// is renewed. Primary key of rollup.
	countUp = `counted AS (
  INSERT INTO {rollup} AS r (span, minute, source, destination, type, delivered, failed, dead)
  SELECT 1, (e ->> 0)::integer, (e ->> 1)::uuid, e ->> 2, e ->> 3, (e ->> 4)::bigint, (e ->> 5)::bigint, (e ->> 6)::bigint
  FROM me, json_array_elements(nullif($5::text, '')::json) AS e
  ON CONFLICT (span, minute, source, destination, type) DO UPDATE
  SET delivered = greatest(r.delivered, excluded.delivered), failed = greatest(r.failed, excluded.failed), dead = greatest(r.dead, excluded.dead)
)`

	// listRollups sums counts. $1, $2: minutes, $3: the minutes of a step, $4:
	// the destination, $5: the type, $6: by type. Primary key of rollup.
	listRollups = `SELECT minute / $3::integer * $3::integer AS step, destination, CASE WHEN $6::boolean THEN type ELSE '' END AS kind,
  sum(delivered)::bigint, sum(failed)::bigint, sum(dead)::bigint
FROM {rollup} WHERE span IN (1, 60) AND minute >= $1::integer AND minute < $2::integer
  AND ($4::text = '' OR destination = $4::text) AND ($5::text = '' OR type = $5::text)
GROUP BY step, destination, kind ORDER BY step, destination, kind`

	// mergeRollups adds minutes to hours. $1: their age in seconds, $2: the
	// limit. Hours are inserted in their order, so that two merges do not wait
	// for each other. Primary key of rollup.
	mergeRollups = `WITH old AS MATERIALIZED (
  SELECT minute, source, destination, type FROM {rollup}
  WHERE span = 1 AND minute < floor(extract(epoch FROM clock_timestamp() - $1::double precision * interval '1 second') / 3600)::integer * 60
  ORDER BY minute, source, destination, type LIMIT $2::bigint FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {rollup} r USING old o
  WHERE r.span = 1 AND (r.minute, r.source, r.destination, r.type) = (o.minute, o.source, o.destination, o.type)
  RETURNING r.minute, r.destination, r.type, r.delivered, r.failed, r.dead
), merged AS (
  INSERT INTO {rollup} AS r (span, minute, source, destination, type, delivered, failed, dead)
  SELECT 60, minute / 60 * 60 AS hour, '00000000-0000-0000-0000-000000000000'::uuid, destination, type, sum(delivered), sum(failed), sum(dead)
  FROM gone GROUP BY hour, destination, type ORDER BY hour, destination, type
  ON CONFLICT (span, minute, source, destination, type) DO UPDATE
  SET delivered = r.delivered + excluded.delivered, failed = r.failed + excluded.failed, dead = r.dead + excluded.dead
)
SELECT count(*) FROM gone`

	// purgeRollups deletes the oldest rows. $1: their age in seconds, $2: the
	// limit. Primary key of rollup.
	purgeRollups = `WITH old AS MATERIALIZED (
  SELECT span, minute, source, destination, type FROM {rollup}
  WHERE span IN (1, 60) AND minute < floor(extract(epoch FROM clock_timestamp() - $1::double precision * interval '1 second') / 60)::integer
  ORDER BY minute LIMIT $2::bigint FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {rollup} r USING old o
  WHERE (r.span, r.minute, r.source, r.destination, r.type) = (o.span, o.minute, o.source, o.destination, o.type) RETURNING 1
)
SELECT count(*) FROM gone`
)

// ListRollups implements [driver.Rollups].
func (c *core) ListRollups(ctx context.Context, f driver.RollupFilter) ([]driver.Rollup, error) {
	since, until, step := f.Minutes()
	var out []driver.Rollup
	var r driver.Rollup
	var minute int64
	rows, err := c.db.query(ctx, c.sql.listRollups, since, until, step, f.Destination, f.Type, f.ByType)
	err = collect(rows, err, func() error {
		r.At = driver.TimeOfMinute(minute)
		out = append(out, r)
		return nil
	}, &minute, &r.Destination, &r.Type, &r.Delivered, &r.Failed, &r.Dead)
	if err != nil {
		return nil, c.explain(err)
	}
	return out, nil
}

// MergeRollups implements [driver.Rollups].
func (c *core) MergeRollups(ctx context.Context, age time.Duration, limit int) (int, error) {
	return c.takeRollups(ctx, c.sql.mergeRollups, age, limit)
}

// PurgeRollups implements [driver.Rollups].
func (c *core) PurgeRollups(ctx context.Context, age time.Duration, limit int) (int, error) {
	return c.takeRollups(ctx, c.sql.purgeRollups, age, limit)
}

func (c *core) takeRollups(ctx context.Context, query string, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("pgstore: %w", err)
	}
	n, err := number(ctx, c.db, query, seconds(age), max(limit, 0))
	return n, c.explain(err)
}
