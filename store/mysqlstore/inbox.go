package mysqlstore

import (
	"bytes"
	"cmp"
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

// Events are accepted without waiting.
//
// INSERT … ON DUPLICATE KEY UPDATE, which leaves existing rows unchanged,
// records new events and locks existing records, and a locking statement sees
// the current rows whatever the transaction's snapshot. The statement would
// wait for another open transaction that has locked one of the rows; MariaDB
// lets a statement opt out of waiting. The server then undoes the whole
// statement, and only that, and the store retries with halves until it has
// found the locked events.
//
// A locking read before the insert would be worse: at REPEATABLE READ it locks
// the gap of a missing row, and two transactions that accept adjacent keys
// would block each other's inserts.
//
// MySQL statements always wait, and one second is the minimum of
// innodb_lock_wait_timeout: the session uses that minimum while it accepts
// events. At READ COMMITTED there are no gap locks, so the store reads first,
// with NOWAIT; only two transactions that accept the same new event at the same
// moment still wait.
//
// An existing record stays locked until the transaction ends. Another
// transaction that meets the lock then reads without a lock: a succeeded record
// never changes, so an old snapshot is good enough, and repeated deliveries do
// not block each other.

// maxIntakes is the maximum number of events that one statement accepts.
const maxIntakes = 500

// inboxKey identifies a record.
type inboxKey struct {
	group string
	key   waybill.ID
}

func inboxKeyOf(in store.InboxEntry) inboxKey { return inboxKey{in.Group, in.Key} }

// Accept implements [driver.InboxTx]. On MySQL it may wait up to one second for
// a transaction that is accepting the same event; see the package
// documentation.
func (s *backend) Accept(ctx context.Context, tx *sql.Tx, owner waybill.ID, in []store.InboxEntry) ([]driver.AcceptResult, error) {
	if len(in) == 0 {
		return nil, nil
	}
	f, err := s.facts(ctx, tx)
	if err != nil {
		return nil, sqltx.Done(err)
	}
	if !f.proves {
		if err := proveOpen(ctx, tx, f); err != nil {
			return nil, s.refused(err)
		}
	}
	// Events are accepted in sorted order, so that two waiting transactions
	// cannot deadlock.
	sorted := slices.Clone(in)
	slices.SortFunc(sorted, func(a, b store.InboxEntry) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), bytes.Compare(a.Key[:], b.Key[:]))
	})
	w := accepting{store: s, tx: tx, facts: f, owner: owner, answers: make(map[inboxKey]driver.AcceptResult, len(in))}
	err = briefly(ctx, tx, f, func() error {
		for part := range parts(sorted, maxIntakes) {
			if err := w.accept(ctx, part); err != nil {
				return err
			}
		}
		return w.lookAgain(ctx) // at SERIALIZABLE a read waits, too
	})
	if err != nil {
		return nil, s.refused(err)
	}
	out := make([]driver.AcceptResult, len(in))
	for i, one := range in {
		out[i] = w.answers[inboxKeyOf(one)]
	}
	return out, nil
}

// accepting is the state of one call of Accept.
type accepting struct {
	store   *backend
	tx      *sql.Tx
	facts   facts
	owner   waybill.ID
	answers map[inboxKey]driver.AcceptResult
	locked  []store.InboxEntry
}

// accept records the new events. If it meets a lock it continues with halves,
// down to the locked events.
func (w *accepting) accept(ctx context.Context, in []store.InboxEntry) error {
	met, err := w.insert(ctx, in)
	switch {
	case isLocked(err) && len(in) == 1:
		w.locked = append(w.locked, in[0])
		return nil
	case isLocked(err):
		return w.halve(ctx, in)
	case err != nil:
		return err
	}
	for _, one := range in {
		w.answers[inboxKeyOf(one)] = driver.AcceptResult{Accepted: true}
	}
	if !met {
		return nil
	}
	records, err := w.store.inboxRecords(ctx, w.tx, fill(w.store.sql.lockRecords, "{keys}", recordKeys(in)))
	for _, r := range records {
		if r.Owner != w.owner {
			w.answers[inboxKeyOf(r.InboxEntry)] = driver.AcceptResult{Record: r}
		}
	}
	return err
}

