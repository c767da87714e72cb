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
)

// How events are accepted without waiting.
//
// INSERT … ON DUPLICATE KEY UPDATE, which changes nothing where there is a row, records what is new and locks what is there, and a lock shows
// the present whatever the transaction's snapshot. Where another open transaction has one of the rows, it would wait; MariaDB lets a statement
// say that it does not. The server takes the whole statement back then, and only that, and halves of it are tried until what is locked is
// found.
//
// Asking first, with a locking read, would be worse: at REPEATABLE READ it locks the gap where a row is missing, and two transactions that
// accept neighbours would each keep the other from inserting.
//
// MySQL's statements always wait, and a second is the least that innodb_lock_wait_timeout can say:
// the session gets that while events are accepted. At READ COMMITTED there are no gaps to lock, so
// there it is asked first, with NOWAIT; what is left are two first comers in the same moment.
//
// A row that was met stays locked until the transaction ends. Whoever meets it then looks without a lock: a record that has succeeded stays
// as it is, so a glance at the past is enough, and replays do not stand in each other's way.

// maxIntakes is how many events one statement accepts at most.
const maxIntakes = 500

// inboxKey is what a record is found by.
type inboxKey struct {
	group string
	key   waybill.ID
}

func inboxKeyOf(in store.InboxEntry) inboxKey { return inboxKey{in.Group, in.Key} }

// Accept implements [store.InboxTx]. On MySQL it may wait, for a second, for a transaction that is
// accepting the same event; see the package's comment.
func (s *Store) Accept(ctx context.Context, tx *sql.Tx, owner waybill.ID, in []store.InboxEntry) ([]store.AcceptResult, error) {
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
	// In one order, so that two who wait cannot wait for each other.
	sorted := slices.Clone(in)
	slices.SortFunc(sorted, func(a, b store.InboxEntry) int {
		return cmp.Or(strings.Compare(a.Group, b.Group), bytes.Compare(a.Key[:], b.Key[:]))
	})
	w := accepting{store: s, tx: tx, facts: f, owner: owner, answers: make(map[inboxKey]store.AcceptResult, len(in))}
	err = briefly(ctx, tx, f, func() error {
		for part := range parts(sorted, maxIntakes) {
			if err := w.accept(ctx, part); err != nil {
				return err
			}
		}
		return w.lookAgain(ctx) // at SERIALIZABLE a look waits as well
	})
	if err != nil {
		return nil, s.refused(err)
	}
	out := make([]store.AcceptResult, len(in))
	for i, one := range in {
		out[i] = w.answers[inboxKeyOf(one)]
	}
	return out, nil
}

// accepting is one Accept at work.
type accepting struct {
	store   *Store
	tx      *sql.Tx
	facts   facts
	owner   waybill.ID
	answers map[inboxKey]store.AcceptResult
	locked  []store.InboxEntry
}

// accept records those of the events that are new. Where it meets a lock it goes on with halves, down to the events that are locked.
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
		w.answers[inboxKeyOf(one)] = store.AcceptResult{Accepted: true}
	}
	if !met {
		return nil
	}
	records, err := w.store.inboxRecords(ctx, w.tx, fill(w.store.sql.lockRecords, "{keys}", recordKeys(in)))
	for _, r := range records {
		if r.Owner != w.owner {
			w.answers[inboxKeyOf(r.InboxEntry)] = store.AcceptResult{Record: r}
		}
	}
	return err
}

// halve accepts events in two halves, after a statement for all of them met a lock. Where meeting
// one takes a second, the events go one by one: of a hundred with one that is busy, halves would
// meet it seven times. A server can be told to roll back the whole transaction then, and what
// follows would be committed by itself: unless the statement proves its transaction, it is asked
// for.
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

