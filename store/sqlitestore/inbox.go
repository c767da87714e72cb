package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// inboxKey identifies a record.
type inboxKey struct {
	group string
	key   waybill.ID
}

// Accept implements [driver.InboxTx]. From here to its end, the transaction has
// the write lock, so no other transaction can work on the same events.
func (s *backend) Accept(ctx context.Context, tx *sql.Tx, owner waybill.ID, in []store.InboxEntry) ([]driver.AcceptResult, error) {
	if len(in) == 0 {
		return nil, nil
	}
	ctx, w, err := s.whose(ctx, tx)
	if err != nil {
		return nil, err
	}
	t := txTarget{s, tx}
	if ctx, err = s.enter(ctx, t, w != nil); err != nil {
		return nil, err
	}
	accepted, err := s.acceptNew(ctx, t, owner, in)
	if err != nil {
		return nil, s.refused(err)
	}
	out := make([]driver.AcceptResult, len(in))
	for i, one := range in {
		if out[i].Accepted = accepted[inboxKey{one.Group, one.Key}]; out[i].Accepted {
			if w != nil {
				w.handled(driver.Attempt{Group: one.Group, Key: one.Key, Owner: owner, Fence: 1})
			}
			continue
		}
		if out[i].Record, _, err = s.recordIn(ctx, t, one.Group, one.Key); err != nil {
			return nil, s.refused(err)
		}
	}
	return out, nil
}

// acceptNew records the events that have no record, and returns their keys.
func (s *backend) acceptNew(ctx context.Context, t target, owner waybill.ID, in []store.InboxEntry) (map[inboxKey]bool, error) {
	accepted := make(map[inboxKey]bool, len(in))
	now := micros(clock())
	for len(in) > 0 {
		index, n := pick(len(in))
		args := []any{now, owner[:]}
		for _, one := range in[:n] {
			args = appendIntake(args, one)
		}
		rows, err := t.query(ctx, s.sql.accept[index], args...)
		err = eachRow(rows, err, func(rows *sql.Rows) error {
			var k inboxKey
			if err := rows.Scan(&k.group, (*scanID)(&k.key)); err != nil {
				return err
			}
			accepted[k] = true
			return nil
		})
		if err != nil {
			return nil, err
		}
		in = in[n:]
	}
	return accepted, nil
}

// appendIntake appends the values of intakeColumns.
func appendIntake(args []any, in store.InboxEntry) []any {
	return append(args, in.Group, in.Key[:], in.Event[:], in.Tenant, in.Type, in.Hash[:])
}

// heldArgs returns the arguments of heldRecord.
func heldArgs(a driver.Attempt) []any { return []any{a.Group, a.Key[:], a.Owner[:], a.Fence} }

// Succeed implements [driver.InboxTx]. A takeover needs the write lock, which
// the transaction has from here to its end.
func (s *backend) Succeed(ctx context.Context, tx *sql.Tx, a driver.Attempt) (bool, error) {
	ctx, w, err := s.whose(ctx, tx)
	if err != nil {
		return false, err
	}
	t := txTarget{s, tx}
	if ctx, err = s.enter(ctx, t, w != nil); err != nil {
		return false, err
	}
	n, err := affected(t.exec(ctx, s.sql.succeed, append(heldArgs(a), micros(clock()))...))
	if err != nil {
		return false, s.refused(err)
	}
	if n == 1 && w != nil {
		w.handled(a)
	}
	return n == 1, nil
}

// ClaimEvent implements [driver.Claimer]. It is one write transaction: of
// several concurrent claims one comes first, and the others see its result.
func (s *backend) ClaimEvent(
	ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, maxAttempts int, kept []byte,
) (store.InboxRecord, bool, error) {
	var record store.InboxRecord
	taken := false
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		// Read the clock after taking the lock: the wait must not shorten the
		// lease.
		now := clock()
		args := append(appendIntake(nil, in), owner[:], micros(now.Add(lease)), micros(now), bytesArg(kept), maxAttempts)
		rows, err := t.query(ctx, s.sql.claim, args...)
		if record, taken, err = scanRecord(rows, err, now); err != nil || taken {
			return err
		}
		if record, _, err = s.recordIn(ctx, t, in.Group, in.Key); err != nil {
			return err
		}
		return s.markDead(ctx, t, in, maxAttempts, &record)
	})
	if err != nil {
		return store.InboxRecord{}, false, err
	}
	return record, taken, nil
}

// markDead marks a record as dead that has no attempts left and could otherwise
// be claimed.
func (s *backend) markDead(ctx context.Context, t txTarget, in store.InboxEntry, maxAttempts int, r *store.InboxRecord) error {
	free := r.State == store.InboxProcessing && !r.LeaseUntil.After(r.Now) || r.State == store.InboxFailed && !r.NextRetryAt.After(r.Now)
	if !free || r.Attempts < maxAttempts || r.Type != in.Type || r.Hash != in.Hash {
		return nil
	}
	r.State, r.ProcessedAt, r.LeaseUntil, r.NextRetryAt = store.InboxDead, r.Now, time.Time{}, time.Time{}
	r.LastError = driver.ExceededError(r.LastError)
	_, err := t.exec(ctx, s.sql.markDead, r.Group, r.Key[:], micros(r.ProcessedAt), r.LastError)
	return err
}

// FailEvent implements [driver.Claimer].
func (s *backend) FailEvent(ctx context.Context, in store.InboxEntry, f driver.Failure) (bool, error) {
	did := false
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		now := clock()
		state, retry, ended := store.InboxFailed, any(micros(now.Add(f.Delay))), any(nil)
		if f.Dead {
			state, retry, ended = store.InboxDead, nil, micros(now)
		}
		st, args := s.sql.failHeld, heldArgs(driver.Attempt{Group: in.Group, Key: in.Key, Owner: f.Owner, Fence: f.Fence})
		args = append(args, int(state), retry, ended)
		if f.Fence == 0 {
			st, args = s.sql.failNew, append(appendIntake(nil, in), int(state), retry, ended, micros(now))
		}
		n, err := affected(t.exec(ctx, st, append(args, errorText(f.Error), bytesArg(f.Stored))...))
		did = n == 1
		return err
	})
	return did && err == nil, err
}

// ReleaseEvent implements [driver.Claimer].
func (s *backend) ReleaseEvent(ctx context.Context, a driver.Attempt) (bool, error) {
	held := false
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		n, err := affected(t.exec(ctx, s.sql.giveBack, append(heldArgs(a), micros(clock()))...))
		held = n == 1
		return err
	})
	return held && err == nil, err
}

// IsRetryable implements [driver.RetryClassifier]. An error after a wait of
// Config.BusyTimeout is not retryable: a retry would only wait again.
func (*backend) IsRetryable(err error) bool {
	_, primary := code(err)
	return (primary == sqlite3.SQLITE_BUSY || primary == sqlite3.SQLITE_LOCKED) && !errors.Is(err, errWaited)
}

// bytesArg returns bytes as an argument; nil is NULL.
func bytesArg(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}
