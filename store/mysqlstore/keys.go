package mysqlstore

import (
	"context"
	"database/sql"
	"encoding/hex"
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

// Keys are taken as events are accepted: see the comment in inbox.go. INSERT …
// ON DUPLICATE KEY UPDATE creates the row, or marks the existing row if the key
// is free, or only locks it.

// TakeKey implements [driver.KeyTx]. On MySQL it may wait up to one second for
// a transaction that is taking the same key; see the package documentation.
func (s *backend) TakeKey(ctx context.Context, tx *sql.Tx, c driver.KeyClaim) (driver.KeyTaken, error) {
	f, err := s.facts(ctx, tx)
	if err != nil {
		return driver.KeyTaken{}, sqltx.Done(err)
	}
	if !f.proves {
		if err := proveOpen(ctx, tx, f); err != nil {
			return driver.KeyTaken{}, s.refused(err)
		}
	}
	values := keyValues(c.KeyID, "{mark}", hexID(c.Owner), "{hash}", hexText(c.Hash))
	var met bool
	err = briefly(ctx, tx, f, func() (err error) {
		met, err = s.takeOnce(ctx, tx, f, values)
		return err
	})
	switch {
	case isLocked(err):
		return s.lookAtKey(ctx, tx, f, c, values)
	case err != nil:
		return driver.KeyTaken{}, s.refused(err)
	}
	a := driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: 1}
	if !met {
		return driver.KeyTaken{Taken: true, Attempt: a}, nil
	}
	found, err := s.keyRecords(ctx, tx, values.Replace(s.sql.lockKey))
	switch {
	case err != nil:
		return driver.KeyTaken{}, s.refused(err)
	case len(found) == 0: // the row existed, and this transaction has it locked
		return driver.KeyTaken{}, fmt.Errorf("mysqlstore: take key: %w: the row is gone", waybill.ErrTxDone)
	case found[0].taken:
		a.Fence = found[0].Fence + 1
		return driver.KeyTaken{Taken: true, Attempt: a}, nil
	}
	return driver.KeyTaken{Record: found[0].KeyRecord}, nil
}

// takeOnce creates the row of a key, or marks the existing one, and reports
// whether a row existed.
func (s *backend) takeOnce(ctx context.Context, tx *sql.Tx, f facts, values *strings.Replacer) (met bool, err error) {
	query, proof := s.sql.takeKey, "x'{mark}'"
	switch {
	case f.noWait:
		query = s.sql.noWait + query
	case f.readCommitted:
		if err := each(ctx, tx, values.Replace(s.sql.probeKey), nil, nil, new(int64)); err != nil {
			return false, err
		}
	}
	if f.proves {
		proof = strings.Replace(provenBytes, "?", proof, 1)
	}
	res, err := tx.ExecContext(ctx, values.Replace(fill(query, "{proof}", proof)))
	if err != nil {
		return false, err
	}
	id, err := res.LastInsertId()
	return id != 0, err
}

// lookAtKey answers for a key whose row is locked. If the committed record is
// not free, it is returned; otherwise the key is busy.
func (s *backend) lookAtKey(ctx context.Context, tx *sql.Tx, f facts, c driver.KeyClaim, values *strings.Replacer) (driver.KeyTaken, error) {
	look := s.sql.lookKey
	if f.noWait {
		look = s.sql.noWait + look // at SERIALIZABLE every read takes a lock
	}
	var found []foundKey
	// At SERIALIZABLE a read waits, too.
	err := briefly(ctx, tx, f, func() (err error) {
		found, err = s.keyRecords(ctx, tx, values.Replace(look))
		return err
	})
	if err != nil && !isLocked(err) {
		return driver.KeyTaken{}, s.refused(err)
	}
	if err := proveOpen(ctx, tx, f); err != nil {
		return driver.KeyTaken{}, s.refused(err)
	}
	if len(found) > 0 && !keyFree(&found[0].KeyRecord, c.Hash) {
		return driver.KeyTaken{Record: found[0].KeyRecord}, nil
	}
	return driver.KeyTaken{Busy: true}, nil
}

// keyFree reports whether a request with the hash could take a live record when
// it was read.
func keyFree(r *store.KeyRecord, hash string) bool {
	return r.Hash == hash && (r.State == store.KeyFailed || r.State == store.KeyProcessing && !r.LeaseUntil.After(r.Now))
}

// StoreAnswer implements [driver.KeyTx]. A run that takes the key over has its
// row locked; the update waits for that lock and then matches no row.
func (s *backend) StoreAnswer(ctx context.Context, tx *sql.Tx, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error) {
	return s.changeIn(ctx, tx, s.sql.keepKey, s.sql.keepProven, answer.Result, attemptValues(a, answerValues(answer)...))
}

