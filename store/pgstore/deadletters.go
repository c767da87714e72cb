package pgstore

import (
	"context"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/store"
)

// replayDead moves dead letters to the delayed events. $1: ids, $2: the due
// time; NULL: now. The statement returns all dead letters among the ids, in the
// order of seq: the due time, whether the dead letter was moved, and the dedup
// key that blocked it.
//
// The statement locks rows in the order of seq, as Discard and Unblock do, and
// then dedup keys in sorted order, as writers do. A statement that waits for a
// key already has all of its rows, and a transaction that holds a key waits for
// no row, so the two cannot deadlock. Of two dead letters with the same key,
// the older one takes the key. Index: primary key of dead.
func replayDead() string {
	columns := eventrow.Columns()
	return strings.NewReplacer("{events}", eventColumns, "{d.events}", "d."+strings.Join(columns, ", d."), "{m.events}", "m."+strings.Join(columns, ", m.")).
		Replace(`WITH ` + durable + `, clock AS MATERIALIZED (SELECT coalesce($2::timestamptz, clock_timestamp()) AS now),
buried AS MATERIALIZED (
  SELECT d.id, d.seq, coalesce(d.tenant_id, '') COLLATE "C" AS tenant, nullif(d.dedup_key, '') COLLATE "C" AS key
  FROM durable, {dead} d WHERE d.id = ANY($1::uuid[]) ORDER BY d.seq FOR UPDATE OF d
), taken AS (
  INSERT INTO {dedup} (tenant_id, dedup_key, id)
  SELECT DISTINCT ON (tenant, key) tenant, key, id FROM buried WHERE key IS NOT NULL ORDER BY tenant, key, seq
  ON CONFLICT DO NOTHING RETURNING id
), moved AS (
  DELETE FROM {dead} d USING buried b WHERE d.id = b.id AND (b.key IS NULL OR b.id IN (SELECT id FROM taken))
  RETURNING d.lane, d.seq, {d.events}, d.created_at, d.replay, d.last_error
), put AS (
  INSERT INTO {delayed} (lane, seq, {events}, created_at, replay, last_error, due_at, attempts, holds)
  SELECT m.lane, m.seq, {m.events}, m.created_at, m.replay + 1, m.last_error, clock.now, 0, coalesce(m.aggregate_id, '') <> '' FROM moved m, clock
)
SELECT b.id, clock.now, b.id IN (SELECT id FROM moved), b.tenant, coalesce(b.key, '') FROM buried b, clock ORDER BY b.seq`)
}

// discardDead deletes dead letters. The rest of the history no longer shows
// that they were committed, so the statement also records the gap.
const discardDead = `WITH ` + durable + `, buried AS MATERIALIZED (
  SELECT d.id FROM durable, {dead} d WHERE d.id = ANY($1::uuid[]) ORDER BY d.seq FOR UPDATE OF d
), gone AS (
  DELETE FROM {dead} d USING buried b WHERE d.id = b.id RETURNING d.id, d.created_at AS at
), ` + noteGone + `
SELECT id FROM gone`

// noteGone advances the start of the complete history past the deleted events.
// Texts of this form sort in the order of their times, and "never" sorts after
// all of them.
const noteGone = `noted AS (
  INSERT INTO {setting} AS s (name, value)
  SELECT 'history_from', to_char(date_trunc('second', max(at) + interval '999999 microseconds') AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS"Z"')
  FROM gone HAVING count(*) > 0
  ON CONFLICT (name) DO UPDATE SET value = excluded.value WHERE s.value COLLATE "C" < excluded.value COLLATE "C"
)`

