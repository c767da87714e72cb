package memstore

import (
	"bytes"
	"cmp"
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// keyed is the record of an idempotency key.
type keyed struct {
	store.KeyRecord
	resultUntil time.Time // expiry of the answer; zero: with the record
	stripped    bool      // the answer was purged
}

// keyStep is a transaction's change of a key: without a record, the transaction
// has taken the key; with one, it stores that record at its commit.
type keyStep struct {
	id     store.KeyID
	claim  driver.KeyClaim
	fence  int64
	record *keyed
}

// TakeKey implements [driver.KeyTx].
func (s *backend[T]) TakeKey(ctx context.Context, tx T, c driver.KeyClaim) (driver.KeyTaken, error) {
	x, err := s.txnOf(ctx, tx)
	if err != nil {
		return driver.KeyTaken{}, fmt.Errorf("memstore: take: %w", err)
	}
	t := s.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	if x.over {
		return driver.KeyTaken{}, fmt.Errorf("memstore: take: %w", waybill.ErrTxDone)
	}
	if holder := t.keyHolders[c.KeyID]; holder != nil && (holder != x || x.took(c.KeyID) != nil) {
		return driver.KeyTaken{Busy: true}, nil
	}
	r := x.keyed(c.KeyID)
	if !r.free(c) {
		return driver.KeyTaken{Record: r.answer()}, nil
	}
	a := driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: 1}
	if r != nil {
		a.Fence = r.Fence + 1
	}
	x.stepOn(keyStep{id: c.KeyID, claim: c, fence: a.Fence})
	return driver.KeyTaken{Taken: true, Attempt: a}, nil
}

// StoreAnswer implements [driver.KeyTx].
func (s *backend[T]) StoreAnswer(ctx context.Context, tx T, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error) {
	return s.stepKey(ctx, tx, a, true, func(r *keyed) { r.succeed(answer) })
}

// SavePoint implements [driver.KeyTx].
func (s *backend[T]) SavePoint(ctx context.Context, tx T, a driver.KeyAttempt, p store.KeyPoint) (bool, error) {
	return s.stepKey(ctx, tx, a, false, func(r *keyed) { r.Point = store.KeyPoint{Name: p.Name, Data: bytes.Clone(p.Data)} })
}

// stepKey changes the record of an attempt when the transaction commits, if the
// attempt holds the key; with orTaken, also if the transaction itself took the
// key.
func (s *backend[T]) stepKey(ctx context.Context, tx T, a driver.KeyAttempt, orTaken bool, change func(r *keyed)) (bool, error) {
	x, err := s.txnOf(ctx, tx)
	if err != nil {
		return false, fmt.Errorf("memstore: key: %w", err)
	}
	t := s.tables
	t.mu.Lock()
	defer t.mu.Unlock()
	for t.keyHolders[a.KeyID] != nil && t.keyHolders[a.KeyID] != x {
		if err := x.wait(ctx, t.keyHolders[a.KeyID]); err != nil {
			return false, err
		}
	}
	if x.over {
		return false, fmt.Errorf("memstore: key: %w", waybill.ErrTxDone)
	}
	var r *keyed
	old := x.keyed(a.KeyID)
	if taken := x.took(a.KeyID); orTaken && taken != nil && taken.claim.Owner == a.Owner && taken.fence == a.Fence {
		r = old.next(taken.claim)
	} else if old.heldBy(a) {
		c := *old
		r = &c
	} else {
		return false, nil
	}
	change(r)
	x.stepOn(keyStep{id: a.KeyID, record: r})
	return true, nil
}

// took returns the step in which the transaction took a key that it has no
// record for yet; mu is held.
func (x *txn) took(id store.KeyID) *keyStep {
	for i := len(x.keySteps) - 1; i >= 0; i-- {
		if s := &x.keySteps[i]; s.id == id {
			if s.record == nil {
				return s
			}
			return nil
		}
	}
	return nil
}

// keyed returns the record of a key as the transaction sees it; mu is held.
func (x *txn) keyed(id store.KeyID) *keyed {
	for i := len(x.keySteps) - 1; i >= 0; i-- {
		if s := &x.keySteps[i]; s.id == id && s.record != nil {
			return s.record
		}
	}
	return x.tables.keyed[id]
}

