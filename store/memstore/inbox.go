package memstore

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// inboxKey identifies a record.
type inboxKey struct {
	group string
	key   waybill.ID
}

func inboxKeyOf(in store.InboxEntry) inboxKey { return inboxKey{in.Group, in.Key} }

// received is a record of the inbox, and the open transaction that will change
// it.
type received struct {
	store.InboxRecord
	taker *txn
}

// intake is a change of the inbox that a transaction makes at its commit.
type intake struct {
	in      store.InboxEntry
	owner   waybill.ID
	attempt bool // claimed before; otherwise a new record
}

// Accept implements [driver.InboxTx].
func (s *backend[T]) Accept(ctx context.Context, tx T, owner waybill.ID, in []store.InboxEntry) ([]driver.AcceptResult, error) {
	x, err := s.txnOf(ctx, tx)
	if err != nil {
		return nil, fmt.Errorf("memstore: accept: %w", err)
	}
	t := s.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.over {
		return nil, fmt.Errorf("memstore: accept: %w", waybill.ErrTxDone)
	}
	out := make([]driver.AcceptResult, len(in))
	for i, one := range in {
		k := inboxKeyOf(one)
		r := t.inbox[k]
		switch {
		case t.accepting[k] != nil || r != nil && r.taker != nil:
			out[i].Busy = true
		case r != nil:
			out[i].Record = r.copy()
		default:
			out[i].Accepted = true
			t.accepting[k] = x
			x.intakes = append(x.intakes, intake{in: one, owner: owner})
		}
	}
	return out, nil
}

// Succeed implements [driver.InboxTx].
func (s *backend[T]) Succeed(ctx context.Context, tx T, a driver.Attempt) (bool, error) {
	x, err := s.txnOf(ctx, tx)
	if err != nil {
		return false, fmt.Errorf("memstore: succeed: %w", err)
	}
	t := s.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.over {
		return false, fmt.Errorf("memstore: succeed: %w", waybill.ErrTxDone)
	}
	r, err := t.receivedBy(ctx, inboxKey{a.Group, a.Key}, x)
	if err != nil || r == nil || !r.heldBy(a) {
		return false, err
	}
	r.taker = x
	x.intakes = append(x.intakes, intake{in: r.InboxEntry, owner: a.Owner, attempt: true})
	return true, nil
}

// receivedBy returns a record once no other transaction will change it; mu is
// held, but not during the wait.
func (t *tables) receivedBy(ctx context.Context, k inboxKey, x *txn) (*received, error) {
	for {
		other := t.accepting[k]
		if r := t.inbox[k]; r != nil {
			other = r.taker
		}
		if other == nil || other == x {
			return t.inbox[k], nil
		}
		if err := t.await(ctx, other); err != nil {
			return nil, err
		}
	}
}

func (r *received) heldBy(a driver.Attempt) bool {
	return r.State == store.InboxProcessing && r.Owner == a.Owner && r.Fence == a.Fence
}

// copy returns the record with the current time.
func (r *received) copy() store.InboxRecord {
	c := r.InboxRecord
	c.Stored = bytes.Clone(c.Stored)
	c.Now = clock()
	return c
}

// settleIntakes applies the inbox changes of a committing transaction; mu is
// held.
func (x *txn) settleIntakes() {
	now := clock()
	for _, in := range x.intakes {
		k := inboxKeyOf(in.in)
		r := x.tables.inbox[k]
		if !in.attempt {
			r = &received{InboxRecord: store.InboxRecord{InboxEntry: in.in, Owner: in.owner, Fence: 1, Attempts: 1, ReceivedAt: now}}
			x.tables.inbox[k] = r
		}
		r.State, r.ProcessedAt, r.LeaseUntil = store.InboxSucceeded, now, time.Time{}
	}
}

// forgetIntakes releases records from the n-th on; mu is held.
func (x *txn) forgetIntakes(n int) {
	for _, in := range x.intakes[n:] {
		k := inboxKeyOf(in.in)
		if in.attempt {
			x.tables.inbox[k].taker = nil
		} else {
			delete(x.tables.accepting, k)
		}
	}
	x.intakes = x.intakes[:n]
}

