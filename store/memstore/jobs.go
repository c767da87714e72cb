package memstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// job is the record of a job, its sent events, and the open transactions that
// will send more.
type job struct {
	store.JobRecord
	sent    map[waybill.ID]sent
	senders map[*txn]struct{}
}

// sent is an event that a job has sent.
type sent struct {
	event waybill.ID
	at    time.Time
}

// sending is an event that a transaction sends for a job at its commit.
type sending struct {
	job  string
	sent []driver.Sent
}

// RememberSent implements [driver.JobSender].
func (s *backend[T]) RememberSent(ctx context.Context, tx T, a driver.JobAttempt, list []driver.Sent) (bool, error) {
	x, err := s.txnOf(ctx, tx)
	if err != nil {
		return false, fmt.Errorf("memstore: remember: %w", err)
	}
	t := s.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.over {
		return false, fmt.Errorf("memstore: remember: %w", waybill.ErrTxDone)
	}
	j := t.jobs[a.Name]
	if !j.heldBy(a) {
		return false, nil
	}
	j.senders[x] = struct{}{}
	x.sendings = append(x.sendings, sending{job: a.Name, sent: slices.Clone(list)})
	return true, nil
}

func (j *job) heldBy(a driver.JobAttempt) bool {
	return j != nil && !j.Owner.IsZero() && j.Owner == a.Owner && j.Fence == a.Fence
}

// settleSendings applies the sent events of a committing transaction; mu is
// held.
func (x *txn) settleSendings() {
	now := clock()
	for _, s := range x.sendings {
		for _, one := range s.sent {
			x.tables.jobs[s.job].sent[one.Key] = sent{event: one.Event, at: now}
		}
	}
}

// forgetSendings drops sent events from the n-th on, and releases the jobs if
// none is left; mu is held.
func (x *txn) forgetSendings(n int) {
	if n == 0 {
		for _, s := range x.sendings {
			delete(x.tables.jobs[s.job].senders, x)
		}
	}
	x.sendings = x.sendings[:n]
}

// quietJob returns a job once no open transaction sends for it; mu is held, but
// not during the wait.
func (t *tables) quietJob(ctx context.Context, name string) (*job, error) {
	for {
		j := t.jobs[name]
		if j == nil || len(j.senders) == 0 {
			return j, nil
		}
		for x := range j.senders {
			if err := t.await(ctx, x); err != nil {
				return nil, err
			}
			break
		}
	}
}

// ClaimJob implements [driver.JobClaimer].
func (t *tables) ClaimJob(ctx context.Context, c driver.JobClaim) (store.JobRecord, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j, err := t.quietJob(ctx, c.Name)
	if err != nil {
		return store.JobRecord{}, false, fmt.Errorf("memstore: claim: %w", err)
	}
	now := clock()
	if j == nil {
		j = &job{JobRecord: store.JobRecord{Name: c.Name}, sent: make(map[waybill.ID]sent), senders: make(map[*txn]struct{})}
	}
	if !j.Owner.IsZero() && j.LeaseUntil.After(now) || c.Seen >= 0 && j.Fence != c.Seen {
		return j.copy(), false, nil
	}
	t.jobs[c.Name] = j
	j.Owner, j.LeaseUntil, j.StartedAt = c.Owner, now.Add(c.Lease), now
	j.Fence++
	return j.copy(), true, nil
}

// copy returns the record with the current time.
func (j *job) copy() store.JobRecord {
	r := j.JobRecord
	r.Now = clock()
	return r
}

// RenewJob implements [driver.JobClaimer].
func (t *tables) RenewJob(_ context.Context, a driver.JobAttempt, lease time.Duration) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	now := clock()
	j := t.jobs[a.Name]
	if !j.heldBy(a) {
		return false, nil
	}
	j.LeaseUntil = now.Add(lease)
	return true, nil
}

// EndJob implements [driver.JobClaimer].
func (t *tables) EndJob(_ context.Context, a driver.JobAttempt, end driver.JobEnd) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.jobs[a.Name]
	if !j.heldBy(a) {
		return false, nil
	}
	j.Owner, j.LeaseUntil, j.EndedAt, j.Next = waybill.ID{}, time.Time{}, clock(), end.Next.UTC().Truncate(time.Microsecond)
	if end.Next.IsZero() {
		j.Next = time.Time{}
	}
	j.Found, j.Sent, j.Skipped, j.Failed, j.LastError = end.Found, end.Sent, end.Skipped, end.Failed, driver.CutError(end.Error)
	return true, nil
}

// FindJob implements [driver.JobRecords].
func (t *tables) FindJob(_ context.Context, name string) (store.JobRecord, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.jobs[name]
	if j == nil {
		return store.JobRecord{Now: clock()}, false, nil
	}
	return j.copy(), true, nil
}

// ListJobs implements [driver.JobRecords].
func (t *tables) ListJobs(context.Context) ([]store.JobRecord, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []store.JobRecord
	for _, name := range slices.Sorted(maps.Keys(t.jobs)) {
		out = append(out, t.jobs[name].copy())
	}
	return out, nil
}

// SentKeys implements [driver.JobRecords].
func (t *tables) SentKeys(_ context.Context, name string, age time.Duration) ([]driver.Sent, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.jobs[name]
	if j == nil {
		return nil, nil
	}
	cutoff := clock().Add(-age)
	var out []driver.Sent
	for key, s := range j.sent {
		if !s.at.Before(cutoff) {
			out = append(out, driver.Sent{Key: key, Event: s.event})
		}
	}
	return out, nil
}

// ForgetSent implements [driver.JobRecords].
func (t *tables) ForgetSent(_ context.Context, name string, age time.Duration, limit int) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	j := t.jobs[name]
	if j == nil {
		return 0, nil
	}
	cutoff := clock().Add(-age)
	var old []aged[waybill.ID]
	for key, s := range j.sent {
		if s.at.Before(cutoff) {
			old = append(old, aged[waybill.ID]{key, s.at})
		}
	}
	old = oldest(old, limit)
	for _, one := range old {
		delete(j.sent, one.key)
	}
	return len(old), nil
}

// DeliveredWithoutRecord implements [driver.HistoryAudit].
func (t *tables) DeliveredWithoutRecord(_ context.Context, group string, span driver.HistorySpan, limit int) ([]store.Record, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []store.Record
	for r := range t.history.all {
		if !r.ended.Before(span.To) {
			break
		}
		after := cmp.Or(r.ended.Compare(span.From), bytes.Compare(r.ID[:], span.After[:])) > 0
		if after && t.inbox[inboxKey{group, r.ID}] == nil {
			out = append(out, store.Record{Row: copyRow(r), State: r.state, EndedAt: r.ended})
		}
	}
	slices.SortFunc(out, func(a, b store.Record) int {
		return cmp.Or(a.EndedAt.Compare(b.EndedAt), bytes.Compare(a.ID[:], b.ID[:]))
	})
	return out[:min(len(out), max(limit, 0))], nil
}