// SavePoint implements [driver.KeyTx].
func (s *backend) SavePoint(ctx context.Context, tx *sql.Tx, a driver.KeyAttempt, p store.KeyPoint) (bool, error) {
	return s.changeIn(ctx, tx, s.sql.savePoint, s.sql.saveProven, p.Data, attemptValues(a, "{point}", "x'"+hexText(p.Name)+"'"))
}

// changeIn changes the record of an attempt in the caller's transaction, and
// reports whether the record matched.
func (s *backend) changeIn(ctx context.Context, tx *sql.Tx, plain, proven string, data []byte, values *strings.Replacer) (bool, error) {
	f, err := s.facts(ctx, tx)
	if err != nil {
		return false, sqltx.Done(err)
	}
	query := proven
	if !f.proves {
		query = plain
		if err := proveOpen(ctx, tx, f); err != nil {
			return false, s.refused(err)
		}
	}
	fitted, err := s.changes(ctx, tx, query, data, values)
	if err != nil {
		return false, s.refused(err)
	}
	return fitted, nil
}

// largeData is the maximum size of data in the text of a statement. Larger data
// is sent as an argument: two round trips, but half the bytes.
const largeData = 64 << 10

// changes runs a statement that changes at most one record, and reports whether
// the record was found. A statement whose record already has the new values
// affects no row, and signals the match with the last insert id.
func (s *backend) changes(ctx context.Context, q querier, query string, data []byte, values *strings.Replacer) (bool, error) {
	text, args := hexBytes, []any(nil)
	if len(data) > largeData {
		text, args = func([]byte) string { return "?" }, []any{data}
	}
	res, err := q.ExecContext(ctx, fill(values.Replace(query), "{result}", text(data)), args...)
	n, err := affected(res, err)
	if err != nil || n == 1 {
		return n == 1, err
	}
	id, err := res.LastInsertId()
	return id == 1, err
}

// PeekKey implements [driver.KeyPeeker].
func (s *backend) PeekKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	var hash string // never empty
	var ref, result, contentType []byte
	err := each(ctx, s.db, keyValues(id).Replace(s.sql.peekKey), nil, nil, &hash, &ref, &result, &contentType)
	if err != nil || hash == "" {
		return store.KeyRecord{}, false, s.explain(err)
	}
	return store.KeyRecord{
		KeyID: id, Hash: hash, State: store.KeySucceeded, Ref: string(ref), Result: result, ContentType: string(contentType),
	}, true, nil
}

// PeekAlways implements [driver.KeyPeeker]: a peek costs a round trip.
func (s *backend) PeekAlways() bool { return false }

// ClaimKey implements [driver.KeyClaimer]. It is one statement with a
// transaction of its own; of several concurrent claims one changes the row, and
// the others, which waited for it, no longer match. MariaDB's statement returns
// the record. On MySQL the record is read afterwards and may have changed: an
// attempt that was lost in between is not reported as taken, and a key that
// became free in between is claimed again.
func (s *backend) ClaimKey(ctx context.Context, c driver.KeyClaim) (store.KeyRecord, bool, error) {
	// Without autocommit nothing would be committed.
	f, err := s.facts(ctx, s.db)
	if err != nil {
		return store.KeyRecord{}, false, err
	}
	// The mark is unique to this call. The owner would not do: a caller that
	// claims again because a response was lost has not taken the key again.
	values := keyValues(c.KeyID, "{owner}", hexID(c.Owner), "{mark}", hexID(waybill.NewID()), "{hash}", hexText(c.Hash),
		"{lease}", strconv.FormatInt(c.Lease.Microseconds(), 10))
	for round := 0; ; round++ {
		var found []foundKey
		if f.proves {
			found, err = s.keyRecords(ctx, s.db, values.Replace(s.sql.claimReturning))
		} else if _, err = s.db.ExecContext(ctx, values.Replace(s.sql.claimKey)); err == nil {
			found, err = s.keyRecords(ctx, s.db, values.Replace(s.sql.judgeKey))
		}
		switch {
		case err != nil && (number(err) != errDeadlock || round == maxRounds):
			return store.KeyRecord{}, false, s.explain(err)
		case err == nil && len(found) > 0 && (found[0].taken || !keyFree(&found[0].KeyRecord, c.Hash)):
			return found[0].KeyRecord, found[0].taken, nil
		case round == maxRounds:
			return store.KeyRecord{}, false, fmt.Errorf("mysqlstore: claim: other sessions keep changing the record of key %q", c.Key)
		}
	}
}