// stepOn adds a step and holds the key until the transaction ends; mu is held.
func (x *txn) stepOn(s keyStep) {
	x.keySteps = append(x.keySteps, s)
	x.tables.keyHolders[s.id] = x
}

// settleKeys applies the key changes of a committing transaction; mu is held.
func (x *txn) settleKeys() {
	for _, s := range x.keySteps {
		if s.record != nil {
			x.tables.keyed[s.id] = s.record
		}
	}
}

// forgetKeys undoes the steps from the n-th on, and releases keys that no other
// step holds; mu is held.
func (x *txn) forgetKeys(n int) {
	for _, s := range x.keySteps[n:] {
		if !slices.ContainsFunc(x.keySteps[:n], func(o keyStep) bool { return o.id == s.id }) {
			delete(x.tables.keyHolders, s.id)
		}
	}
	x.keySteps = x.keySteps[:n]
}

// live reports whether there is a record that has not expired.
func (r *keyed) live() bool { return r != nil && (r.ExpiresAt.IsZero() || r.ExpiresAt.After(clock())) }

// free reports whether a key may be taken. Expiry is checked first, then the
// hash, then the state.
func (r *keyed) free(c driver.KeyClaim) bool {
	switch {
	case !r.live():
		return true
	case r.Hash != c.Hash:
		return false
	}
	return r.State == store.KeyFailed || r.State == store.KeyProcessing && !r.LeaseUntil.After(clock())
}

// next returns the record of a new attempt; r, which may be nil, is the record
// of the last attempt.
func (r *keyed) next(c driver.KeyClaim) *keyed {
	now := clock()
	n := &keyed{KeyRecord: store.KeyRecord{
		KeyID: c.KeyID, Hash: c.Hash, Owner: c.Owner, Fence: 1, Attempts: 1, LeaseUntil: now.Add(c.Lease), CreatedAt: now,
	}}
	if r != nil {
		n.Fence = r.Fence + 1
	}
	if r.live() {
		n.Attempts, n.Point, n.CreatedAt = r.Attempts+1, r.Point, r.CreatedAt
	}
	return n
}

func (r *keyed) heldBy(a driver.KeyAttempt) bool {
	return r != nil && r.State == store.KeyProcessing && r.Owner == a.Owner && r.Fence == a.Fence
}

// succeed turns the record into a success.
func (r *keyed) succeed(answer driver.KeyAnswer) {
	now := clock()
	r.State, r.CompletedAt, r.ExpiresAt, r.LeaseUntil = store.KeySucceeded, now, now.Add(answer.Retention), time.Time{}
	r.Ref, r.Result, r.ContentType, r.Lost = answer.Ref, bytes.Clone(answer.Result), answer.ContentType, answer.Lost
	r.Code, r.LastError = "", ""
	if answer.ResultRetention > 0 {
		r.resultUntil = now.Add(answer.ResultRetention)
	}
}

// end ends the attempt.
func (r *keyed) end(e driver.KeyEnd) {
	if e.State == store.KeySucceeded {
		r.succeed(e.Answer)
		return
	}
	now := clock()
	r.State, r.CompletedAt, r.ExpiresAt, r.LeaseUntil = e.State, now, time.Time{}, time.Time{}
	r.Code, r.LastError = e.Code, driver.CutError(e.Error)
	if e.State == store.KeyFailed {
		r.ExpiresAt = now.Add(e.Answer.Retention)
	}
}

// outlived reports whether the answer has expired before its record.
func (r *keyed) outlived() bool { return !r.resultUntil.IsZero() && !r.resultUntil.After(clock()) }

// answer returns the record with the current time.
func (r *keyed) answer() store.KeyRecord {
	c := r.KeyRecord
	c.Result, c.Point.Data = bytes.Clone(c.Result), bytes.Clone(c.Point.Data)
	if r.outlived() {
		c.Result, c.ResultExpired = nil, true
	}
	c.Now = clock()
	return c
}

