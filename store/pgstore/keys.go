package pgstore

import (
	"context"
	"crypto/sha256"
	"database/sql"
	"encoding/binary"
	"fmt"
	"slices"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// SavePoint implements [driver.KeyTx].
func (s *pgxBackend) SavePoint(ctx context.Context, tx pgx.Tx, a driver.KeyAttempt, p store.KeyPoint) (bool, error) {
	if err := s.inOpenTx(ctx, tx, "save recovery point"); err != nil {
		return false, err
	}
	return s.did(ctx, pgxDB{tx}, s.sql.savePoint, append(keyAttemptArgs(a), []byte(p.Name), bytesArg(p.Data)))
}

// SavePoint implements [driver.KeyTx].
func (s *sqlBackend) SavePoint(ctx context.Context, tx *sql.Tx, a driver.KeyAttempt, p store.KeyPoint) (bool, error) {
	if tx == nil {
		return false, fmt.Errorf("pgstore: save recovery point: %w", waybill.ErrNoTx)
	}
	return s.did(ctx, sqlDB{tx}, s.sql.savePoint, append(keyAttemptArgs(a), []byte(p.Name), bytesArg(p.Data)))
}

// PeekKey implements [driver.KeyPeeker].
func (c *core) PeekKey(ctx context.Context, id store.KeyID) (rec store.KeyRecord, there bool, err error) {
	found := func(hash string, ref, result []byte, contentType string) {
		rec, there = answeredKey(id, hash, ref, result, contentType), true
	}
	if db, ok := c.binary(); ok {
		rows, err := db.q.Query(ctx, c.sql.peekKey, keyArgs(id)...)
		if err != nil {
			return store.KeyRecord{}, false, c.explain(err)
		}
		ok, err := c.wire(rows, peekTexts, func(v [][]byte) error {
			found(string(v[0]), v[1], slices.Clone(v[2]), string(v[3]))
			return nil
		})
		if ok || err != nil {
			return rec, there, err
		}
	}
	var hash string
	var ref, result, contentType []byte
	rows, err := c.db.query(ctx, c.sql.peekKey, keyArgs(id)...)
	err = collect(rows, err, func() error { found(hash, ref, result, string(contentType)); return nil }, &hash, &ref, &result, &contentType)
	return rec, there, c.explain(err)
}

// peekTexts marks the text columns of peekKey.
var peekTexts = []bool{true, false, false, false}

// PeekAlways implements [driver.KeyPeeker]. It reports false, because a peek
// costs a round trip.
func (c *core) PeekAlways() bool { return false }

// ClaimKey implements [driver.KeyClaimer]. If the record changes during the
// claim, ClaimKey reads it again.
func (c *core) ClaimKey(ctx context.Context, claim driver.KeyClaim) (store.KeyRecord, bool, error) {
	if record, taken, err := c.claimNew(ctx, claim); err != nil || taken {
		return record, taken, err
	}
	args := append(keyArgs(claim.KeyID), claim.Hash, claim.Owner.UUID(), keyTurnOf(claim.KeyID), secondsIf(claim.Retention > 0, claim.Retention), seconds(claim.Lease))
	for {
		taken, there := false, false
		r := newKeyRow(c.db)
		rows, err := c.db.query(ctx, c.sql.claimKey, args...)
		err = collect(rows, err, func() error { there = true; return nil }, append([]any{&taken}, r.dest...)...)
		switch {
		case err != nil:
			return store.KeyRecord{}, false, c.explain(err)
		case there:
			return r.record(claim.KeyID), taken, nil
		}
	}
}

// claimNew claims a key that has no record.
func (c *core) claimNew(ctx context.Context, claim driver.KeyClaim) (store.KeyRecord, bool, error) {
	rec := store.KeyRecord{
		KeyID: claim.KeyID, Hash: claim.Hash, State: store.KeyProcessing, Owner: claim.Owner, Fence: 1, Attempts: 1,
		// The time has the precision of the column.
		CreatedAt: time.Now().UTC().Truncate(time.Microsecond),
	}
	args := append(keyArgs(claim.KeyID), claim.Hash, claim.Owner.UUID(), seconds(claim.Lease), secondsIf(claim.Retention > 0, claim.Retention), rec.CreatedAt,
		keyTurnOf(claim.KeyID))
	if taken, err := c.did(ctx, c.db, c.sql.claimNew, args); err != nil || !taken {
		return store.KeyRecord{}, false, err
	}
	return rec, true, nil
}

// EndKey implements [driver.KeyClaimer].
func (c *core) EndKey(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
	switch end.State {
	case store.KeySucceeded:
		return c.did(ctx, c.db, c.sql.endKey, append(keyAttemptArgs(a), answerArgs(end.Answer)...))
	case store.KeyFailed, store.KeyUncertain:
		return c.did(ctx, c.db, c.sql.failKey, append(keyAttemptArgs(a), int(end.State), driver.CutError(end.Code), driver.CutError(end.Error),
			secondsIf(end.State == store.KeyFailed, end.Answer.Retention)))
	case store.KeyProcessing:
	}
	return false, fmt.Errorf("pgstore: an attempt cannot end as %s", end.State)
}

// RenewKey implements [driver.KeyClaimer].
func (c *core) RenewKey(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error) {
	return c.did(ctx, c.db, c.sql.renewKey, append(keyAttemptArgs(a), seconds(lease)))
}

// FindKey implements [driver.KeyRecords].
func (c *core) FindKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	return c.oneKey(ctx, c.db, id)
}

