package pgstore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// jobStatements are the statements of jobs.
type jobStatements struct {
	claimJob, renewJob, endJob string
	findJob, listJobs          string
	rememberSent               string
	sentKeys, forgetSent       string
	unrecorded                 string
}

func newJobStatements(r func(string) string) jobStatements {
	return jobStatements{
		claimJob: r(claimJob), renewJob: r(renewJob), endJob: r(endJob),
		findJob: r(findJob), listJobs: r(listJobs),
		rememberSent: r(rememberSent), sentKeys: r(sentKeys), forgetSent: r(forgetSent),
		unrecorded: r(unrecordedEvents),
	}
}

// jobColumns are the columns of every read of a job j, in the order of
// jobRow.dest. Without a record the fence is -1.
const jobColumns = `coalesce(j.name, ''), j.owner, coalesce(j.fence, -1), j.lease_until, j.started_at, j.ended_at, j.next_at,
 coalesce(j.found, 0), coalesce(j.sent, 0), coalesce(j.skipped, 0), coalesce(j.failed, 0), coalesce(j.last_error, ''), clock_timestamp()`

// claimJob claims a job. $1: its name, $2: the owner, $3: the lease in seconds,
// $4: the fence that was read before, or a negative number. Of several
// concurrent claims, one creates or changes the record; the others wait for
// that statement and check the record afterwards. The lease therefore starts
// after the wait. Primary key of job.
const claimJob = `WITH ` + durable + `
INSERT INTO {job} AS j (name, owner, fence, lease_until, started_at)
SELECT $1::text, $2::uuid, 1, clock_timestamp() + $3::double precision * interval '1 second', clock_timestamp() FROM durable WHERE $4::bigint <= 0
  OR EXISTS (SELECT FROM {job} WHERE name = $1::text)
ON CONFLICT (name) DO UPDATE SET owner = excluded.owner, fence = j.fence + 1,
  lease_until = clock_timestamp() + $3::double precision * interval '1 second', started_at = clock_timestamp()
WHERE (j.owner IS NULL OR j.lease_until <= clock_timestamp()) AND ($4::bigint < 0 OR j.fence = $4::bigint)
RETURNING ` + jobColumns

// jobHeld is the fence of a run: $1 name, $2 owner, $3 fence. Primary key of
// job.
const jobHeld = `name = $1::text AND owner = $2::uuid AND fence = $3::bigint`

const renewJob = `WITH ` + durable + `
UPDATE {job} SET lease_until = clock_timestamp() + $4::double precision * interval '1 second' FROM durable
WHERE ` + jobHeld

// endJob ends a run and releases the job. $4: the time of the next run, $5 to
// $8: the counts of the run, $9: its error.
const endJob = `WITH ` + durable + `
UPDATE {job} SET owner = NULL, lease_until = NULL, ended_at = clock_timestamp(), next_at = $4::timestamptz,
  found = $5::bigint, sent = $6::bigint, skipped = $7::bigint, failed = $8::bigint, last_error = nullif($9::text, '')
FROM durable WHERE ` + jobHeld

// findJob returns the clock even if the job does not exist.
const findJob = `SELECT ` + jobColumns + ` FROM (SELECT) AS once LEFT JOIN {job} j ON j.name = $1::text`

const listJobs = `SELECT ` + jobColumns + ` FROM {job} j ORDER BY j.name`

// rememberSent records what a run sends. $4: keys, $5: the ids of the events.
// The job is locked until the transaction ends, so that a takeover waits for
// the events that this run sends. Primary keys of job and job_sent; keys in
// sorted order.
const rememberSent = `WITH held AS MATERIALIZED (
  SELECT name FROM {job} WHERE ` + jobHeld + ` FOR UPDATE
), noted AS (
  INSERT INTO {job_sent} (job, key_id, event_id, sent_at)
  SELECT held.name, k.key_id, k.event_id, clock_timestamp() FROM held, unnest($4::uuid[], $5::uuid[]) AS k(key_id, event_id) ORDER BY k.key_id
  ON CONFLICT (job, key_id) DO UPDATE SET event_id = excluded.event_id, sent_at = excluded.sent_at
)
SELECT 1 FROM held`

