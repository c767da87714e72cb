package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/store"
)

// purgeHistory deletes delivered events. $1: their age in seconds, $2: how many. Several may run at a time: each passes over what
// another has. history_done_idx (done_at) finds the oldest; it or history_id_idx finds them again, in no other days than theirs.
const purgeHistory = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() - $1::double precision * interval '1 second' AS cutoff),
old AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE done_at < (SELECT cutoff FROM clock) ORDER BY done_at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM old))
    AND done_at >= (SELECT min(done_at) FROM old) AND done_at <= (SELECT max(done_at) FROM old)
  RETURNING (SELECT cutoff FROM clock) AS at
), ` + noteGone + `
SELECT count(*) FROM gone`

// purgeDead deletes dead letters. dead_died_idx (died_at) finds the oldest, the primary key deletes them.
const purgeDead = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() - $1::double precision * interval '1 second' AS cutoff),
old AS MATERIALIZED (
  SELECT id FROM {dead} WHERE died_at < (SELECT cutoff FROM clock) ORDER BY died_at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {dead} WHERE id = ANY(ARRAY(SELECT id FROM old)) RETURNING (SELECT cutoff FROM clock) AS at
), ` + noteGone + `
SELECT count(*) FROM gone`

// purgePending deletes pending events. It runs behind a lock on the nodes, and looks at them: the first answer says whether a relay is
// live. The tables are read from their beginning, where the oldest rows are, until there are enough. Rows that somebody is at work on
// are passed over. What leaves in this way leaves no trace.
const purgePending = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now, clock_timestamp() - $1::double precision * interval '1 second' AS cutoff),
live AS MATERIALIZED (SELECT EXISTS (SELECT FROM {node}, clock WHERE expires_at > clock.now) AS yes),
ready AS MATERIALIZED (
  SELECT id FROM {outbox} WHERE created_at < (SELECT cutoff FROM clock) AND NOT (SELECT yes FROM live) LIMIT $2 FOR UPDATE SKIP LOCKED
), late AS MATERIALIZED (
  SELECT id FROM {delayed} WHERE created_at < (SELECT cutoff FROM clock) AND NOT (SELECT yes FROM live)
  LIMIT $2::bigint - (SELECT count(*) FROM ready) FOR UPDATE SKIP LOCKED
), done AS (
  DELETE FROM {outbox} WHERE id = ANY(ARRAY(SELECT id FROM ready)) RETURNING id, tenant_id, dedup_key
), done_late AS (
  DELETE FROM {delayed} WHERE id = ANY(ARRAY(SELECT id FROM late)) RETURNING id, tenant_id, dedup_key
), gone AS (
  SELECT * FROM done UNION ALL SELECT * FROM done_late
), freed AS (
  DELETE FROM {dedup} d USING gone g
  WHERE g.dedup_key IS NOT NULL AND d.tenant_id = coalesce(g.tenant_id, '') AND d.dedup_key = g.dedup_key AND d.id = g.id
), noted AS (
  INSERT INTO {setting} AS s (name, value) SELECT 'history_from', 'never' FROM gone HAVING count(*) > 0
  ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE s.value <> excluded.value
)
SELECT (SELECT yes FROM live), (SELECT count(*) FROM gone)`

// forgetSilentNodes removes nodes that have been silent for a day, as joining does.
const forgetSilentNodes = `DELETE FROM {node} WHERE expires_at < clock_timestamp() - interval '1 day'`

// Purge implements [store.Keeper].
func (c *core) Purge(ctx context.Context, state store.State, age time.Duration, limit int) (int, error) {
	query, ok := c.sql.purge[state]
	if !ok {
		return 0, fmt.Errorf("pgstore: purge: rows that are %v are not purged", state)
	}
	if age < 0 {
		return 0, fmt.Errorf("pgstore: purge: the age %v is negative", age)
	}
	var n int
	rows, err := c.db.query(ctx, query, seconds(age), max(limit, 0))
	return n, c.explain(collect(rows, err, func() error { return nil }, &n))
}

// PurgeWritten implements [store.Keeper].
func (c *core) PurgeWritten(ctx context.Context, age time.Duration, limit int) (int, error) {
	if age < 0 {
		return 0, fmt.Errorf("pgstore: purge: the age %v is negative", age)
	}
	var live bool
	var n int
	err := c.db.within(ctx, func(tx database) error {
		// The lock that a joining relay takes, and that a heartbeat waits for: none can start meanwhile.
		if err := tx.exec(ctx, c.sql.lockNodes); err != nil {
			return err
		}
		rows, err := tx.query(ctx, c.sql.purgeWritten, seconds(age), max(limit, 0))
		return collect(rows, err, func() error { return nil }, &live, &n)
	})
	if err != nil {
		return 0, c.explain(err)
	}
	if live {
		return 0, fmt.Errorf("pgstore: purge: %w", store.ErrRelayLive)
	}
	return n, nil
}