// halve accepts events in two halves, after a statement for all of them met a
// lock. If meeting a lock takes a second, the events go one by one: with one
// busy event among a hundred, halves would meet it seven times. The server may
// be configured to roll back the whole transaction on a lock timeout, and later
// statements would then commit on their own: halve checks that the transaction
// is open unless the statement proves that itself.
func (w *accepting) halve(ctx context.Context, in []store.InboxEntry) error {
	if !w.facts.proves {
		if err := proveOpen(ctx, w.tx, w.facts); err != nil {
			return err
		}
	}
	size := (len(in) + 1) / 2
	if !w.facts.noWait && !w.facts.readCommitted {
		size = 1
	}
	for part := range parts(in, size) {
		if err := w.accept(ctx, part); err != nil {
			return err
		}
	}
	return nil
}

// briefly runs fn, whose statements must not wait for other transactions.
// MariaDB's statements opt out of waiting. On MySQL, briefly sets the session's
// lock wait timeout to the minimum of one second until fn returns.
func briefly(ctx context.Context, tx querier, f facts, fn func() error) error {
	if f.noWait {
		return fn()
	}
	const impatient = `SET @waybill_patience = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = 1`
	if _, err := tx.ExecContext(ctx, impatient); err != nil {
		return err
	}
	err := fn()
	// Reset the timeout even after an error and after ctx has ended: the
	// connection returns to a pool.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	if _, undo := tx.ExecContext(ctx, `SET SESSION innodb_lock_wait_timeout = @waybill_patience`); err == nil {
		err = undo
	}
	return err
}

// insert records events, and reports whether any of them already had a record.
func (w *accepting) insert(ctx context.Context, in []store.InboxEntry) (met bool, err error) {
	q := &w.store.sql
	var text strings.Builder
	switch {
	case w.facts.noWait:
		text.WriteString(q.noWait)
	case w.facts.readCommitted:
		if err := each(ctx, w.tx, fill(q.probeRecords, "{keys}", recordKeys(in)), nil, nil, new(int64)); err != nil {
			return false, err
		}
	}
	text.WriteString(q.accept)
	owner := "x'" + hexID(w.owner) + "'"
	for i, one := range in {
		mark := owner
		if i == 0 && w.facts.proves {
			mark = strings.Replace(provenBytes, "?", owner, 1)
		}
		if i > 0 {
			text.WriteString(", ")
		}
		text.WriteString(strings.NewReplacer("{owner}", mark, "{group}", hexText(one.Group), "{key}", hexID(one.Key), "{event}", hexID(one.Event),
			"{tenant}", hexText(one.Tenant), "{type}", hexText(one.Type), "{hash}", hexID(one.Hash)).Replace(q.acceptRow))
	}
	text.WriteString(q.acceptMet)
	res, err := w.tx.ExecContext(ctx, text.String())
	if err != nil {
		return false, err
	}
	mark, err := res.LastInsertId()
	return mark != 0, err
}

// lookAgain answers for events whose records are locked. Succeeded records are
// visible without a lock; the other events are busy.
func (w *accepting) lookAgain(ctx context.Context) error {
	if len(w.locked) == 0 {
		return nil
	}
	look := w.store.sql.lookRecords
	if w.facts.noWait {
		// At SERIALIZABLE every read takes a lock.
		look = w.store.sql.noWait + look
	}
	for part := range parts(w.locked, maxIntakes) {
		for _, one := range part {
			w.answers[inboxKeyOf(one)] = driver.AcceptResult{Busy: true}
		}
		records, err := w.store.inboxRecords(ctx, w.tx, fill(look, "{keys}", recordKeys(part)))
		if err != nil && !isLocked(err) {
			return err
		}
		for _, r := range records {
			if r.State == store.InboxSucceeded {
				w.answers[inboxKeyOf(r.InboxEntry)] = driver.AcceptResult{Record: r}
			}
		}
	}
	return proveOpen(ctx, w.tx, w.facts)
}