// EndKey implements [driver.KeyClaimer].
func (s *backend) EndKey(ctx context.Context, a driver.KeyAttempt, end driver.KeyEnd) (bool, error) {
	switch end.State {
	case store.KeySucceeded:
		return s.change(ctx, s.sql.endKey, end.Answer.Result, attemptValues(a, answerValues(end.Answer)...))
	case store.KeyFailed, store.KeyUncertain:
		return s.change(ctx, s.sql.failKey, nil, attemptValues(a, failureValues(end)...))
	case store.KeyProcessing:
	}
	return false, fmt.Errorf("mysqlstore: an attempt cannot end as %s", end.State)
}

// RenewKey implements [driver.KeyClaimer].
func (s *backend) RenewKey(ctx context.Context, a driver.KeyAttempt, lease time.Duration) (bool, error) {
	return s.change(ctx, s.sql.renewKey, nil, attemptValues(a, "{lease}", strconv.FormatInt(lease.Microseconds(), 10)))
}

// ResolveKey implements [driver.KeyRecords].
func (s *backend) ResolveKey(ctx context.Context, id store.KeyID, end driver.KeyEnd) (bool, error) {
	switch end.State {
	case store.KeySucceeded:
		return s.change(ctx, s.sql.settleKey, end.Answer.Result, keyValues(id, answerValues(end.Answer)...))
	case store.KeyFailed:
		return s.change(ctx, s.sql.reopenKey, nil, keyValues(id, failureValues(end)...))
	case store.KeyProcessing, store.KeyUncertain:
	}
	return false, fmt.Errorf("mysqlstore: an uncertain key cannot be resolved as %s", end.State)
}

// change changes a record in a separate transaction, and reports whether the
// record matched.
func (s *backend) change(ctx context.Context, query string, data []byte, values *strings.Replacer) (bool, error) {
	if _, err := s.facts(ctx, s.db); err != nil {
		return false, err
	}
	fitted := false
	err := s.audited(ctx, func(q querier) (_ int64, err error) {
		if fitted, err = s.changes(ctx, q, query, data, values); err != nil || !fitted {
			return 0, err
		}
		return 1, nil
	})
	return fitted, err
}

// FindKey implements [driver.KeyRecords].
func (s *backend) FindKey(ctx context.Context, id store.KeyID) (store.KeyRecord, bool, error) {
	found, err := s.keyRecords(ctx, s.db, keyValues(id).Replace(s.sql.lookKey))
	if err != nil || len(found) == 0 {
		return store.KeyRecord{}, false, s.explain(err)
	}
	return found[0].KeyRecord, true, nil
}

// ListKeys implements [driver.KeyRecords].
func (s *backend) ListKeys(ctx context.Context, f store.KeyFilter, after store.KeyID, limit int) ([]store.KeyRecord, error) {
	states, index := f.States, "status"
	if len(states) == 0 {
		states = []store.KeyState{store.KeyProcessing, store.KeyFailed, store.KeyUncertain}
	}
	numbers := make([]string, len(states))
	for i, state := range states {
		if state < store.KeyProcessing || state > store.KeyUncertain {
			return nil, fmt.Errorf("mysqlstore: unknown key state %d", state)
		}
		numbers[i] = strconv.Itoa(int(state))
	}
	if slices.Contains(states, store.KeySucceeded) {
		index = "PRIMARY"
	}
	where := ""
	if f.Tenant != "" {
		where += " AND i.tenant = x'" + hexText(f.Tenant) + "'"
	}
	if f.Operation != "" {
		where += " AND i.operation = x'" + hexText(f.Operation) + "'"
	}
	values := keyValues(after, "{index}", index, "{numbers}", strings.Join(numbers, ", "), "{where}", where, "{limit}", strconv.Itoa(max(limit, 0)))
	found, err := s.keyRecords(ctx, s.db, values.Replace(s.sql.listKeys))
	if err != nil {
		return nil, s.explain(err)
	}
	var list []store.KeyRecord
	for _, one := range found {
		list = append(list, one.KeyRecord)
	}
	return list, nil
}

// KeyStats implements [driver.KeyRecords].
func (s *backend) KeyStats(ctx context.Context) (store.KeyStats, error) {
	var k store.KeyStats
	var oldest int64
	err := each(ctx, s.db, s.sql.keyStats, nil, nil, &k.Processing, &k.Failed, &k.Uncertain, &k.Lapsed, &oldest)
	if err != nil {
		return store.KeyStats{}, s.explain(err)
	}
	k.OldestLapsed = time.Duration(oldest) * time.Microsecond
	return k, nil
}

