package mysqlstore

import (
	"bytes"
	"cmp"
	"context"
	"database/sql"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// jobStatements holds the SQL of reconciliation jobs.
type jobStatements struct {
	claimNewJob, claimJob, renewJob, endJob string
	clock, findJob, listJobs                string
	lockJob, noteSent, noteSentRow          string
	noteSentMet, sentKeys                   string
	oldSent, dropSent, unrecorded           string
}

const (
	// jobColumns are the columns of a whole job, in forms that the driver does
	// not convert, and the time of the read.
	jobColumns = `name, owner, fence, ` + micros + `lease_until), ` + micros + `started_at), ` + micros + `ended_at), ` + micros + `next_at),
 found, sent, skipped, failed, CAST(last_error AS BINARY), ` + micros + `UTC_TIMESTAMP(6))`
	// jobHeld checks the fence of a run.
	jobHeld = `name = ? AND owner = ? AND fence = ?`
)

func newJobStatements(r func(string) string) jobStatements {
	return jobStatements{
		// Primary key of job, up to lockJob.
		claimNewJob: r(`INSERT INTO {job} (name, owner, fence, lease_until, started_at) VALUES (?, ?, 1, ` + fromNow + `, UTC_TIMESTAMP(6))`),
		claimJob: r(`UPDATE {job} SET owner = ?, fence = fence + 1, lease_until = ` + fromNow + `, started_at = UTC_TIMESTAMP(6)
WHERE name = ? AND (owner IS NULL OR lease_until <= UTC_TIMESTAMP(6)) AND (? < 0 OR fence = ?)`),
		renewJob: r(`UPDATE {job} SET lease_until = ` + fromNow + ` WHERE ` + jobHeld),
		endJob: r(`UPDATE {job} SET owner = NULL, lease_until = NULL, ended_at = UTC_TIMESTAMP(6), next_at = {next}, found = ?, sent = ?, skipped = ?,
 failed = ?, last_error = ` + utf8Argument + ` WHERE ` + jobHeld),
		clock:    `SELECT ` + micros + `UTC_TIMESTAMP(6))`,
		findJob:  r(`SELECT ` + jobColumns + ` FROM {job} WHERE name = ?`),
		listJobs: r(`SELECT ` + jobColumns + ` FROM {job} ORDER BY name`),
		lockJob:  r(`SELECT fence FROM {job} WHERE ` + jobHeld + ` FOR UPDATE`),

		// Primary key of job_sent.
		noteSent:    r(`INSERT INTO {job_sent} (job, key_id, event_id, sent_at) VALUES `),
		noteSentRow: `(x'{job}', x'{key}', x'{event}', UTC_TIMESTAMP(6))`,
		noteSentMet: ` ON DUPLICATE KEY UPDATE event_id = VALUES(event_id), sent_at = VALUES(sent_at)`,
		// Index sent_at (job, sent_at), then the primary key.
		sentKeys: r(`SELECT key_id, event_id FROM {job_sent} FORCE INDEX (sent_at)
WHERE job = ? AND sent_at >= UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND`),
		oldSent: r(`SELECT key_id FROM {job_sent} FORCE INDEX (sent_at) WHERE job = ? AND sent_at < UTC_TIMESTAMP(6) - INTERVAL ? MICROSECOND
ORDER BY sent_at LIMIT {limit} FOR UPDATE SKIP LOCKED`),
		dropSent: r(`DELETE FROM {job_sent} WHERE job = ? AND key_id IN ({marks})`),
		// Index done_at for the time span; for each event the primary key of
		// inbox.
		unrecorded: r(`SELECT ` + strconv.Itoa(int(store.Delivered)) + ` AS state, ` + readColumns + `, ` + places[store.Delivered].more + `
FROM {history} AS o FORCE INDEX (done_at) WHERE o.done_at >= TIMESTAMP'{from}' AND o.done_at < TIMESTAMP'{to}'
 AND (o.done_at > TIMESTAMP'{from}' OR o.id > x'{after}')
 AND NOT EXISTS (SELECT 1 FROM {inbox} AS i WHERE i.consumer_group = x'{group}' AND i.dedup_id = o.id)
ORDER BY o.done_at, o.id LIMIT {limit}`),
	}
}

// jobArgs returns the arguments of jobHeld.
func jobArgs(a driver.JobAttempt) []any { return []any{[]byte(a.Name), a.Owner[:], a.Fence} }

// ClaimJob implements [driver.JobClaimer]. Every statement is a transaction of
// its own, and the one that takes the job is conditional: of several concurrent
// claims one changes the row, and the others, which waited for it, no longer
// match.
func (s *backend) ClaimJob(ctx context.Context, c driver.JobClaim) (store.JobRecord, bool, error) {
	// Without autocommit nothing would be committed.
	if _, err := s.facts(ctx, s.db); err != nil {
		return store.JobRecord{}, false, err
	}
	for round := 0; ; round++ {
		err := s.claimJobOnce(ctx, c)
		if err != nil && (number(err) != errDeadlock || round == maxRounds) {
			return store.JobRecord{}, false, s.explain(err)
		}
		if err == nil {
			break
		}
	}
	rec, _, err := s.FindJob(ctx, c.Name)
	return rec, err == nil && rec.Owner == c.Owner, err
}

func (s *backend) claimJobOnce(ctx context.Context, c driver.JobClaim) error {
	n, err := affected(s.db.ExecContext(ctx, s.sql.claimJob, c.Owner[:], c.Lease.Microseconds(), []byte(c.Name), c.Seen, c.Seen))
	if err != nil || n == 1 || c.Seen > 0 {
		return err
	}
	_, err = s.db.ExecContext(ctx, s.sql.claimNewJob, []byte(c.Name), c.Owner[:], c.Lease.Microseconds())
	// Another process has claimed or just created it.
	if number(err) == errDuplicate {
		return nil
	}
	return err
}

// RenewJob implements [driver.JobClaimer].
func (s *backend) RenewJob(ctx context.Context, a driver.JobAttempt, lease time.Duration) (bool, error) {
	n, err := affected(s.db.ExecContext(ctx, s.sql.renewJob, append([]any{lease.Microseconds()}, jobArgs(a)...)...))
	return n == 1, s.explain(err)
}

// EndJob implements [driver.JobClaimer].
func (s *backend) EndJob(ctx context.Context, a driver.JobAttempt, end driver.JobEnd) (bool, error) {
	next := `NULL`
	if !end.Next.IsZero() {
		next = `TIMESTAMP'` + utc(end.Next) + `'`
	}
	args := append([]any{end.Found, end.Sent, end.Skipped, end.Failed, errorArg(end.Error)}, jobArgs(a)...)
	n, err := affected(s.db.ExecContext(ctx, fill(s.sql.endJob, "{next}", next), args...))
	return n == 1, s.explain(err)
}

// jobs reads jobColumns.
func (s *backend) jobs(ctx context.Context, query string, args ...any) ([]store.JobRecord, error) {
	var list []store.JobRecord
	var r store.JobRecord
	var lease, started, ended, next sql.NullInt64
	var now int64
	var lastError []byte
	dest := []any{
		&r.Name, (*scanID)(&r.Owner), &r.Fence, &lease, &started, &ended, &next, &r.Found, &r.Sent, &r.Skipped, &r.Failed, &lastError, &now,
	}
	err := each(ctx, s.db, query, args, func() {
		r.LeaseUntil, r.StartedAt, r.EndedAt, r.Next = timeOf(lease), timeOf(started), timeOf(ended), timeOf(next)
		r.LastError, r.Now = string(lastError), time.UnixMicro(now).UTC()
		list = append(list, r)
	}, dest...)
	if err != nil {
		return nil, s.explain(err)
	}
	return list, nil
}

// FindJob implements [driver.JobRecords].
func (s *backend) FindJob(ctx context.Context, name string) (store.JobRecord, bool, error) {
	list, err := s.jobs(ctx, s.sql.findJob, []byte(name))
	if err != nil {
		return store.JobRecord{}, false, err
	}
	if len(list) == 1 {
		return list[0], true, nil
	}
	var now int64
	if err := each(ctx, s.db, s.sql.clock, nil, nil, &now); err != nil {
		return store.JobRecord{}, false, s.explain(err)
	}
	return store.JobRecord{Now: time.UnixMicro(now).UTC()}, false, nil
}

// ListJobs implements [driver.JobRecords].
func (s *backend) ListJobs(ctx context.Context) ([]store.JobRecord, error) {
	return s.jobs(ctx, s.sql.listJobs)
}

// RememberSent implements [driver.JobSender]. It locks the job's row until the
// transaction ends: a take-over of the job waits for that.
func (s *backend) RememberSent(ctx context.Context, tx *sql.Tx, a driver.JobAttempt, sent []driver.Sent) (bool, error) {
	if tx == nil {
		return false, fmt.Errorf("mysqlstore: remember: %w", waybill.ErrNoTx)
	}
	f, err := s.facts(ctx, tx)
	if err != nil {
		return false, sqltx.Done(err)
	}
	if err := proveOpen(ctx, tx, f); err != nil {
		return false, s.refused(err)
	}
	var fence int64
	if err := each(ctx, tx, s.sql.lockJob, jobArgs(a), nil, &fence); err != nil {
		return false, s.refused(err)
	}
	if fence != a.Fence || fence == 0 {
		return false, nil
	}
	sorted := slices.SortedFunc(slices.Values(sent), func(a, b driver.Sent) int { return bytes.Compare(a.Key[:], b.Key[:]) })
	for part := range parts(sorted, maxIntakes) {
		rows := make([]string, len(part))
		for i, one := range part {
			rows[i] = strings.NewReplacer("{job}", hexText(a.Name), "{key}", hexID(one.Key), "{event}", hexID(one.Event)).Replace(s.sql.noteSentRow)
		}
		if _, err := tx.ExecContext(ctx, s.sql.noteSent+strings.Join(rows, ", ")+s.sql.noteSentMet); err != nil {
			return false, s.refused(err)
		}
	}
	return true, nil
}

// SentKeys implements [driver.JobRecords].
func (s *backend) SentKeys(ctx context.Context, name string, age time.Duration) ([]driver.Sent, error) {
	var list []driver.Sent
	var one driver.Sent
	err := each(ctx, s.db, s.sql.sentKeys, []any{[]byte(name), age.Microseconds()}, func() {
		list = append(list, one)
	}, (*scanID)(&one.Key), (*scanID)(&one.Event))
	if err != nil {
		return nil, s.explain(err)
	}
	return list, nil
}

// ForgetSent implements [driver.JobRecords].
func (s *backend) ForgetSent(ctx context.Context, name string, age time.Duration, limit int) (int, error) {
	forgotten := 0
	err := s.transact(ctx, func(tx *sql.Tx) error {
		var old []waybill.ID
		var id scanID
		query := fill(s.sql.oldSent, "{limit}", strconv.Itoa(max(limit, 0)))
		if err := each(ctx, tx, query, []any{[]byte(name), age.Microseconds()}, func() { old = append(old, waybill.ID(id)) }, &id); err != nil {
			return err
		}
		for part := range parts(sortedIDs(old), maxIntakes) {
			args := append([]any{[]byte(name)}, idArgs(part)...)
			if _, err := tx.ExecContext(ctx, fill(s.sql.dropSent, "{marks}", marks(len(part))), args...); err != nil {
				return err
			}
		}
		forgotten = len(old)
		return nil
	})
	if err != nil {
		return 0, err
	}
	return forgotten, nil
}

// DeliveredWithoutRecord implements [driver.HistoryAudit].
func (s *backend) DeliveredWithoutRecord(ctx context.Context, group string, span driver.HistorySpan, limit int) ([]store.Record, error) {
	query := strings.NewReplacer("{group}", hexText(group), "{from}", utc(span.From), "{to}", utc(span.To), "{after}", hexID(span.After),
		"{limit}", strconv.Itoa(max(limit, 0))).Replace(s.sql.unrecorded)
	list, err := s.records(ctx, query)
	slices.SortFunc(list, func(a, b store.Record) int {
		return cmp.Or(a.EndedAt.Compare(b.EndedAt), bytes.Compare(a.ID[:], b.ID[:]))
	})
	return list, err
}
