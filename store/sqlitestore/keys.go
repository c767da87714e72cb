package sqlitestore

import (
	"context"
	"database/sql"
	"fmt"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TakeKey implements [driver.KeyTx]. From here to its end, the transaction has
// the write lock, so no other transaction can work on the same key.
func (s *backend) TakeKey(ctx context.Context, tx *sql.Tx, c driver.KeyClaim) (driver.KeyTaken, error) {
	var out driver.KeyTaken
	err := s.withKey(ctx, tx, func(ctx context.Context, t txTarget, _ *writing) error {
		now := clock()
		a := driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner}
		rows, err := t.query(ctx, s.sql.takeRecord, append(keyArgs(c.KeyID, now), c.Hash, c.Owner[:])...)
		taken, err := scanOne(rows, err, &a.Fence)
		if err != nil {
			return err
		}
		if taken {
			out = driver.KeyTaken{Taken: true, Attempt: a}
			return nil
		}
		rows, err = t.query(ctx, s.sql.findKey, keyArgs(c.KeyID, now)...)
		out.Record, _, err = scanKey(rows, err, now)
		return err
	})
	return out, err
}

// withKey runs fn in the caller's transaction, once the transaction has the
// write lock.
func (s *backend) withKey(ctx context.Context, tx *sql.Tx, fn func(ctx context.Context, t txTarget, w *writing) error) error {
	ctx, w, err := s.whose(ctx, tx)
	if err != nil {
		return err
	}
	t := txTarget{s, tx}
	if ctx, err = s.enter(ctx, t, w != nil); err != nil {
		return err
	}
	if err := fn(ctx, t, w); err != nil {
		return s.refused(err)
	}
	return nil
}

// StoreAnswer implements [driver.KeyTx].
func (s *backend) StoreAnswer(ctx context.Context, tx *sql.Tx, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error) {
	held := false
	err := s.withKey(ctx, tx, func(ctx context.Context, t txTarget, w *writing) error {
		now := clock()
		n, err := affected(t.exec(ctx, s.sql.keepKey, append(keyHeldArgs(a, now), answerArgs(answer, now)...)...))
		if held = n == 1; held && w != nil {
			w.keeps(a)
		}
		return err
	})
	return held && err == nil, err
}

// SavePoint implements [driver.KeyTx].
func (s *backend) SavePoint(ctx context.Context, tx *sql.Tx, a driver.KeyAttempt, p store.KeyPoint) (bool, error) {
	held := false
	err := s.withKey(ctx, tx, func(ctx context.Context, t txTarget, _ *writing) error {
		n, err := affected(t.exec(ctx, s.sql.savePoint, append(keyHeldArgs(a, clock()), p.Name, bytesArg(p.Data))...))
		held = n == 1
		return err
	})
	return held && err == nil, err
}

// PeekKey implements [driver.KeyPeeker].
func (s *backend) PeekKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return store.KeyRecord{}, false, err
	}
	rec := store.KeyRecord{KeyID: id, State: store.KeySucceeded}
	answered := false
	rows, err := s.query(ctx, s.sql.peekKey, keyArgs(id, clock())...)
	found, err := scanOne(rows, err, &rec.Hash, &rec.Ref, &rec.Result, &rec.ContentType, &answered)
	if err != nil || !found {
		return store.KeyRecord{}, false, s.explain(err)
	}
	if answered && rec.Result == nil {
		rec.Result = []byte{} // the driver returns nil for an empty blob
	}
	return rec, true, nil
}

// PeekAlways implements [driver.KeyPeeker]. It reports true: a claim waits for
// all writers of the file, and a peek does not.
func (s *backend) PeekAlways() bool { return true }

// ClaimKey implements [driver.KeyClaimer]. It only reads a record that is not
// free. Otherwise it is one write transaction: of several concurrent claims one
// comes first, and the others see its result.
func (s *backend) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	record, found, err := s.FindKey(ctx, c.KeyID)
	if err != nil || found && !keyFree(&record, c.Hash) {
		return record, false, err
	}
	taken := false
	err = s.within(ctx, func(ctx context.Context, t txTarget) error {
		// Read the clock after taking the lock: the wait must not shorten the
		// lease.
		now := clock()
		rows, err := t.query(ctx, s.sql.claimKey, append(keyArgs(c.KeyID, now), c.Hash, c.Owner[:], micros(now.Add(c.Lease)))...)
		if record, taken, err = scanKey(rows, err, now); err != nil || taken {
			return err
		}
		rows, err = t.query(ctx, s.sql.findKey, keyArgs(c.KeyID, now)...)
		record, _, err = scanKey(rows, err, now)
		return err
	})
	if err != nil {
		return store.KeyRecord{}, false, err
	}
	return record, taken, nil
}