// sentKeys uses job_sent_at_idx (job, sent_at).
const sentKeys = `SELECT key_id, event_id FROM {job_sent}
WHERE job = $1::text AND sent_at >= clock_timestamp() - $2::double precision * interval '1 second'`

// forgetSent finds the oldest keys by job_sent_at_idx and deletes them by the
// primary key. Concurrent runs are safe: each skips the rows that another has
// locked.
const forgetSent = `WITH clock AS MATERIALIZED (SELECT clock_timestamp() - $2::double precision * interval '1 second' AS cutoff),
old AS MATERIALIZED (
  SELECT key_id FROM {job_sent} WHERE job = $1::text AND sent_at < (SELECT cutoff FROM clock)
  ORDER BY sent_at LIMIT $3::bigint FOR UPDATE SKIP LOCKED
), gone AS (
  DELETE FROM {job_sent} WHERE job = $1::text AND key_id = ANY(ARRAY(SELECT key_id FROM old)) RETURNING 1
)
SELECT count(*) FROM gone`

// unrecordedEvents uses history_done_idx (done_at) for the span, and the
// primary key of inbox for each event. $1: the group, $2 and $3: the span, $4:
// the id to start after.
var unrecordedEvents = `SELECT ` + recordColumns(store.Delivered) + ` FROM {history} h
WHERE h.done_at >= $2::timestamptz AND h.done_at < $3::timestamptz AND (h.done_at, h.id) > ($2::timestamptz, $4::uuid)
  AND NOT EXISTS (SELECT FROM {inbox} i WHERE i.consumer_group = $1::text AND i.dedup_id = h.id)
ORDER BY h.done_at, h.id LIMIT $5::bigint`

// jobRow receives a job of each row.
type jobRow struct {
	store.JobRecord
	lease, started, ended, next *time.Time
	dest                        []any
}

func newJobRow(e encoder) *jobRow {
	r := &jobRow{}
	r.dest = []any{
		&r.Name, e.scanID(&r.Owner), &r.Fence, &r.lease, &r.started, &r.ended, &r.next,
		&r.Found, &r.Sent, &r.Skipped, &r.Failed, &r.LastError, &r.Now,
	}
	return r
}

// record returns the job that was read, and whether it exists.
func (r *jobRow) record() (store.JobRecord, bool) {
	out := r.JobRecord
	out.LeaseUntil, out.StartedAt, out.EndedAt, out.Next = timeOf(r.lease), timeOf(r.started), timeOf(r.ended), timeOf(r.next)
	out.Now = r.Now.UTC()
	if r.Fence < 0 {
		return store.JobRecord{Now: out.Now}, false
	}
	return out, true
}

// oneJob runs a statement that returns at most one job, and reports whether it
// returned one.
func (c *core) oneJob(ctx context.Context, query string, args ...any) (rec store.JobRecord, there bool, err error) {
	r := newJobRow(c.db)
	rows, err := c.db.query(ctx, query, args...)
	err = collect(rows, err, func() error { rec, there = r.record(); return nil }, r.dest...)
	if err != nil {
		return store.JobRecord{}, false, c.explain(err)
	}
	return rec, there, nil
}

// ClaimJob implements [driver.JobClaimer].
func (c *core) ClaimJob(ctx context.Context, claim driver.JobClaim) (store.JobRecord, bool, error) {
	rec, taken, err := c.oneJob(ctx, c.sql.claimJob, claim.Name, claim.Owner.UUID(), seconds(claim.Lease), claim.Seen)
	if err != nil || taken {
		return rec, taken, err
	}
	rec, _, err = c.FindJob(ctx, claim.Name)
	return rec, false, err
}

// jobArgs returns the arguments of jobHeld.
func jobArgs(a driver.JobAttempt) []any { return []any{a.Name, a.Owner.UUID(), a.Fence} }