// briefly runs fn, whose statements must not wait for other transactions. MariaDB's say so for
// themselves. On MySQL the session has the least patience that there is, a second, until fn has
// ended.
func briefly(ctx context.Context, tx querier, f facts, fn func() error) error {
	if f.noWait {
		return fn()
	}
	const impatient = `SET @waybill_patience = @@SESSION.innodb_lock_wait_timeout, SESSION innodb_lock_wait_timeout = 1`
	if _, err := tx.ExecContext(ctx, impatient); err != nil {
		return err
	}
	err := fn()
	// Also after an error, and after the end of ctx: the connection goes back to a pool.
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), unlockTimeout)
	defer cancel()
	if _, undo := tx.ExecContext(ctx, `SET SESSION innodb_lock_wait_timeout = @waybill_patience`); err == nil {
		err = undo
	}
	return err
}

// insert records events, and reports whether there was a record of any.
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

// lookAgain answers for events whose records are locked. Those that have succeeded are there to be seen; others are busy.
func (w *accepting) lookAgain(ctx context.Context) error {
	if len(w.locked) == 0 {
		return nil
	}
	look := w.store.sql.lookRecords
	if w.facts.noWait {
		look = w.store.sql.noWait + look // at SERIALIZABLE every look is a lock
	}
	for part := range parts(w.locked, maxIntakes) {
		for _, one := range part {
			w.answers[inboxKeyOf(one)] = store.AcceptResult{Busy: true}
		}
		records, err := w.store.inboxRecords(ctx, w.tx, fill(look, "{keys}", recordKeys(part)))
		if err != nil && !isLocked(err) {
			return err
		}
		for _, r := range records {
			if r.State == store.InboxSucceeded {
				w.answers[inboxKeyOf(r.InboxEntry)] = store.AcceptResult{Record: r}
			}
		}
	}
	return proveOpen(ctx, w.tx, w.facts)
}

// isLocked reports whether a statement failed because it did not get a lock.
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

// hexText returns a text as it stands in a statement: as hexadecimal digits.
func hexText(text string) string { return hex.EncodeToString([]byte(text)) }

// recordKeys returns the keys of records as a list in JSON.
func recordKeys(in []store.InboxEntry) string {
	return string(list(in, func(b []byte, one store.InboxEntry) []byte {
		b = strconv.AppendQuote(append(b, '['), hexText(one.Group))
		return append(appendID(append(b, ','), one.Key), ']')
	}))
}