// keyFree reports whether a request with the hash could have taken the live
// record when it was read.
func keyFree(r *store.KeyRecord, hash string) bool {
	return r.Hash == hash && (r.State == store.KeyFailed || r.State == store.KeyProcessing && !r.LeaseUntil.After(r.Now))
}

// EndKey implements [driver.KeyClaimer].
func (s *backend) EndKey(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
	if end.State < store.KeySucceeded || end.State > store.KeyUncertain {
		return false, fmt.Errorf("sqlitestore: an attempt cannot end as %s", end.State)
	}
	return s.changesKey(ctx, func(now time.Time) (*statement, []any) {
		if end.State == store.KeySucceeded {
			return s.sql.endKey, append(keyHeldArgs(a, now), answerArgs(end.Answer, now)...)
		}
		return s.sql.failKey, append(keyHeldArgs(a, now), failureArgs(end, now)...)
	})
}

// RenewKey implements [driver.KeyClaimer].
func (s *backend) RenewKey(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error) {
	return s.changesKey(ctx, func(now time.Time) (*statement, []any) {
		return s.sql.renewKey, append(keyHeldArgs(a, now), micros(now.Add(lease)))
	})
}

// ResolveKey implements [driver.KeyRecords].
func (s *backend) ResolveKey(ctx context.Context, id store.KeyID, end driver.KeyEnd) (bool, error) {
	if end.State != store.KeySucceeded && end.State != store.KeyFailed {
		return false, fmt.Errorf("sqlitestore: an uncertain key cannot be resolved as %s", end.State)
	}
	return s.changesKey(ctx, func(now time.Time) (*statement, []any) {
		args := append(keyArgs(id, now), nil, nil)
		if end.State == store.KeySucceeded {
			return s.sql.settleKey, append(args, answerArgs(end.Answer, now)...)
		}
		return s.sql.reopenKey, append(args, failureArgs(end, now)...)
	})
}

// changesKey runs a statement in a separate transaction, and reports whether it
// changed a record. It reads the clock after it has the write lock.
func (s *backend) changesKey(ctx context.Context, which func(now time.Time) (*statement, []any)) (bool, error) {
	changed := false
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		st, args := which(clock())
		n, err := affected(t.exec(ctx, st, args...))
		if err != nil {
			return err
		}
		changed = n == 1
		return s.note(ctx, t, n)
	})
	return changed && err == nil, err
}

// FindKey implements [driver.KeyRecords].
func (s *backend) FindKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return store.KeyRecord{}, false, err
	}
	now := clock()
	rows, err := s.query(ctx, s.sql.findKey, keyArgs(id, now)...)
	record, found, err := scanKey(rows, err, now)
	if err != nil {
		return store.KeyRecord{}, false, s.explain(err)
	}
	return record, found, nil
}

// ListKeys implements [driver.KeyRecords].
func (s *backend) ListKeys(ctx context.Context, f store.KeyFilter, after store.KeyID, limit int) ([]store.KeyRecord, error) {
	st, states := s.sql.openKeys, 1<<store.KeyProcessing|1<<store.KeyFailed|1<<store.KeyUncertain
	if len(f.States) > 0 {
		states = 0
	}
	for _, state := range f.States {
		if state < store.KeyProcessing || state > store.KeyUncertain {
			return nil, fmt.Errorf("sqlitestore: unknown key state %d", state)
		}
		states |= 1 << state
		if state == store.KeySucceeded {
			st = s.sql.allKeys
		}
	}
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	var list []store.KeyRecord
	now := clock()
	rows, err := s.query(ctx, st, append(keyArgs(after, now), f.Tenant, f.Operation, states, max(limit, 0))...)
	err = eachRow(rows, err, func(rows *sql.Rows) error {
		var row keyRow
		if err := rows.Scan(row.dest()...); err != nil {
			return err
		}
		list = append(list, row.record(now))
		return nil
	})
	if err != nil {
		return nil, s.explain(err)
	}
	return list, nil
}