// ClaimEvent implements [driver.Claimer].
func (t *tables) ClaimEvent(
	ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, maxAttempts int, kept []byte,
) (store.InboxRecord, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := inboxKeyOf(in)
	r, err := t.receivedBy(ctx, k, nil)
	if err != nil {
		return store.InboxRecord{}, false, fmt.Errorf("memstore: claim: %w", err)
	}
	now := clock()
	if r == nil {
		r = &received{InboxRecord: store.InboxRecord{InboxEntry: in, State: store.InboxFailed, ReceivedAt: now}}
		t.inbox[k] = r
	}
	free := r.State == store.InboxProcessing && !r.LeaseUntil.After(now) || r.State == store.InboxFailed && !r.NextRetryAt.After(now)
	if !free || r.Type != in.Type || r.Hash != in.Hash {
		return r.copy(), false, nil
	}
	if r.Attempts >= maxAttempts {
		r.State, r.ProcessedAt, r.LeaseUntil, r.NextRetryAt = store.InboxDead, now, time.Time{}, time.Time{}
		r.LastError = driver.ExceededError(r.LastError)
		return r.copy(), false, nil
	}
	r.State, r.Owner, r.LeaseUntil, r.NextRetryAt = store.InboxProcessing, owner, now.Add(lease), time.Time{}
	r.Fence++
	r.Attempts++
	if kept != nil {
		r.Stored = bytes.Clone(kept)
	}
	return r.copy(), true, nil
}

// FailEvent implements [driver.Claimer].
func (t *tables) FailEvent(ctx context.Context, in store.InboxEntry, f driver.Failure) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	k := inboxKeyOf(in)
	r, err := t.receivedBy(ctx, k, nil)
	if err != nil {
		return false, fmt.Errorf("memstore: fail: %w", err)
	}
	now := clock()
	if f.Fence == 0 {
		if r != nil {
			return false, nil
		}
		r = &received{InboxRecord: store.InboxRecord{InboxEntry: in, Fence: 1, Attempts: 1, ReceivedAt: now}}
		t.inbox[k] = r
	} else if r == nil || !r.heldBy(driver.Attempt{Owner: f.Owner, Fence: f.Fence}) {
		return false, nil
	}
	r.Owner, r.LeaseUntil, r.LastError = waybill.ID{}, time.Time{}, driver.CutError(f.Error)
	if f.Stored != nil {
		r.Stored = bytes.Clone(f.Stored)
	}
	if f.Dead {
		r.State, r.ProcessedAt = store.InboxDead, now
	} else {
		r.State, r.NextRetryAt = store.InboxFailed, now.Add(f.Delay)
	}
	return true, nil
}

// ReleaseEvent implements [driver.Claimer].
func (t *tables) ReleaseEvent(ctx context.Context, a driver.Attempt) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.receivedBy(ctx, inboxKey{a.Group, a.Key}, nil)
	if err != nil || r == nil || !r.heldBy(a) {
		return false, err
	}
	r.State, r.Owner, r.LeaseUntil, r.NextRetryAt = store.InboxFailed, waybill.ID{}, time.Time{}, clock()
	r.Attempts--
	return true, nil
}

// FindRecord implements [driver.InboxRecords].
func (t *tables) FindRecord(_ context.Context, group string, key waybill.ID) (store.InboxRecord, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.inbox[inboxKey{group, key}]
	if r == nil {
		return store.InboxRecord{}, false, nil
	}
	return r.copy(), true, nil
}

// records returns copies of the matching records, in the order of group and
// key.
func (t *tables) records(match func(r *received) bool) []store.InboxRecord {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []store.InboxRecord
	for _, r := range t.inbox {
		if match(r) {
			out = append(out, r.copy())
		}
	}
	slices.SortFunc(out, func(a, b store.InboxRecord) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), bytes.Compare(a.Key[:], b.Key[:]))
	})
	return out
}

// DueRecords implements [driver.InboxRecords].
func (t *tables) DueRecords(_ context.Context, group string, limit int) ([]store.InboxRecord, error) {
	now := clock()
	due := func(r *store.InboxRecord) time.Time {
		if r.State == store.InboxFailed {
			return r.NextRetryAt
		}
		return r.LeaseUntil
	}
	out := t.records(func(r *received) bool {
		return r.Group == group && r.Stored != nil && (r.State == store.InboxFailed || r.State == store.InboxProcessing) &&
			!due(&r.InboxRecord).After(now)
	})
	slices.SortStableFunc(out, func(a, b store.InboxRecord) int { return due(&a).Compare(due(&b)) })
	return out[:min(len(out), max(limit, 0))], nil
}

