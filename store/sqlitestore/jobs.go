package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// jobStatements are the statements of reconciliation jobs.
type jobStatements struct {
	claimJob, renewJob, endJob *statement
	findJob, listJobs, jobHeld *statement
	noteSent                   *statement
	sentKeys, forgetSent       *statement
	unrecorded                 *statement
}

const (
	jobColumns = `name, owner, fence, lease_until, started_at, ended_at, next_at, found, sent, skipped, failed, last_error`
	// jobFence is the fence of a run: its arguments are ?1 to ?3.
	jobFence = `name = ?1 AND owner = ?2 AND fence = ?3`
)

func (s *statements) jobsStatements(one func(string) *statement) {
	// Primary key of job, up to jobHeld.
	s.claimJob = one(`INSERT INTO {job} AS j (name, owner, fence, lease_until, started_at)
SELECT ?1, ?2, 1, ?3, ?4 WHERE ?5 <= 0 OR EXISTS (SELECT 1 FROM {job} WHERE name = ?1)
ON CONFLICT (name) DO UPDATE SET owner = ?2, fence = j.fence + 1, lease_until = ?3, started_at = ?4
WHERE (j.owner IS NULL OR j.lease_until <= ?4) AND (?5 < 0 OR j.fence = ?5)`)
	s.renewJob = one(`UPDATE {job} SET lease_until = ?4 WHERE ` + jobFence)
	s.endJob = one(`UPDATE {job} SET owner = NULL, lease_until = NULL, ended_at = ?4, next_at = ?5, found = ?6, sent = ?7, skipped = ?8,
 failed = ?9, last_error = ?10 WHERE ` + jobFence)
	s.findJob = one(`SELECT ` + jobColumns + ` FROM {job} WHERE name = ?`)
	s.listJobs = one(`SELECT ` + jobColumns + ` FROM {job} ORDER BY name`)
	s.jobHeld = one(`SELECT EXISTS (SELECT 1 FROM {job} WHERE ` + jobFence + `)`)
	// Primary key of job_sent.
	s.noteSent = one(`INSERT INTO {job_sent} (job, key_id, event_id, sent_at) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (job, key_id) DO UPDATE SET event_id = ?3, sent_at = ?4`)
	// job_sent_at_idx, and then the primary key.
	s.sentKeys = one(`SELECT key_id, event_id FROM {job_sent} WHERE job = ? AND sent_at >= ?`)
	s.forgetSent = one(`DELETE FROM {job_sent} WHERE job = ?1 AND key_id IN
 (SELECT key_id FROM {job_sent} WHERE job = ?1 AND sent_at < ?2 ORDER BY sent_at LIMIT ?3)`)
	// history_done_idx for the span, and for each event the primary key of
	// inbox.
	p := places(shapeOfOutbox)[store.Delivered]
	s.unrecorded = one(`SELECT ` + strconv.Itoa(int(store.Delivered)) + `, ` + rowColumns + `, ` + p.more + ` FROM ` + p.table + ` AS h
WHERE h.done_at >= ?2 AND h.done_at < ?3 AND (h.done_at, h.id) > (?2, ?4)
 AND NOT EXISTS (SELECT 1 FROM {inbox} AS i WHERE i.consumer_group = ?1 AND i.dedup_id = h.id) ORDER BY h.done_at, h.id LIMIT ?5`)
}

// jobArgs returns the arguments of jobFence.
func jobArgs(a driver.JobAttempt) []any { return []any{a.Name, a.Owner[:], a.Fence} }

// readJobs reads jobColumns, as of now.
func readJobs(rows *sql.Rows, err error, now time.Time) ([]store.JobRecord, error) {
	var list []store.JobRecord
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var r store.JobRecord
		var lease, started, ended, next sql.NullInt64
		var lastError sql.NullString
		err := rows.Scan(&r.Name, (*scanID)(&r.Owner), &r.Fence, &lease, &started, &ended, &next, &r.Found, &r.Sent, &r.Skipped, &r.Failed, &lastError)
		if err != nil {
			return err
		}
		r.LeaseUntil, r.StartedAt, r.EndedAt, r.Next = timeOf(lease), timeOf(started), timeOf(ended), timeOf(next)
		r.LastError, r.Now = lastError.String, now
		list = append(list, r)
		return nil
	})
	return list, err
}

// ClaimJob implements [driver.JobClaimer]. It is one write transaction: of
// several concurrent claims one comes first, and the others see its result. A
// claim that meets a run in the middle of a commit also waits for that commit
// and sees its result.
func (s *backend) ClaimJob(ctx context.Context, c driver.JobClaim) (store.JobRecord, bool, error) {
	var rec store.JobRecord
	taken := false
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		// Read the clock after taking the lock: the wait must not shorten the
		// lease.
		now := clock()
		n, err := affected(t.exec(ctx, s.sql.claimJob, c.Name, c.Owner[:], micros(now.Add(c.Lease)), micros(now), c.Seen))
		if err != nil {
			return err
		}
		taken = n == 1
		rows, err := t.query(ctx, s.sql.findJob, c.Name)
		list, err := readJobs(rows, err, now)
		rec = store.JobRecord{Now: now}
		if len(list) == 1 {
			rec = list[0]
		}
		return err
	})
	if err != nil {
		return store.JobRecord{}, false, err
	}
	return rec, taken, nil
}