// KeyStats implements [driver.KeyRecords].
func (s *backend) KeyStats(ctx context.Context) (store.KeyStats, error) {
	if err := s.ready(ctx, s.db); err != nil {
		return store.KeyStats{}, err
	}
	var k store.KeyStats
	var oldest sql.NullInt64
	now := clock()
	rows, err := s.query(ctx, s.sql.keyStats, micros(now))
	if _, err := scanOne(rows, err, &k.Processing, &k.Failed, &k.Uncertain, &k.Lapsed, &oldest); err != nil {
		return store.KeyStats{}, s.explain(err)
	}
	if oldest.Valid {
		k.OldestLapsed = now.Sub(timeOf(oldest))
	}
	return k, nil
}

// PurgeKeys implements [driver.KeyRecords].
func (s *backend) PurgeKeys(ctx context.Context, limit int) (int, error) {
	purged := int64(0)
	err := s.within(ctx, func(ctx context.Context, t txTarget) error {
		now, left := micros(clock()), int64(max(limit, 0))
		for _, st := range []*statement{s.sql.purgeKeys, s.sql.stripKeys} {
			n, err := affected(t.exec(ctx, st, now, left-purged))
			if err != nil {
				return err
			}
			purged += n
		}
		return s.note(ctx, t, purged)
	})
	if err != nil {
		return 0, err
	}
	return int(purged), nil
}

// keyArgs returns ?1 to ?4.
func keyArgs(id store.KeyID, now time.Time) []any {
	return []any{id.Tenant, id.Operation, id.Key, micros(now)}
}

// keyHeldArgs returns ?1 to ?6.
func keyHeldArgs(a driver.KeyAttempt, now time.Time) []any {
	return append(keyArgs(a.KeyID, now), a.Owner[:], a.Fence)
}

// answerArgs returns the arguments of answerKey.
func answerArgs(a driver.KeyAnswer, now time.Time) []any {
	var answerUntil any
	if a.ResultRetention > 0 {
		answerUntil = micros(now.Add(a.ResultRetention))
	}
	return []any{a.Ref, bytesArg(a.Result), a.ContentType, a.Lost, micros(now.Add(a.Retention)), answerUntil}
}

// failureArgs returns the arguments of failedKey. An uncertain record does not
// expire.
func failureArgs(end driver.KeyEnd, now time.Time) []any {
	var until any
	if end.State == store.KeyFailed {
		until = micros(now.Add(end.Answer.Retention))
	}
	return []any{int(end.State), errorText(end.Code), errorText(end.Error), until}
}

// keyRow receives a row of idempotency.
type keyRow struct {
	store.KeyRecord
	point, ref, contentType, code, lastError sql.NullString
	lease, completed, expires                sql.NullInt64
	created                                  int64
	answered                                 bool
}

// dest returns the scan targets of keyColumns.
func (r *keyRow) dest() []any {
	return []any{
		&r.Tenant, &r.Operation, &r.Key, &r.Hash, &r.State, (*scanID)(&r.Owner), &r.Fence, &r.Attempts, &r.point, &r.Point.Data, &r.ref, &r.Result,
		&r.contentType, &r.Lost, &r.ResultExpired, &r.code, &r.lastError, &r.lease, &r.created, &r.completed, &r.expires, &r.answered,
	}
}

// record returns the record that was read, as of now.
func (r *keyRow) record(now time.Time) store.KeyRecord {
	out := r.KeyRecord
	out.Point.Name, out.Ref, out.ContentType = r.point.String, r.ref.String, r.contentType.String
	if r.answered && out.Result == nil {
		out.Result = []byte{} // the driver returns nil for an empty blob
	}
	out.Code, out.LastError = r.code.String, r.lastError.String
	out.LeaseUntil, out.CompletedAt, out.ExpiresAt = timeOf(r.lease), timeOf(r.completed), timeOf(r.expires)
	out.CreatedAt, out.Now = time.UnixMicro(r.created).UTC(), now
	return out
}

// scanKey reads at most one record, and reports whether one exists.
func scanKey(rows *sql.Rows, err error, now time.Time) (store.KeyRecord, bool, error) {
	var row keyRow
	found, err := scanOne(rows, err, row.dest()...)
	if err != nil || !found {
		return store.KeyRecord{}, false, err
	}
	return row.record(now), true, nil
}