// isLocked reports whether a statement failed because it could not get a lock.
func isLocked(err error) bool { return number(err) == errLockTimeout || number(err) == errLockNoWait }

// proveOpen returns an error unless a transaction is open.
func proveOpen(ctx context.Context, tx querier, f facts) error {
	var open bool
	var err error
	if f.proves {
		err = each(ctx, tx, `SELECT @@in_transaction AND @@autocommit`, nil, nil, &open)
	} else {
		open, err = inTransaction(ctx, tx)
	}
	if err == nil && !open {
		err = fmt.Errorf("%w: the server has no transaction open on this connection", waybill.ErrTxDone)
	}
	return err
}

// hexText returns a text in hexadecimal digits, as statements use it.
func hexText(text string) string { return hex.EncodeToString([]byte(text)) }

// recordKeys returns the keys of records as a JSON list.
func recordKeys(in []store.InboxEntry) string {
	return string(list(in, func(b []byte, one store.InboxEntry) []byte {
		b = strconv.AppendQuote(append(b, '['), hexText(one.Group))
		return append(appendID(append(b, ','), one.Key), ']')
	}))
}

// Succeed implements [driver.InboxTx]. A consumer that takes the event over has
// its row locked; the update waits for that lock and then matches no row.
func (s *backend) Succeed(ctx context.Context, tx *sql.Tx, a driver.Attempt) (bool, error) {
	f, err := s.facts(ctx, tx)
	if err != nil {
		return false, sqltx.Done(err)
	}
	query := s.sql.succeedProven
	if !f.proves {
		query = s.sql.succeed
		if err := proveOpen(ctx, tx, f); err != nil {
			return false, s.refused(err)
		}
	}
	query = strings.NewReplacer("{group}", hexText(a.Group), "{key}", hexID(a.Key), "{owner}", hexID(a.Owner),
		"{fence}", strconv.FormatInt(a.Fence, 10)).Replace(query)
	n, err := affected(tx.ExecContext(ctx, query))
	if err != nil {
		return false, s.refused(err)
	}
	return n == 1, nil
}

