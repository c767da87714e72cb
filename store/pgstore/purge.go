package pgstore

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
)

// purgeHistory deletes delivered events. $1: their age in seconds, $2: the
// limit. Concurrent runs are safe: each skips the rows that another has locked.
// history_done_idx (done_at) finds the oldest rows; that index or
// history_id_idx finds them again, only in the partitions of their days.
const purgeHistory = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() - $1::double precision * interval '1 second' AS cutoff),
old AS MATERIALIZED (
  SELECT id, done_at FROM {history} WHERE done_at < (SELECT cutoff FROM clock) ORDER BY done_at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {history} WHERE id = ANY(ARRAY(SELECT id FROM old))
    AND done_at >= (SELECT min(done_at) FROM old) AND done_at <= (SELECT max(done_at) FROM old)
  RETURNING (SELECT cutoff FROM clock) AS at
), ` + noteGone + `
SELECT count(*) FROM gone`

// purgeDead deletes dead letters. dead_died_idx (died_at) finds the oldest, the
// primary key deletes them.
const purgeDead = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() - $1::double precision * interval '1 second' AS cutoff),
old AS MATERIALIZED (
  SELECT id FROM {dead} WHERE died_at < (SELECT cutoff FROM clock) ORDER BY died_at LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {dead} WHERE id = ANY(ARRAY(SELECT id FROM old)) RETURNING (SELECT cutoff FROM clock) AS at
), ` + noteGone + `
SELECT count(*) FROM gone`

// purgePending deletes ready events. It runs under a lock on the nodes and
// reads them: the first result is whether a relay is live. It reads the table
// from its beginning, where the oldest rows are, up to the limit. It skips rows
// that another transaction has locked. The deleted events leave no history. The
// age of an event that was delayed counts from its due time, because a reader
// of the table cannot have seen the event before.
const purgePending = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now, clock_timestamp() - $1::double precision * interval '1 second' AS cutoff),
live AS MATERIALIZED (SELECT EXISTS (SELECT FROM {node}, clock WHERE expires_at > clock.now) AS yes),
old AS MATERIALIZED (
  SELECT id FROM {outbox} WHERE created_at < (SELECT cutoff FROM clock) AND (available_at IS NULL OR available_at < (SELECT cutoff FROM clock))
    AND NOT (SELECT yes FROM live) LIMIT $2 FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {outbox} WHERE id = ANY(ARRAY(SELECT id FROM old)) RETURNING id, tenant_id, dedup_key
), freed AS (
  DELETE FROM {dedup} d USING gone g
  WHERE g.dedup_key IS NOT NULL AND d.tenant_id = coalesce(g.tenant_id, '') AND d.dedup_key = g.dedup_key AND d.id = g.id
), noted AS (
  INSERT INTO {setting} AS s (name, value) SELECT 'history_from', 'never' FROM gone HAVING count(*) > 0
  ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE s.value <> excluded.value
)
SELECT (SELECT yes FROM live), (SELECT count(*) FROM gone)`

// readyDue moves delayed events that are due to the ready events; $1: the
// limit. It runs under a lock on the nodes, as purgePending does.
// delayed_due_idx (lane, due_at, seq), once per lane. The insert follows the
// order of the due times, and so does the log. An event whose id is already
// among the ready events cannot be moved and stays delayed.
const readyDue = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() AS now),
live AS MATERIALIZED (SELECT EXISTS (SELECT FROM {node}, clock WHERE expires_at > clock.now) AS yes),
due AS MATERIALIZED (
  SELECT r.id, r.due_at, r.seq FROM clock, {lane} l
  CROSS JOIN LATERAL (SELECT d.id, d.due_at, d.seq FROM {delayed} d WHERE d.lane = l.lane AND d.due_at <= clock.now
    ORDER BY d.due_at, d.seq LIMIT $1) AS r
  WHERE NOT (SELECT yes FROM live) ORDER BY r.due_at, r.seq LIMIT $1
), taken AS MATERIALIZED (
  SELECT id FROM {delayed} WHERE id = ANY(ARRAY(SELECT id FROM due)) AND NOT EXISTS (SELECT FROM {outbox} o WHERE o.id = {delayed}.id)
  FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {delayed} WHERE id = ANY(ARRAY(SELECT id FROM taken)) RETURNING *
), moved AS (
  INSERT INTO {outbox} (lane, seq, {events}, created_at, available_at)
  SELECT lane, seq, {events}, created_at, due_at FROM gone ORDER BY due_at, seq RETURNING id
)
SELECT (SELECT yes FROM live), (SELECT count(*) FROM moved)`