// Succeed implements [store.InboxTx]. Whoever takes the event over has its row locked; the update waits for that, and then does not fit.
func (s *Store) Succeed(ctx context.Context, tx *sql.Tx, a store.Attempt) (bool, error) {
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

// affected returns how many rows a statement changed. Every statement that it is used for changes what it finds, so it does not matter
// which of the two the driver was told to count.
func affected(res sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return res.RowsAffected()
}

// intakeArgs are the arguments for intakeColumns. Texts go as bytes, so that nobody on the way converts them.
func intakeArgs(in store.InboxEntry) []any {
	return []any{[]byte(in.Group), in.Key[:], in.Event[:], []byte(in.Tenant), []byte(in.Type), in.Hash[:]}
}

// heldArgs are the arguments of heldRecord.
func heldArgs(a store.Attempt) []any { return []any{[]byte(a.Group), a.Key[:], a.Owner[:], a.Fence} }

// bytesArg is bytes as an argument; nil is NULL.
func bytesArg(b []byte) any {
	if b == nil {
		return nil
	}
	return b
}

// errorArg is an error as the argument of utf8Argument; none is NULL.
func errorArg(text string) any {
	if text = store.CutError(text); text == "" {
		return nil
	}
	return hexText(text)
}

// ClaimEvent implements [store.Claimer]. Every statement is a transaction of its own. The one that takes the event is guarded: of several at
// the same time one changes the row, and the others, which have waited for it, find that it does not fit any more. What is read afterwards
// may have changed since; an attempt that was lost in between is not reported as taken.
func (s *Store) ClaimEvent(
	ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, most int, kept []byte,
) (store.InboxRecord, bool, error) {
	if _, err := s.facts(ctx, s.db); err != nil { // without autocommit nothing would be kept
		return store.InboxRecord{}, false, err
	}
	for round := 0; ; round++ {
		record, done, err := s.claimOnce(ctx, in, owner, lease, most, kept)
		switch {
		case err != nil && (number(err) != errDeadlock || round == maxRounds):
			return store.InboxRecord{}, false, s.explain(err)
		case err == nil && done:
			return record, record.State == store.InboxProcessing && record.Owner == owner, nil
		case round == maxRounds:
			return store.InboxRecord{}, false, fmt.Errorf("mysqlstore: claim: the record of %s keeps changing; somebody else is at work on it", in.Key)
		}
	}
}

// claimOnce tries to take an event, or to give it up. It is not done if the record changed meanwhile.
func (s *Store) claimOnce(
	ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, most int, kept []byte,
) (record store.InboxRecord, done bool, err error) {
	_, err = s.db.ExecContext(ctx, s.sql.claimNew, append(intakeArgs(in), owner[:], lease.Microseconds(), bytesArg(kept))...)
	taken := err == nil
	if number(err) == errDuplicate {
		var n int64
		n, err = affected(s.db.ExecContext(ctx, s.sql.claimAgain, owner[:], lease.Microseconds(), bytesArg(kept),
			[]byte(in.Group), in.Key[:], []byte(in.Type), in.Hash[:], most))
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
	case record.Attempts < most: // it has become free since
		return record, false, nil
	}
	n, err := affected(s.db.ExecContext(ctx, s.sql.giveUp, hexText(store.ExceededError(record.LastError)),
		[]byte(in.Group), in.Key[:], int(record.State), record.Fence, record.Attempts))
	if err != nil || n == 0 {
		return record, false, err
	}
	return s.record(ctx, in.Group, in.Key)
}

// FailEvent implements [store.Claimer].
func (s *Store) FailEvent(ctx context.Context, in store.InboxEntry, f store.Failure) (bool, error) {
	if _, err := s.facts(ctx, s.db); err != nil {
		return false, err
	}
	state, delay := store.InboxFailed, any(f.Delay.Microseconds())
	if f.Dead {
		state, delay = store.InboxDead, nil // no time, after NULL microseconds
	}
	args := []any{int(state), delay, f.Dead, errorArg(f.Error), bytesArg(f.Stored)}
	query, args := s.sql.failHeld, append(args, heldArgs(store.Attempt{Group: in.Group, Key: in.Key, Owner: f.Owner, Fence: f.Fence})...)
	if f.Fence == 0 {
		query, args = s.sql.failNew, append(intakeArgs(in), args[:5]...)
	}
	n, err := affected(s.db.ExecContext(ctx, query, args...))
	if f.Fence == 0 && number(err) == errDuplicate {
		return false, nil
	}
	return n == 1, s.explain(err)
}

// ReleaseEvent implements [store.Claimer].
func (s *Store) ReleaseEvent(ctx context.Context, a store.Attempt) (bool, error) {
	if _, err := s.facts(ctx, s.db); err != nil {
		return false, err
	}
	n, err := affected(s.db.ExecContext(ctx, s.sql.giveBack, heldArgs(a)...))
	return n == 1, s.explain(err)
}

// IsRetryable implements [store.RetryClassifier].
func (*Store) IsRetryable(err error) bool {
	switch number(err) {
	case errDeadlock, errLockTimeout, errLockNoWait, errRecordChanged, errTableChanged:
		return true
	}
	return false
}

// CheckOpen implements [store.TxChecker].
func (s *Store) CheckOpen(ctx context.Context, tx *sql.Tx) error {
	f, err := s.facts(ctx, tx)
	if err == nil {
		err = proveOpen(ctx, tx, f)
	}
	return sqltx.Done(err)
}