// PurgeKeys implements [driver.KeyRecords].
func (s *backend) PurgeKeys(ctx context.Context, limit int) (int, error) {
	purged := 0
	err := s.transact(ctx, func(tx *sql.Tx) error {
		purged = 0
		for _, state := range []store.KeyState{store.KeySucceeded, store.KeyFailed} {
			var over, answers []store.KeyID
			var id store.KeyID
			var isOver bool
			query := fill(fill(s.sql.oldKeys, "{state}", strconv.Itoa(int(state))), "{limit}", strconv.Itoa(max(limit, 0)-purged))
			err := each(ctx, tx, query, nil, func() {
				if isOver {
					over = append(over, id)
				} else {
					answers = append(answers, id)
				}
			}, &id.Tenant, &id.Operation, &id.Key, &isOver)
			if err != nil {
				return err
			}
			purged += len(over) + len(answers)
			if err := onKeys(ctx, tx, s.sql.dropKeys, over); err != nil {
				return err
			}
			if err := onKeys(ctx, tx, s.sql.stripAnswers, answers); err != nil {
				return err
			}
		}
		return s.addAudit(ctx, tx, int64(purged))
	})
	if err != nil {
		return 0, err
	}
	return purged, nil
}

// onKeys runs a statement for several keys.
func onKeys(ctx context.Context, tx *sql.Tx, query string, ids []store.KeyID) error {
	for part := range parts(ids, maxIntakes) {
		names := list(part, func(b []byte, id store.KeyID) []byte {
			b = strconv.AppendQuote(append(b, '['), hexText(id.Tenant))
			b = strconv.AppendQuote(append(b, ','), hexText(id.Operation))
			return append(strconv.AppendQuote(append(b, ','), hexText(id.Key)), ']')
		})
		if _, err := tx.ExecContext(ctx, fill(query, "{keys}", string(names))); err != nil {
			return err
		}
	}
	return nil
}

// keyValues inserts the values of a key, and others, into a statement.
func keyValues(id store.KeyID, more ...string) *strings.Replacer {
	return strings.NewReplacer(append(more, "{tenant}", hexText(id.Tenant), "{operation}", hexText(id.Operation), "{key}", hexText(id.Key))...)
}

// attemptValues inserts the values of an attempt into a statement.
func attemptValues(a driver.KeyAttempt, more ...string) *strings.Replacer {
	return keyValues(a.KeyID, append(more, "{owner}", hexID(a.Owner), "{fence}", strconv.FormatInt(a.Fence, 10))...)
}

// answerValues returns the values of answerKey, except for the result. NULL
// microseconds mean no expiry.
func answerValues(a driver.KeyAnswer) []string {
	answer := "NULL"
	if a.ResultRetention > 0 {
		answer = strconv.FormatInt(a.ResultRetention.Microseconds(), 10)
	}
	return []string{
		"{ref}", "x'" + hexText(a.Ref) + "'", "{type}", "x'" + hexText(a.ContentType) + "'", "{lost}", strconv.FormatBool(a.Lost),
		"{retention}", strconv.FormatInt(a.Retention.Microseconds(), 10), "{answer}", answer,
	}
}

// failureValues returns the values of failedKey. An uncertain record does not
// expire.
func failureValues(end driver.KeyEnd) []string {
	retention := "NULL"
	if end.State == store.KeyFailed {
		retention = strconv.FormatInt(end.Answer.Retention.Microseconds(), 10)
	}
	text := func(s string) string {
		if s = driver.CutError(s); s == "" {
			return "NULL"
		}
		return "x'" + hexText(s) + "'"
	}
	return []string{"{state}", strconv.Itoa(int(end.State)), "{retention}", retention, "{code}", text(end.Code), "{error}", text(end.Error)}
}

// hexBytes returns bytes as a literal of a statement; nil is NULL.
func hexBytes(b []byte) string {
	if b == nil {
		return "NULL"
	}
	return "x'" + hex.EncodeToString(b) + "'"
}

// foundKey is a record with a flag: whether it has the statement's mark.
type foundKey struct {
	store.KeyRecord
	taken bool
}

// keyRecords reads takenBy and keyColumns.
func (s *backend) keyRecords(ctx context.Context, q querier, query string) ([]foundKey, error) {
	var found []foundKey
	var r foundKey
	var lease, completed, expires sql.NullInt64
	var created, now int64
	var point, ref, contentType, code, lastError []byte
	dest := []any{
		&r.taken, &r.Tenant, &r.Operation, &r.Key, &r.Hash, &r.State, (*scanID)(&r.Owner), &r.Fence, &r.Attempts, &point, &r.Point.Data, &ref, &r.Result,
		&contentType, &r.Lost, &r.ResultExpired, &code, &lastError, &lease, &created, &completed, &expires, &now,
	}
	err := each(ctx, q, query, nil, func() {
		r.Point.Name, r.Ref, r.ContentType, r.Code, r.LastError = string(point), string(ref), string(contentType), string(code), string(lastError)
		r.LeaseUntil, r.CompletedAt, r.ExpiresAt = timeOf(lease), timeOf(completed), timeOf(expires)
		r.CreatedAt, r.Now = time.UnixMicro(created).UTC(), time.UnixMicro(now).UTC()
		found = append(found, r)
	}, dest...)
	return found, err
}
