package pgstore

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqlstore"
	"github.com/waybillhq/waybill/store"
)

// inboxColumns are the columns of every read of a record r, in the order of
// inboxRow.dest. Without a record the state is -1.
const inboxColumns = `coalesce(r.consumer_group, ''), r.dedup_id, r.event_id, coalesce(r.tenant_id, ''), coalesce(r.event_type, ''), r.payload_hash,
 coalesce(r.status, -1), r.owner, coalesce(r.fence, 0), coalesce(r.attempts, 0), r.lease_until, r.next_retry_at, r.processed_at, r.received_at,
 coalesce(r.last_error, ''), r.event, clock_timestamp()`

// findRecord uses the primary key of inbox.
const findRecord = `SELECT ` + inboxColumns + ` FROM {inbox} r WHERE r.consumer_group = $1::text AND r.dedup_id = $2::uuid`

// dueRecords uses inbox_due_idx (consumer_group, the time from which the record
// can be claimed).
const dueRecords = `SELECT ` + inboxColumns + ` FROM {inbox} r
WHERE r.consumer_group = $1::text AND r.status IN (0, 2) AND r.event IS NOT NULL AND coalesce(r.next_retry_at, r.lease_until) <= now()
ORDER BY coalesce(r.next_retry_at, r.lease_until) LIMIT {limit}`

// lastApplied uses inbox_done_idx (consumer_group, processed_at).
const lastApplied = `SELECT ` + inboxColumns + ` FROM {inbox} r
WHERE r.consumer_group = $1::text AND r.status = 1 ORDER BY r.processed_at DESC LIMIT {limit}`

// listRecords reads records after a group and key. $1: group, $2: key, $3: a
// single group, or nothing, $4: states, $5: attempts.
const listRecords = `SELECT ` + inboxColumns + ` FROM {inbox} r
WHERE {open} (r.consumer_group, r.dedup_id) > ($1::text, $2::uuid) AND ($3::text = '' OR r.consumer_group = $3::text)
  AND r.status = ANY($4::smallint[]) AND r.attempts >= $5::integer
ORDER BY r.consumer_group, r.dedup_id LIMIT {limit}`

// openStats counts records that have not succeeded. inbox_open_idx
// (consumer_group, dedup_id).
const openStats = `SELECT consumer_group, count(*) FILTER (WHERE status = 0), count(*) FILTER (WHERE status = 2), count(*) FILTER (WHERE status = 3),
 coalesce(max(attempts) FILTER (WHERE status = 2), 0),
 greatest(coalesce(extract(epoch FROM clock_timestamp() - min(next_retry_at) FILTER (WHERE status = 2)), 0), 0)::double precision
FROM {inbox} WHERE status <> 1 GROUP BY consumer_group ORDER BY consumer_group`

// allGroups uses the primary key of inbox, with one step per group, regardless
// of the number of records.
const allGroups = `WITH RECURSIVE found(name) AS (
  SELECT min(consumer_group) FROM {inbox}
  UNION ALL SELECT (SELECT min(consumer_group) FROM {inbox} WHERE consumer_group > name) FROM found WHERE name IS NOT NULL
)
SELECT name FROM found WHERE name IS NOT NULL`

// redriveRecords makes records eligible for another attempt. $1: group, $2: the
// limit, $3: keys. It locks rows in the order of their keys, so that two such
// statements cannot deadlock. inbox_open_idx or the primary key finds the rows,
// the primary key changes them.
const redriveRecords = `WITH ` + durable + `, chosen AS MATERIALIZED (
  SELECT dedup_id FROM {inbox} WHERE consumer_group = $1::text AND status <> 1 AND {which} ORDER BY dedup_id LIMIT $2::bigint FOR UPDATE
), redriven AS (
  UPDATE {inbox} SET status = 2, owner = NULL, attempts = 0, lease_until = NULL, next_retry_at = clock_timestamp(), processed_at = NULL
  FROM durable WHERE consumer_group = $1::text AND dedup_id = ANY(ARRAY(SELECT dedup_id FROM chosen)) RETURNING 1
)
SELECT count(*) FROM redriven`