// unblockRows ends holds. Indexes: primary keys of dead and delayed.
const unblockRows = `WITH ` + durable + `, buried AS MATERIALIZED (
  SELECT d.id FROM durable, {dead} d WHERE d.id = ANY($1::uuid[]) AND d.holds ORDER BY d.seq FOR UPDATE OF d
), late AS MATERIALIZED (
  SELECT d.id FROM durable, {delayed} d WHERE d.id = ANY($1::uuid[]) AND d.holds ORDER BY d.id FOR UPDATE OF d
), dead AS (
  UPDATE {dead} d SET holds = false FROM buried b WHERE d.id = b.id RETURNING d.id
), delayed AS (
  UPDATE {delayed} d SET holds = false FROM late l WHERE d.id = l.id RETURNING d.id
)
SELECT id FROM dead UNION ALL SELECT id FROM delayed`

// Replay implements [driver.DeadLetters].
func (c *core) Replay(ctx context.Context, ids []waybill.ID) (store.Replayed, error) {
	var out store.Replayed
	// All events get one due time, even across several statements.
	var at *time.Time
	for len(ids) > 0 {
		var moved []waybill.ID
		var refused []refusal
		err := c.audited(ctx, func(db database) (_ int64, err error) {
			moved, refused, err = c.replayOnce(ctx, db, ids, &at)
			return int64(len(moved)), err
		})
		if err != nil {
			return out, c.explain(err)
		}
		out.IDs = append(out.IDs, moved...)
		holders, vanished, err := c.holdersOf(ctx, refused)
		if err != nil {
			return out, c.explain(err)
		}
		out.Refused = append(out.Refused, holders...)
		// The key holders were delivered between the two statements: retry.
		ids = vanished
	}
	return out, nil
}

// refusal is a dead letter whose dedup key another event holds.
type refusal struct {
	id          waybill.ID
	tenant, key string
}

func (c *core) replayOnce(ctx context.Context, db database, ids []waybill.ID, at **time.Time) (moved []waybill.ID, refused []refusal, err error) {
	var r refusal
	var now time.Time
	var ok bool
	rows, err := db.query(ctx, c.sql.replay, db.ids(ids), *at)
	err = collect(rows, err, func() error {
		if ok {
			moved = append(moved, r.id)
		} else {
			refused = append(refused, r)
		}
		return nil
	}, db.scanID(&r.id), &now, &ok, &r.tenant, &r.key)
	if *at == nil && !now.IsZero() {
		*at = &now
	}
	return moved, refused, err
}

// holdersOf returns the holders of the dedup keys, and the refused dead letters
// whose key is free again.
func (c *core) holdersOf(ctx context.Context, refused []refusal) (found []store.Refusal, vanished []waybill.ID, err error) {
	if len(refused) == 0 {
		return nil, nil, nil
	}
	tenants, keys := make([]string, len(refused)), make([]string, len(refused))
	for i, r := range refused {
		tenants[i], keys[i] = r.tenant, r.key
	}
	holder := make(map[int64]waybill.ID)
	var id waybill.ID
	var place int64
	rows, err := c.db.query(ctx, c.sql.holders, c.db.texts(tenants), c.db.texts(keys))
	err = collect(rows, err, func() error { holder[place-1] = id; return nil }, c.db.scanID(&id), &place)
	for i, r := range refused {
		if id, ok := holder[int64(i)]; ok {
			found = append(found, store.Refusal{ID: r.id, Holder: id})
		} else {
			vanished = append(vanished, r.id)
		}
	}
	return found, vanished, err
}

// Discard implements [driver.DeadLetters].
func (c *core) Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return c.changed(ctx, c.sql.discard, ids)
}

// Unblock implements [driver.DeadLetters].
func (c *core) Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error) {
	return c.changed(ctx, c.sql.unblock, ids)
}

// changed runs a statement on events and returns the ids in its result.
func (c *core) changed(ctx context.Context, query string, ids []waybill.ID) ([]waybill.ID, error) {
	if len(ids) == 0 {
		return nil, nil
	}
	var out []waybill.ID
	err := c.audited(ctx, func(db database) (int64, error) {
		var id waybill.ID
		rows, err := db.query(ctx, query, db.ids(ids))
		err = collect(rows, err, func() error { out = append(out, id); return nil }, db.scanID(&id))
		return int64(len(out)), err
	})
	if err != nil {
		return nil, c.explain(err)
	}
	return out, nil
}