// ListKeys implements [driver.KeyRecords].
func (c *core) ListKeys(ctx context.Context, f store.KeyFilter, after store.KeyID, limit int) ([]store.KeyRecord, error) {
	query, states := c.sql.openKeys, []int16{int16(store.KeyProcessing), int16(store.KeyFailed), int16(store.KeyUncertain)}
	if len(f.States) > 0 {
		states = nil
	}
	for _, state := range f.States {
		if state < store.KeyProcessing || state > store.KeyUncertain {
			return nil, fmt.Errorf("pgstore: unknown key state %d", state)
		}
		states = append(states, int16(state))
	}
	if slices.Contains(f.States, store.KeySucceeded) {
		query = c.sql.allKeys
	}
	var out []store.KeyRecord
	var tenant, operation, key []byte
	r := newKeyRow(c.db)
	args := append(keyArgs(after), []byte(f.Tenant), []byte(f.Operation), c.db.int16s(states))
	rows, err := c.db.ordered(ctx, limited(query, limit), args...)
	err = collect(rows, err, func() error {
		out = append(out, r.record(store.KeyID{Tenant: string(tenant), Operation: string(operation), Key: string(key)}))
		return nil
	}, append([]any{&tenant, &operation, &key}, r.dest...)...)
	if err != nil {
		return nil, c.explain(err)
	}
	return out, nil
}

// KeyStats implements [driver.KeyRecords].
func (c *core) KeyStats(ctx context.Context) (store.KeyStats, error) {
	var s store.KeyStats
	var oldest float64
	rows, err := c.db.ordered(ctx, c.sql.keyStats)
	if err := collect(rows, err, func() error { return nil }, &s.Processing, &s.Failed, &s.Uncertain, &s.Lapsed, &oldest); err != nil {
		return store.KeyStats{}, c.explain(err)
	}
	s.OldestLapsed = time.Duration(oldest * float64(time.Second))
	return s, nil
}

// ResolveKey implements [driver.KeyRecords].
func (c *core) ResolveKey(ctx context.Context, id store.KeyID, end driver.KeyEnd) (bool, error) {
	var query string
	args := keyArgs(id)
	switch end.State {
	case store.KeySucceeded:
		query, args = c.sql.settleKey, append(args, answerArgs(end.Answer)...)
	case store.KeyFailed:
		query, args = c.sql.reopenKey, append(args, driver.CutError(end.Code), driver.CutError(end.Error), seconds(end.Answer.Retention))
	case store.KeyProcessing, store.KeyUncertain:
		return false, fmt.Errorf("pgstore: an uncertain key cannot be resolved as %s", end.State)
	}
	var n int64
	err := c.audited(ctx, func(db database) (_ int64, err error) {
		n, err = db.changed(ctx, query, args...)
		return n, err
	})
	return n == 1, c.explain(err)
}