const (
	deadOnes  = `status = 3`
	namedOnes = `status IN (2, 3) AND dedup_id = ANY($3::uuid[])`
)

// purgeRecords deletes succeeded records. $1: group, $2: their age in seconds,
// $3: the limit. Concurrent runs are safe: each skips the rows that another has
// locked. inbox_done_idx (consumer_group, processed_at) finds the oldest
// records, the primary key deletes them.
const purgeRecords = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() - $2::double precision * interval '1 second' AS cutoff),
old AS MATERIALIZED (
  SELECT dedup_id FROM {inbox} WHERE consumer_group = $1::text AND status = 1 AND processed_at < (SELECT cutoff FROM clock)
  ORDER BY processed_at LIMIT $3::bigint FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {inbox} WHERE consumer_group = $1::text AND dedup_id = ANY(ARRAY(SELECT dedup_id FROM old)) RETURNING 1
)
SELECT count(*) FROM gone`

// inboxRow receives a record of each row.
type inboxRow struct {
	store.InboxRecord
	hash                              waybill.ID
	lease, retry, processed, received *time.Time
	dest                              []any
}

func newInboxRow(e encoder) *inboxRow {
	r := &inboxRow{}
	r.dest = []any{
		&r.Group, e.scanID(&r.Key), e.scanID(&r.Event), &r.Tenant, &r.Type, e.scanID(&r.hash), &r.State, e.scanID(&r.Owner), &r.Fence,
		&r.Attempts, &r.lease, &r.retry, &r.processed, &r.received, &r.LastError, &r.Stored, &r.Now,
	}
	return r
}

// there reports whether the row has a record.
func (r *inboxRow) there() bool { return r.State >= 0 }

// record returns the record that was read.
func (r *inboxRow) record() store.InboxRecord {
	out := r.InboxRecord
	out.Hash, out.Now = r.hash, r.Now.UTC()
	out.LeaseUntil, out.NextRetryAt, out.ProcessedAt, out.ReceivedAt = timeOf(r.lease), timeOf(r.retry), timeOf(r.processed), timeOf(r.received)
	return out
}

// timeOf converts a time that may be NULL.
func timeOf(t *time.Time) time.Time {
	if t == nil {
		return time.Time{}
	}
	return t.UTC()
}

// oneRecord runs a statement that returns at most one record, and reports
// whether it returned one.
func (c *core) oneRecord(ctx context.Context, query string, args ...any) (rec store.InboxRecord, there bool, err error) {
	r := newInboxRow(c.db)
	rows, err := c.db.query(ctx, query, args...)
	err = collect(rows, err, func() error { rec, there = r.record(), true; return nil }, r.dest...)
	if err != nil {
		return store.InboxRecord{}, false, c.explain(err)
	}
	return rec, there, nil
}

// queryRecords runs a statement that follows an index.
func (c *core) queryRecords(ctx context.Context, query string, args ...any) ([]store.InboxRecord, error) {
	var out []store.InboxRecord
	r := newInboxRow(c.db)
	rows, err := c.db.ordered(ctx, query, args...)
	err = collect(rows, err, func() error { out = append(out, r.record()); return nil }, r.dest...)
	if err != nil {
		return nil, c.explain(err)
	}
	return out, nil
}

// FindRecord implements [driver.InboxRecords].
func (c *core) FindRecord(ctx context.Context, group string, key waybill.ID) (store.InboxRecord, bool, error) {
	return c.oneRecord(ctx, c.sql.findRecord, group, key.UUID())
}

// DueRecords implements [driver.InboxRecords].
func (c *core) DueRecords(ctx context.Context, group string, limit int) ([]store.InboxRecord, error) {
	return c.queryRecords(ctx, limited(c.sql.dueRecords, limit), group)
}

// ListApplied implements [driver.Applied].
func (c *core) ListApplied(ctx context.Context, group string, limit int) ([]store.InboxRecord, error) {
	return c.queryRecords(ctx, limited(c.sql.lastApplied, limit), group)
}

// ListRecords implements [driver.InboxRecords]. It returns succeeded records,
// too, if the filter asks for them.
func (c *core) ListRecords(
	ctx context.Context, f store.RecordFilter, afterGroup string, afterKey waybill.ID, limit int,
) ([]store.InboxRecord, error) {
	query, states := c.sql.openRecords, []int16{int16(store.InboxProcessing), int16(store.InboxFailed), int16(store.InboxDead)}
	if len(f.States) > 0 {
		states = nil
	}
	for _, state := range f.States {
		if state < store.InboxProcessing || state > store.InboxDead {
			return nil, fmt.Errorf("pgstore: unknown record state %d", state)
		}
		states = append(states, int16(state))
	}
	if slices.Contains(f.States, store.InboxSucceeded) {
		query = c.sql.allRecords
	}
	return c.queryRecords(ctx, limited(query, limit), afterGroup, afterKey.UUID(), f.Group, c.db.int16s(states), f.MinAttempts)
}

// GroupStats implements [driver.InboxRecords].
func (c *core) GroupStats(ctx context.Context, all bool) ([]store.GroupStats, error) {
	var open []store.GroupStats
	var g store.GroupStats
	var due float64
	rows, err := c.db.ordered(ctx, c.sql.openStats)
	err = collect(rows, err, func() error {
		g.OldestDue = time.Duration(due * float64(time.Second))
		open = append(open, g)
		return nil
	}, &g.Group, &g.Processing, &g.Failed, &g.Dead, &g.HighestAttempts, &due)
	if err != nil {
		return nil, c.explain(err)
	}
	if !all {
		return open, nil
	}
	known := make(map[string]bool, len(open))
	for _, g := range open {
		known[g.Group] = true
	}
	var name string
	rows, err = c.db.ordered(ctx, c.sql.allGroups)
	err = collect(rows, err, func() error {
		if !known[name] {
			open = append(open, store.GroupStats{Group: name})
		}
		return nil
	}, &name)
	if err != nil {
		return nil, c.explain(err)
	}
	slices.SortFunc(open, func(a, b store.GroupStats) int { return strings.Compare(a.Group, b.Group) })
	return open, nil
}

// Redrive implements [driver.InboxRecords].
func (c *core) Redrive(ctx context.Context, group string, keys []waybill.ID, limit int) (int, error) {
	query, args := c.sql.redriveDead, []any{group, max(limit, 0)}
	if len(keys) > 0 {
		query, args = c.sql.redriveNamed, append(args, c.db.ids(keys))
	}
	return c.howMany(ctx, query, args...)
}

// PurgeRecords implements [driver.InboxRecords].
func (c *core) PurgeRecords(ctx context.Context, group string, age time.Duration, limit int) (int, error) {
	if err := sqlstore.CheckAge(age); err != nil {
		return 0, fmt.Errorf("pgstore: %w", err)
	}
	n, err := number(ctx, c.db, c.sql.purgeRecords, group, seconds(age), max(limit, 0))
	return n, c.explain(err)
}

// howMany runs a statement that returns the number of rows that it changed for
// an operator.
func (c *core) howMany(ctx context.Context, query string, args ...any) (n int, err error) {
	err = c.audited(ctx, func(db database) (int64, error) {
		n, err = number(ctx, db, query, args...)
		return int64(n), err
	})
	if err != nil {
		return 0, c.explain(err)
	}
	return n, nil
}

// number runs a statement that returns a number.
func number(ctx context.Context, db database, query string, args ...any) (n int, err error) {
	rows, err := db.query(ctx, query, args...)
	err = collect(rows, err, func() error { return nil }, &n)
	return n, err
}