// changeJob runs a statement that changes the job of a run, and reports whether
// it did.
func (s *backend) changeJob(ctx context.Context, st *statement, args func(now time.Time) []any) (bool, error) {
	did := false
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		n, err := affected(t.exec(ctx, st, args(clock())...))
		did = n == 1
		return err
	})
	return did && err == nil, err
}

// RenewJob implements [driver.JobClaimer].
func (s *backend) RenewJob(ctx context.Context, a driver.JobAttempt, lease time.Duration) (bool, error) {
	return s.changeJob(ctx, s.sql.renewJob, func(now time.Time) []any { return append(jobArgs(a), micros(now.Add(lease))) })
}

// EndJob implements [driver.JobClaimer].
func (s *backend) EndJob(ctx context.Context, a driver.JobAttempt, end driver.JobEnd) (bool, error) {
	var next any
	if !end.Next.IsZero() {
		next = micros(end.Next)
	}
	return s.changeJob(ctx, s.sql.endJob, func(now time.Time) []any {
		return append(jobArgs(a), micros(now), next, end.Found, end.Sent, end.Skipped, end.Failed, errorText(end.Error))
	})
}

// listJobs reads jobs.
func (s *backend) listJobs(ctx context.Context, st *statement, now time.Time, args ...any) ([]store.JobRecord, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	rows, err := s.query(ctx, st, args...)
	list, err := readJobs(rows, err, now)
	if err != nil {
		return nil, s.explain(err)
	}
	return list, nil
}

// FindJob implements [driver.JobRecords].
func (s *backend) FindJob(ctx context.Context, name string) (store.JobRecord, bool, error) {
	now := clock()
	list, err := s.listJobs(ctx, s.sql.findJob, now, name)
	if err != nil || len(list) == 0 {
		return store.JobRecord{Now: now}, false, err
	}
	return list[0], true, nil
}

// ListJobs implements [driver.JobRecords].
func (s *backend) ListJobs(ctx context.Context) ([]store.JobRecord, error) {
	return s.listJobs(ctx, s.sql.listJobs, clock())
}

// RememberSent implements [driver.JobSender]. A takeover needs the write lock,
// which the transaction has from here to its end.
func (s *backend) RememberSent(ctx context.Context, tx *sql.Tx, a driver.JobAttempt, sent []driver.Sent) (bool, error) {
	if tx == nil {
		return false, fmt.Errorf("sqlitestore: remember: %w", waybill.ErrNoTx)
	}
	ctx, w, err := s.whose(ctx, tx)
	if err != nil {
		return false, err
	}
	t := txTarget{s, tx}
	if ctx, err = s.enter(ctx, t, w != nil); err != nil {
		return false, err
	}
	now := micros(clock())
	held := false
	rows, err := t.query(ctx, s.sql.jobHeld, jobArgs(a)...)
	if _, err := scanOne(rows, err, &held); err != nil {
		return false, s.refused(err)
	}
	if !held {
		return false, nil
	}
	for _, one := range sent {
		if _, err := t.exec(ctx, s.sql.noteSent, a.Name, one.Key[:], one.Event[:], now); err != nil {
			return false, s.refused(err)
		}
	}
	return true, nil
}

// SentKeys implements [driver.JobRecords].
func (s *backend) SentKeys(ctx context.Context, name string, age time.Duration) ([]driver.Sent, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	var list []driver.Sent
	rows, err := s.query(ctx, s.sql.sentKeys, name, micros(clock().Add(-age)))
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var one driver.Sent
		if err := rows.Scan((*scanID)(&one.Key), (*scanID)(&one.Event)); err != nil {
			return err
		}
		list = append(list, one)
		return nil
	})
	if err != nil {
		return nil, s.explain(err)
	}
	return list, nil
}

// ForgetSent implements [driver.JobRecords].
func (s *backend) ForgetSent(ctx context.Context, name string, age time.Duration, limit int) (int, error) {
	var n int64
	err := s.within(ctx, func(ctx context.Context, t txTarget) (err error) {
		n, err = affected(t.exec(ctx, s.sql.forgetSent, name, micros(clock().Add(-age)), max(limit, 0)))
		return err
	})
	if err != nil {
		return 0, err
	}
	return int(n), nil
}

// DeliveredWithoutRecord implements [driver.HistoryAudit].
func (s *backend) DeliveredWithoutRecord(ctx context.Context, group string, span driver.HistorySpan, limit int) ([]store.Record, error) {
	return s.records(ctx, s.sql.unrecorded, group, micros(span.From), micros(span.To), span.After[:], max(limit, 0))
}