// PurgeKeys implements [driver.KeyRecords]. It repeats the statement while the
// statement defers records, so that deferred records do not keep it from later
// ones.
func (c *core) PurgeKeys(ctx context.Context, limit int) (int, error) {
	sum := 0
	for {
		var purged, deferred int
		err := c.audited(ctx, func(db database) (int64, error) {
			rows, err := db.query(ctx, c.sql.purgeKeys, max(limit-sum, 0))
			err = collect(rows, err, func() error { return nil }, &purged, &deferred)
			return int64(purged), err
		})
		if err != nil {
			return sum, c.explain(err)
		}
		if sum += purged; deferred == 0 || sum >= limit {
			return sum, nil
		}
	}
}

// keyArgs returns the arguments of keyIs. Texts are sent as bytes, so that any
// text is returned unchanged.
func keyArgs(id store.KeyID) []any {
	buf := make([]byte, 0, len(id.Tenant)+len(id.Operation)+len(id.Key))
	buf = append(append(append(buf, id.Tenant...), id.Operation...), id.Key...)
	operation, key := len(id.Tenant), len(id.Tenant)+len(id.Operation)
	return []any{buf[:operation], buf[operation:key], buf[key:]}
}

// keyTurnOf returns the hash of a key for its advisory lock. The hash covers
// the parts of the key with their lengths.
func keyTurnOf(id store.KeyID) int64 {
	buf := make([]byte, 0, 512)
	for _, part := range []string{id.Tenant, id.Operation, id.Key} {
		buf = append(binary.AppendUvarint(buf, uint64(len(part))), part...)
	}
	sum := sha256.Sum256(buf)
	return int64(binary.BigEndian.Uint64(sum[:8])) //nolint:gosec // all 64 bits count
}

// keyAttemptArgs returns the arguments of isHeld.
func keyAttemptArgs(a driver.KeyAttempt) []any {
	return append(keyArgs(a.KeyID), a.Owner.UUID(), a.Fence)
}

// answerArgs returns the arguments of answerKey.
func answerArgs(a driver.KeyAnswer) []any {
	return []any{[]byte(a.Ref), bytesArg(a.Result), []byte(a.ContentType), a.Lost, seconds(a.Retention), secondsIf(a.ResultRetention > 0, a.ResultRetention)}
}

// secondsIf returns a duration as an argument, or NULL.
func secondsIf(yes bool, d time.Duration) any {
	if !yes {
		return nil
	}
	return seconds(d)
}

// oneKey returns a live record, and whether one exists.
func (c *core) oneKey(ctx context.Context, db database, id store.KeyID) (rec store.KeyRecord, there bool, err error) {
	r := newKeyRow(db)
	rows, err := db.query(ctx, c.sql.findKey, keyArgs(id)...)
	err = collect(rows, err, func() error { rec, there = r.record(id), true; return nil }, r.dest...)
	if err != nil {
		return store.KeyRecord{}, false, c.explain(err)
	}
	return rec, there, nil
}

// keyRow receives a record of each row.
type keyRow struct {
	store.KeyRecord
	point, ref, contentType            []byte
	lease, created, completed, expires *time.Time
	dest                               []any
}

func newKeyRow(e encoder) *keyRow {
	r := &keyRow{}
	r.dest = []any{
		&r.Hash, &r.State, e.scanID(&r.Owner), &r.Fence, &r.Attempts, &r.point, &r.Point.Data, &r.ref, &r.Result,
		&r.contentType, &r.Lost, &r.ResultExpired, &r.Code, &r.LastError, &r.lease, &r.created, &r.completed, &r.expires, &r.Now,
	}
	return r
}

// record returns the record that was read, under the given key.
func (r *keyRow) record(id store.KeyID) store.KeyRecord {
	out := r.KeyRecord
	out.KeyID = id
	out.Point.Name, out.Ref, out.ContentType = string(r.point), string(r.ref), string(r.contentType)
	out.LeaseUntil, out.CreatedAt, out.CompletedAt, out.ExpiresAt = timeOf(r.lease), timeOf(r.created), timeOf(r.completed), timeOf(r.expires)
	out.Now = r.Now.UTC()
	return out
}