// affected returns the number of rows that a statement changed. Every statement
// it is used for changes all rows that it matches, so it does not matter
// whether the driver counts changed or matched rows.
func affected(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// intakeArgs returns the arguments for intakeColumns. Texts are sent as bytes,
// so that they are not converted in transit.
func intakeArgs(in store.InboxEntry) []any {
	return []any{[]byte(in.Group), in.Key[:], in.Event[:], []byte(in.Tenant), []byte(in.Type), in.Hash[:]}
}

// heldArgs returns the arguments of heldRecord.
func heldArgs(a driver.Attempt) []any { return []any{[]byte(a.Group), a.Key[:], a.Owner[:], a.Fence} }

// bytesArg returns bytes as an argument; nil is NULL.
func bytesArg(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// errorArg returns an error text as the argument of utf8Argument; an empty text
// is NULL.
func errorArg(text string) any {
	if text = driver.CutError(text); text == "" {
		return nil
	}
	return hexText(text)
}

// ClaimEvent implements [driver.Claimer]. Every statement is a transaction of
// its own. The statement that takes the event is conditional: of several
// concurrent claims one changes the row, and the others, which waited for it,
// no longer match. The record is read afterwards and may have changed; an
// attempt that was lost in between is not reported as taken.
func (s *backend) ClaimEvent(
	ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, maxAttempts int, kept []byte,
) (store.InboxRecord, bool, error) {
	// Without autocommit nothing would be committed.
	if _, err := s.facts(ctx, s.db); err != nil {
		return store.InboxRecord{}, false, err
	}
	for round := 0; ; round++ {
		record, done, err := s.claimOnce(ctx, in, owner, lease, maxAttempts, kept)
		switch {
		case err != nil && (number(err) != errDeadlock || round == maxRounds):
			return store.InboxRecord{}, false, s.explain(err)
		case err == nil && done:
			return record, record.State == store.InboxProcessing && record.Owner == owner, nil
		case round == maxRounds:
			return store.InboxRecord{}, false, fmt.Errorf("mysqlstore: claim: other sessions keep changing the record of %s", in.Key)
		}
	}
}

// claimOnce tries to take an event, or to mark it dead. done is false if the
// record changed in the meantime.
func (s *backend) claimOnce(
	ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, maxAttempts int, kept []byte,
) (record store.InboxRecord, done bool, err error) {
	_, err = s.db.ExecContext(ctx, s.sql.claimNew, append(intakeArgs(in), owner[:], lease.Microseconds(), bytesArg(kept))...)
	taken := err == nil
	if number(err) == errDuplicate {
		var n int64
		n, err = affected(s.db.ExecContext(ctx, s.sql.claimAgain, owner[:], lease.Microseconds(), bytesArg(kept),
			[]byte(in.Group), in.Key[:], []byte(in.Type), in.Hash[:], maxAttempts))
		taken = n == 1
	}
	if err != nil {
		return record, false, err
	}
	record, found, err := s.record(ctx, in.Group, in.Key)
	if err != nil || !found || taken {
		return record, found, err
	}
	free := record.State == store.InboxProcessing && !record.LeaseUntil.After(record.Now) ||
		record.State == store.InboxFailed && !record.NextRetryAt.After(record.Now)
	switch {
	case !free || record.Type != in.Type || record.Hash != in.Hash:
		return record, true, nil
	case record.Attempts < maxAttempts: // it became free after the claim
		return record, false, nil
	}
	n, err := affected(s.db.ExecContext(ctx, s.sql.giveUp, hexText(driver.ExceededError(record.LastError)),
		[]byte(in.Group), in.Key[:], int(record.State), record.Fence, record.Attempts))
	if err != nil || n == 0 {
		return record, false, err
	}
	return s.record(ctx, in.Group, in.Key)
}

// FailEvent implements [driver.Claimer].
func (s *backend) FailEvent(ctx context.Context, in store.InboxEntry, f driver.Failure) (bool, error) {
	if _, err := s.facts(ctx, s.db); err != nil {
		return false, err
	}
	state, delay := store.InboxFailed, any(f.Delay.Microseconds())
	if f.Dead {
		// NULL microseconds mean no retry time.
		state, delay = store.InboxDead, nil
	}
	args := []any{int(state), delay, f.Dead, errorArg(f.Error), bytesArg(f.Stored)}
	query, args := s.sql.failHeld, append(args, heldArgs(driver.Attempt{Group: in.Group, Key: in.Key, Owner: f.Owner, Fence: f.Fence})...)
	if f.Fence == 0 {
		query, args = s.sql.failNew, append(intakeArgs(in), args[:5]...)
	}
	n, err := affected(s.db.ExecContext(ctx, query, args...))
	if f.Fence == 0 && number(err) == errDuplicate {
		return false, nil
	}
	return n == 1, s.explain(err)
}

// ReleaseEvent implements [driver.Claimer].
func (s *backend) ReleaseEvent(ctx context.Context, a driver.Attempt) (bool, error) {
	if _, err := s.facts(ctx, s.db); err != nil {
		return false, err
	}
	n, err := affected(s.db.ExecContext(ctx, s.sql.giveBack, heldArgs(a)...))
	return n == 1, s.explain(err)
}

// IsRetryable implements [driver.RetryClassifier].
func (*backend) IsRetryable(err error) bool {
	switch number(err) {
	case errDeadlock, errLockTimeout, errLockNoWait, errRecordChanged, errTableChanged:
		return true
	}
	return false
}

// CheckOpen implements [driver.TxChecker].
func (s *backend) CheckOpen(ctx context.Context, tx *sql.Tx) error {
	f, err := s.facts(ctx, tx)
	if err == nil {
		err = proveOpen(ctx, tx, f)
	}
	return sqltx.Done(err)
}