// RenewJob implements [driver.JobClaimer].
func (c *core) RenewJob(ctx context.Context, a driver.JobAttempt, lease time.Duration) (bool, error) {
	return c.did(ctx, c.db, c.sql.renewJob, append(jobArgs(a), seconds(lease)))
}

// EndJob implements [driver.JobClaimer].
func (c *core) EndJob(ctx context.Context, a driver.JobAttempt, end driver.JobEnd) (bool, error) {
	var next any
	if !end.Next.IsZero() {
		next = end.Next.UTC()
	}
	return c.did(ctx, c.db, c.sql.endJob, append(jobArgs(a), next, end.Found, end.Sent, end.Skipped, end.Failed, driver.CutError(end.Error)))
}

// FindJob implements [driver.JobRecords].
func (c *core) FindJob(ctx context.Context, name string) (store.JobRecord, bool, error) {
	return c.oneJob(ctx, c.sql.findJob, name)
}

// ListJobs implements [driver.JobRecords].
func (c *core) ListJobs(ctx context.Context) ([]store.JobRecord, error) {
	var out []store.JobRecord
	r := newJobRow(c.db)
	rows, err := c.db.query(ctx, c.sql.listJobs)
	err = collect(rows, err, func() error {
		rec, _ := r.record()
		out = append(out, rec)
		return nil
	}, r.dest...)
	if err != nil {
		return nil, c.explain(err)
	}
	return out, nil
}

// RememberSent implements [driver.JobSender].
func (s *pgxBackend) RememberSent(ctx context.Context, tx pgx.Tx, a driver.JobAttempt, sent []driver.Sent) (bool, error) {
	if err := s.inOpenTx(ctx, tx, "remember"); err != nil {
		return false, err
	}
	return s.remember(ctx, pgxDB{tx}, a, sent)
}

// RememberSent implements [driver.JobSender].
func (s *sqlBackend) RememberSent(ctx context.Context, tx *sql.Tx, a driver.JobAttempt, sent []driver.Sent) (bool, error) {
	if tx == nil {
		return false, fmt.Errorf("pgstore: remember: %w", waybill.ErrNoTx)
	}
	return s.remember(ctx, sqlDB{tx}, a, sent)
}

func (c *core) remember(ctx context.Context, tx database, a driver.JobAttempt, sent []driver.Sent) (bool, error) {
	keys, events := make([]waybill.ID, len(sent)), make([]waybill.ID, len(sent))
	for i, one := range sent {
		keys[i], events[i] = one.Key, one.Event
	}
	return c.did(ctx, tx, c.sql.rememberSent, append(jobArgs(a), tx.ids(keys), tx.ids(events)))
}

// SentKeys implements [driver.JobRecords].
func (c *core) SentKeys(ctx context.Context, name string, age time.Duration) ([]driver.Sent, error) {
	var out []driver.Sent
	var one driver.Sent
	rows, err := c.db.query(ctx, c.sql.sentKeys, name, seconds(age))
	err = collect(rows, err, func() error { out = append(out, one); return nil }, c.db.scanID(&one.Key), c.db.scanID(&one.Event))
	if err != nil {
		return nil, c.explain(err)
	}
	return out, nil
}

// ForgetSent implements [driver.JobRecords].
func (c *core) ForgetSent(ctx context.Context, name string, age time.Duration, limit int) (int, error) {
	n, err := number(ctx, c.db, c.sql.forgetSent, name, seconds(age), max(limit, 0))
	return n, c.explain(err)
}

// DeliveredWithoutRecord implements [driver.HistoryAudit].
func (c *core) DeliveredWithoutRecord(ctx context.Context, group string, span driver.HistorySpan, limit int) ([]store.Record, error) {
	state := store.Delivered
	return c.records(ctx, &state, nil, c.sql.unrecorded, group, span.From.UTC(), span.To.UTC(), span.After.UUID(), max(limit, 0))
}