// freeOrphans deletes the dedup keys in the next page that have no pending
// event: the event's row was deleted by hand. $1, $2: the key to start after,
// $3: the page size. A pending event and its key commit together, so one
// snapshot shows both or neither. The statement returns the number of keys in
// the page, and the last key.
const freeOrphans = `WITH page AS MATERIALIZED (
  SELECT tenant_id, dedup_key, id FROM {dedup} WHERE (tenant_id, dedup_key) > ($1, $2) ORDER BY tenant_id, dedup_key LIMIT $3
), freed AS (
  DELETE FROM {dedup} d USING page p WHERE d.tenant_id = p.tenant_id AND d.dedup_key = p.dedup_key AND d.id = p.id
    AND NOT EXISTS (SELECT FROM {outbox} o WHERE o.id = p.id) AND NOT EXISTS (SELECT FROM {delayed} l WHERE l.id = p.id)
)
SELECT count(*) OVER (), tenant_id, dedup_key FROM page ORDER BY tenant_id DESC, dedup_key DESC LIMIT 1`

// orphanPage is the number of dedup keys that one statement checks.
const orphanPage = 5000

// freeOrphans checks all dedup keys, page by page.
func (c *core) freeOrphans(ctx context.Context) error {
	var tenant, key string
	for {
		n := 0
		rows, err := c.db.query(ctx, c.sql.freeOrphans, tenant, key, orphanPage)
		if err := collect(rows, err, func() error { return nil }, &n, &tenant, &key); err != nil || n < orphanPage {
			return err
		}
	}
}

// forgetSilentNodes removes nodes that have been silent for a day, as joinRelay
// does.
const forgetSilentNodes = `DELETE FROM {node} WHERE expires_at < clock_timestamp() - interval '1 day'`

// Purge implements [driver.Maintainer].
func (c *core) Purge(ctx context.Context, state store.State, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckPurge(state, age); err != nil {
		return 0, fmt.Errorf("pgstore: %w", err)
	}
	query := c.sql.purge[state]
	return c.howMany(ctx, query, seconds(age), max(limit, 0))
}

// PurgeWritten implements [driver.Maintainer].
func (c *core) PurgeWritten(ctx context.Context, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("pgstore: %w", err)
	}
	return c.withoutRelay(ctx, "purge", c.sql.purgeWritten, seconds(age), max(limit, 0))
}

// MakeReady implements [driver.Maintainer].
func (c *core) MakeReady(ctx context.Context, limit int) (int, error) {
	return c.withoutRelay(ctx, "make ready", c.sql.makeReady, max(limit, 0))
}

// withoutRelay runs a statement that must not run beside a relay. The statement
// returns whether a relay is live, and the number of changed rows.
func (c *core) withoutRelay(ctx context.Context, what, query string, args ...any) (int, error) {
	var live bool
	var n int
	err := c.db.within(ctx, func(tx database) error {
		// A joining relay takes the same lock, and a heartbeat waits for it, so
		// no relay can start in the meantime.
		if err := tx.exec(ctx, c.sql.lockNodes); err != nil {
			return err
		}
		rows, err := tx.query(ctx, query, args...)
		if err := collect(rows, err, func() error { return nil }, &live, &n); err != nil {
			return err
		}
		return c.note(ctx, tx, int64(n))
	})
	if err != nil {
		return 0, c.explain(err)
	}
	if live {
		return 0, fmt.Errorf("pgstore: %s: %w", what, store.ErrRelayLive)
	}
	return n, nil
}