// keyedAlone returns the record of a key once no transaction holds the key; mu
// is held, but not during the wait.
func (t *tables) keyedAlone(ctx context.Context, id store.KeyID) (*keyed, error) {
	for t.keyHolders[id] != nil {
		if err := t.await(ctx, t.keyHolders[id]); err != nil {
			return nil, err
		}
	}
	return t.keyed[id], nil
}

// ClaimKey implements [driver.KeyClaimer].
func (t *tables) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.keyedAlone(ctx, c.KeyID)
	if err != nil {
		return store.KeyRecord{}, false, fmt.Errorf("memstore: claim: %w", err)
	}
	if !r.free(c) {
		return r.answer(), false, nil
	}
	r = r.next(c)
	t.keyed[c.KeyID] = r
	return r.answer(), true, nil
}

// EndKey implements [driver.KeyClaimer].
func (t *tables) EndKey(ctx context.Context, a driver.KeyAttempt, e driver.KeyEnd) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.keyedAlone(ctx, a.KeyID)
	if err != nil || !r.heldBy(a) {
		return false, err
	}
	r.end(e)
	return true, nil
}

// RenewKey implements [driver.KeyClaimer].
func (t *tables) RenewKey(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r, err := t.keyedAlone(ctx, a.KeyID)
	if err != nil || !r.heldBy(a) {
		return false, err
	}
	r.LeaseUntil = clock().Add(lease)
	return true, nil
}

// FindKey implements [driver.KeyRecords].
func (t *tables) FindKey(_ context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.keyed[id]
	if !r.live() {
		return store.KeyRecord{}, false, nil
	}
	return r.answer(), true, nil
}

func compareKeys(a, b store.KeyID) int {
	return cmp.Or(strings.Compare(a.Tenant, b.Tenant), strings.Compare(a.Operation, b.Operation), strings.Compare(a.Key, b.Key))
}

// ListKeys implements [driver.KeyRecords].
func (t *tables) ListKeys(_ context.Context, f store.KeyFilter, after store.KeyID, limit int) ([]store.KeyRecord, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var out []store.KeyRecord
	for id, r := range t.keyed {
		state := r.State != store.KeySucceeded
		if len(f.States) > 0 {
			state = slices.Contains(f.States, r.State)
		}
		if state && r.live() && compareKeys(id, after) > 0 && (f.Tenant == "" || f.Tenant == id.Tenant) && (f.Operation == "" || f.Operation == id.Operation) {
			c := r.answer()
			c.Result = nil
			out = append(out, c)
		}
	}
	slices.SortFunc(out, func(a, b store.KeyRecord) int { return compareKeys(a.KeyID, b.KeyID) })
	return out[:min(len(out), max(limit, 0))], nil
}

// KeyStats implements [driver.KeyRecords].
func (t *tables) KeyStats(context.Context) (store.KeyStats, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	var s store.KeyStats
	now := clock()
	for _, r := range t.keyed {
		switch {
		case !r.live():
		case r.State == store.KeyFailed:
			s.Failed++
		case r.State == store.KeyUncertain:
			s.Uncertain++
		case r.State == store.KeyProcessing:
			s.Processing++
			if !r.LeaseUntil.After(now) {
				s.Lapsed++
				s.OldestLapsed = max(s.OldestLapsed, now.Sub(r.LeaseUntil))
			}
		}
	}
	return s, nil
}

// ResolveKey implements [driver.KeyRecords].
func (t *tables) ResolveKey(ctx context.Context, id store.KeyID, e driver.KeyEnd) (bool, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := t.keyed[id]
	if r == nil || r.State != store.KeyUncertain {
		return false, nil
	}
	r.end(e)
	t.note(ctx, 1)
	return true, nil
}

// PurgeKeys implements [driver.KeyRecords].
func (t *tables) PurgeKeys(ctx context.Context, limit int) (int, error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	n := 0
	defer func() { t.note(ctx, n) }()
	for id, r := range t.keyed {
		switch {
		case n >= limit:
			return n, nil
		case t.keyHolders[id] != nil: // a transaction will change the record
		case !r.live():
			delete(t.keyed, id)
			n++
		case r.outlived() && !r.stripped:
			r.Result, r.stripped = nil, true
			n++
		}
	}
	return n, nil
}
