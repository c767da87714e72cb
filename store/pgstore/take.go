package pgstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TakeKey implements [driver.KeyTx].
func (s *pgxBackend) TakeKey(ctx context.Context, tx pgx.Tx, c driver.KeyClaim) (driver.KeyTaken, error) {
	if g, ours := tx.(*guard); ours && g.parent == nil && !g.s.begun {
		return s.takeFirst(ctx, g, c)
	}
	if err := s.inOpenTx(ctx, tx, "take key"); err != nil {
		return driver.KeyTaken{}, err
	}
	return s.take(ctx, pgxDB{tx}, c)
}

// TakeKey implements [driver.KeyTx].
func (s *sqlBackend) TakeKey(ctx context.Context, tx *sql.Tx, c driver.KeyClaim) (driver.KeyTaken, error) {
	if tx == nil {
		return driver.KeyTaken{}, fmt.Errorf("pgstore: take key: %w", waybill.ErrNoTx)
	}
	return s.take(ctx, sqlDB{tx}, c)
}

// firstTake is a new key that the first round trip of a transaction of InTx
// took. The transaction holds the lock of the key until it ends, and no
// savepoint is older than the lock. The answer creates the record.
type firstTake struct {
	attempt driver.KeyAttempt
	hash    string
	began   time.Time // the server's time of the BEGIN
}

// takeFirst is take in the first round trip of a transaction of InTx. BEGIN,
// the lock and the read of the record share that round trip. The read follows
// the lock in a statement of its own, so that its snapshot shows the record of
// every transaction that has released the lock.
func (s *pgxBackend) takeFirst(ctx context.Context, g *guard, claim driver.KeyClaim) (driver.KeyTaken, error) {
	first := &pgx.Batch{}
	first.Queue(s.sql.lockKey, keyTurnOf(claim.KeyID))
	first.Queue(s.sql.seeKey, keyArgs(claim.KeyID)...)
	results := g.SendBatch(ctx, first)
	var ours, there, answered bool
	var hash string
	var ref, result, contentType []byte
	var began time.Time
	err := results.QueryRow().Scan(&ours, &began)
	if err == nil {
		rows, qerr := results.Query() //nolint:sqlclosecheck // collect closes it
		err = collect(rows, qerr, func() error { there = true; return nil }, &answered, &hash, &ref, &result, &contentType)
	}
	if cerr := results.Close(); err == nil {
		err = cerr
	}
	switch {
	case err != nil:
		return driver.KeyTaken{}, s.locksHint(s.explain(ended(err)))
	case answered:
		return driver.KeyTaken{Record: answeredKey(claim.KeyID, hash, ref, result, string(contentType))}, nil
	case there:
		return s.takeThere(ctx, pgxDB{g}, claim)
	case !ours:
		return driver.KeyTaken{Busy: true}, nil
	}
	got := takenKey(claim, 1)
	g.s.first = &firstTake{attempt: got.Attempt, hash: claim.Hash, began: began}
	return got, nil
}

// answeredKey returns the record of a stored answer, with the fields that a
// repeated request needs.
func answeredKey(id store.KeyID, hash string, ref, result []byte, contentType string) store.KeyRecord {
	return store.KeyRecord{KeyID: id, Hash: hash, State: store.KeySucceeded, Ref: string(ref), Result: result, ContentType: contentType}
}

// take takes a key in the caller's transaction.
func (c *core) take(ctx context.Context, tx database, claim driver.KeyClaim) (driver.KeyTaken, error) {
	isNew, err := c.did(ctx, tx, c.sql.takeNew, takeArgs(claim))
	switch {
	case err != nil:
		return driver.KeyTaken{}, c.locksHint(err)
	case isNew:
		return takenKey(claim, 1), nil
	}
	return c.takeThere(ctx, tx, claim)
}

// takeThere takes a key that has a record or is busy. A record that was
// committed after the snapshot is read again. A key that is free by then counts
// as busy: a retry will get it.
func (c *core) takeThere(ctx context.Context, tx database, claim driver.KeyClaim) (driver.KeyTaken, error) {
	var ours *bool
	var fence int64
	r := newKeyRow(tx)
	rows, err := tx.query(ctx, c.sql.takeKey, takeArgs(claim)...)
	err = collect(rows, err, func() error { return nil }, append([]any{&ours, &fence}, r.dest...)...)
	switch {
	case err != nil:
		return driver.KeyTaken{}, c.locksHint(c.explain(ended(err)))
	case fence > 0:
		return takenKey(claim, fence), nil
	case ours == nil:
		return driver.KeyTaken{Record: r.record(claim.KeyID)}, nil
	case !*ours:
		return driver.KeyTaken{Busy: true}, nil
	}
	record, there, err := c.oneKey(ctx, tx, claim.KeyID)
	if err != nil || there && !keyFree(&record, claim.Hash) {
		return driver.KeyTaken{Record: record}, ended(err)
	}
	return driver.KeyTaken{Busy: true}, nil
}