// ListRecords implements [driver.InboxRecords].
func (t *tables) ListRecords(
	_ context.Context, f store.RecordFilter, afterGroup string, afterKey waybill.ID, limit int,
) ([]store.InboxRecord, error) {
	for _, state := range f.States {
		if state < store.InboxProcessing || state > store.InboxDead {
			return nil, fmt.Errorf("memstore: unknown record state %d", state)
		}
	}
	out := t.records(func(r *received) bool {
		behind := cmp.Or(strings.Compare(r.Group, afterGroup), bytes.Compare(r.Key[:], afterKey[:])) > 0
		state := r.State != store.InboxSucceeded
		if len(f.States) > 0 {
			state = slices.Contains(f.States, r.State)
		}
		return behind && state && (f.Group == "" || r.Group == f.Group) && r.Attempts >= f.MinAttempts
	})
	return out[:min(len(out), max(limit, 0))], nil
}

// ListApplied implements [driver.Applied].
func (t *tables) ListApplied(_ context.Context, group string, limit int) ([]store.InboxRecord, error) {
	out := t.records(func(r *received) bool { return r.Group == group && r.State == store.InboxSucceeded })
	slices.SortStableFunc(out, func(a, b store.InboxRecord) int { return b.ProcessedAt.Compare(a.ProcessedAt) })
	return out[:min(len(out), max(limit, 0))], nil
}

// GroupStats implements [driver.InboxRecords].
func (t *tables) GroupStats(_ context.Context, all bool) ([]store.GroupStats, error) {
	var out []store.GroupStats
	for _, r := range t.records(func(r *received) bool { return all || r.State != store.InboxSucceeded }) {
		if len(out) == 0 || out[len(out)-1].Group != r.Group {
			out = append(out, store.GroupStats{Group: r.Group})
		}
		g := &out[len(out)-1]
		switch r.State {
		case store.InboxProcessing:
			g.Processing++
		case store.InboxFailed:
			g.Failed++
			g.HighestAttempts = max(g.HighestAttempts, r.Attempts)
			g.OldestDue = max(g.OldestDue, r.Now.Sub(r.NextRetryAt))
		case store.InboxDead:
			g.Dead++
		case store.InboxSucceeded:
		}
	}
	return out, nil
}

// Redrive implements [driver.InboxRecords].
func (t *tables) Redrive(ctx context.Context, group string, keys []waybill.ID, limit int) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	for k, r := range t.inbox {
		named := slices.Contains(keys, k.key) && r.State == store.InboxFailed
		if k.group != group || n >= limit || len(keys) > 0 && !slices.Contains(keys, k.key) || r.State != store.InboxDead && !named {
			continue
		}
		r.State, r.Attempts, r.NextRetryAt, r.ProcessedAt = store.InboxFailed, 0, clock(), time.Time{}
		n++
	}
	t.note(ctx, n)
	return n, nil
}

// PurgeRecords implements [driver.InboxRecords].
func (t *tables) PurgeRecords(_ context.Context, group string, age time.Duration, limit int) (int, error) {
	if age < 0 {
		return 0, fmt.Errorf("memstore: purge: negative age %v", age)
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	cutoff := clock().Add(-age)
	var old []aged[inboxKey]
	for k, r := range t.inbox {
		if k.group == group && r.State == store.InboxSucceeded && r.ProcessedAt.Before(cutoff) {
			old = append(old, aged[inboxKey]{k, r.ProcessedAt})
		}
	}
	old = oldest(old, limit)
	for _, one := range old {
		delete(t.inbox, one.key)
	}
	return len(old), nil
}

// aged is the key of a row that may be deleted.
type aged[K any] struct {
	key K
	at  time.Time
}

// oldest returns the oldest rows, at most limit.
func oldest[K any](rows []aged[K], limit int) []aged[K] {
	slices.SortFunc(rows, func(a, b aged[K]) int { return a.at.Compare(b.at) })
	return rows[:min(len(rows), max(limit, 0))]
}

// IsRetryable implements [driver.RetryClassifier].
func (t *tables) IsRetryable(err error) bool { return errors.Is(err, errDeadlock) }