// takeArgs returns the arguments of takeNew and takeKey.
func takeArgs(c driver.KeyClaim) []any {
	return append(keyArgs(c.KeyID), c.Hash, c.Owner.UUID(), keyTurnOf(c.KeyID), secondsIf(c.Retention > 0, c.Retention))
}

// takenKey returns the result of a claim that took its key.
func takenKey(c driver.KeyClaim, fence int64) driver.KeyTaken {
	return driver.KeyTaken{Taken: true, Attempt: driver.KeyAttempt{KeyID: c.KeyID, Owner: c.Owner, Fence: fence}}
}

// keyFree reports whether a request with the hash could have taken the live
// record when it was read.
func keyFree(r *store.KeyRecord, hash string) bool {
	return r.Hash == hash && (r.State == store.KeyFailed || r.State == store.KeyProcessing && !r.LeaseUntil.After(r.Now))
}

// lastAnswer returns the statement that stores the answer of an attempt. It
// fails if the transaction does not hold the key.
func (s *session) lastAnswer(a driver.KeyAttempt, answer driver.KeyAnswer) *lastStatement {
	args := append(keyAttemptArgs(a), answerArgs(answer)...)
	if f := s.first; f != nil && f.attempt == a {
		return &lastStatement{s.store.sql.insertKey, append(args, f.hash, f.began), explainAnswer}
	}
	return &lastStatement{s.store.sql.keepLast, args, explainAnswer}
}

// StoreAnswer implements [driver.KeyTx].
func (s *pgxBackend) StoreAnswer(ctx context.Context, tx pgx.Tx, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error) {
	if err := s.inOpenTx(ctx, tx, "store answer"); err != nil {
		return false, err
	}
	if g, ours := tx.(*guard); ours && g.s.first != nil && g.s.first.attempt == a {
		last := g.s.lastAnswer(a, answer)
		ok, err := s.did(ctx, pgxDB{tx}, last.query, last.args)
		if keyLost(err) {
			return false, nil
		}
		return ok, err
	}
	return s.did(ctx, pgxDB{tx}, s.sql.keepKey, append(keyAttemptArgs(a), answerArgs(answer)...))
}

// StoreAnswer implements [driver.KeyTx].
func (s *sqlBackend) StoreAnswer(ctx context.Context, tx *sql.Tx, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error) {
	if tx == nil {
		return false, fmt.Errorf("pgstore: store answer: %w", waybill.ErrNoTx)
	}
	return s.did(ctx, sqlDB{tx}, s.sql.keepKey, append(keyAttemptArgs(a), answerArgs(answer)...))
}

// StoreAnswerAtCommit implements [driver.AnswerAtCommit], for the transactions
// of InTx.
func (s *pgxBackend) StoreAnswerAtCommit(_ context.Context, tx pgx.Tx, a driver.KeyAttempt, answer driver.KeyAnswer) (bool, error) {
	g, ours := tx.(*guard)
	if !ours {
		return false, nil
	}
	return g.atCommit(func() *lastStatement { return g.s.lastAnswer(a, answer) })
}

// uniqueViolation is the code with which insertKey fails if the key has a
// record.
const uniqueViolation = "23505"

// errOvertaken reports that the key got a record while a transaction held its
// lock. The run of that transaction may be run again, and finds the record.
var errOvertaken = errors.New("the key got a record during the run")

// keyLost reports whether insertKey failed because the transaction does not
// hold the key.
func keyLost(err error) bool {
	state := sqlState(err)
	return state == divisionByZero || state == uniqueViolation
}

// explainAnswer explains the error of a lastAnswer.
func explainAnswer(err error) error {
	switch sqlState(err) {
	case divisionByZero:
		return fmt.Errorf("%w: the transaction no longer holds its key", waybill.ErrLeaseLost)
	case uniqueViolation:
		return fmt.Errorf("%w: %w", waybill.ErrLeaseLost, errOvertaken)
	}
	return err
}
