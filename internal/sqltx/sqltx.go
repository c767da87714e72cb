// Package sqltx is the session of the stores over database/sql: a [*sql.Tx]
// that is begun, watched and ended in the same way for all databases.
package sqltx

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// Dialect holds the differences between the databases.
type Dialect struct {
	// Started, if not nil, runs right after the transaction has begun, inside
	// it; an error ends the transaction.
	Started func(ctx context.Context, tx *sql.Tx) error
	// Open, if not nil, returns an error unless the server still has the
	// transaction: COMMIT would succeed even without one. Open is called before
	// a COMMIT unless Present is.
	Open func(ctx context.Context, tx *sql.Tx) error
	// Kept, if not nil, is called before a ROLLBACK. It returns an error that
	// wraps [waybill.ErrUncertain] if the server has already committed a part
	// of the transaction by itself.
	Kept func(ctx context.Context, tx *sql.Tx) error
	// Present returns the ids that have a row visible to this transaction.
	Present func(ctx context.Context, tx *sql.Tx, ids []waybill.ID) (map[waybill.ID]bool, error)
	// RolledBack reports whether a failed COMMIT certainly left nothing: the
	// server itself has reported the failure.
	RolledBack func(err error) bool
	// NoTx, if not nil, reports whether a COMMIT or ROLLBACK failed because the
	// transaction is no longer open, although neither was called on the handle,
	// and then whether the database itself certainly rolled it back. conn is
	// the transaction's connection: the pool may have no other.
	NoTx func(ctx context.Context, conn *sql.Conn, err error) (ended, undone bool)
	// Ended, if not nil, runs once when the session ends.
	Ended func()
}

// Session is a transaction over database/sql. It implements [driver.Session].
type Session struct {
	dialect Dialect
	conn    *sql.Conn
	tx      *sql.Tx
	over    bool
}

// Begin starts a transaction. The end of ctx aborts the start only:
// database/sql would roll a transaction back when its Begin context ends, even
// during its COMMIT, and the outcome would be unknown.
func Begin(ctx context.Context, db *sql.DB, opts *sql.TxOptions, d Dialect) (*Session, error) {
	conn, err := db.Conn(ctx)
	if err != nil {
		return nil, err
	}
	detached, cancel := context.WithCancelCause(context.WithoutCancel(ctx))
	stop := context.AfterFunc(ctx, func() { cancel(context.Cause(ctx)) })
	tx, err := conn.BeginTx(detached, opts)
	if err == nil && d.Started != nil {
		if err = d.Started(ctx, tx); err != nil {
			_ = tx.Rollback()
		}
	}
	// ctx ended meanwhile, and the transaction is being rolled back
	if !stop() && err == nil {
		_ = tx.Rollback()
		err = context.Cause(ctx)
	}
	if err != nil {
		cancel(nil)
		_ = conn.Close()
		return nil, err
	}
	s := &Session{dialect: d, conn: conn, tx: tx}
	// cancel is called when the session ends, to free the context.
	ended := d.Ended
	s.dialect.Ended = func() {
		cancel(nil)
		if ended != nil {
			ended()
		}
	}
	return s, nil
}

// Tx implements [driver.Session].
func (s *Session) Tx() *sql.Tx { return s.tx }

// Owns implements [driver.Session].
func (s *Session) Owns(tx *sql.Tx) bool { return tx == s.tx }

// Commit implements [driver.Session].
func (s *Session) Commit(ctx context.Context, accepted []waybill.ID, check bool) (driver.CommitInfo, error) {
	if s.over {
		return driver.CommitInfo{}, waybill.ErrTxDone
	}
	defer s.end()
	var ending driver.CommitInfo
	switch {
	case check && len(accepted) > 0:
		// Statements on a *sql.Tx are not visible here, so neither is a
		// ROLLBACK TO SAVEPOINT: query the rows.
		present, err := s.dialect.Present(ctx, s.tx, accepted)
		if err != nil {
			return driver.CommitInfo{}, errors.Join(s.owned(ctx, err), s.rollback(ctx))
		}
		ending.Checked = true
		for _, id := range accepted {
			if !present[id] {
				ending.Undone = append(ending.Undone, id)
			}
		}
	case s.dialect.Open != nil:
		if err := s.dialect.Open(ctx, s.tx); err != nil {
			return driver.CommitInfo{}, errors.Join(s.owned(ctx, err), s.rollback(ctx))
		}
	}
	err := s.tx.Commit()
	switch {
	case err == nil:
		return ending, nil
	case s.dialect.RolledBack(err), s.undone(ctx, err):
		return driver.CommitInfo{}, fmt.Errorf("waybill: commit: %w", err)
	}
	if owned := s.owned(ctx, err); errors.Is(owned, waybill.ErrTxOwned) {
		return driver.CommitInfo{}, owned
	}
	return driver.CommitInfo{}, fmt.Errorf("%w: commit: %w", waybill.ErrUncertain, err)
}

// owned translates "already ended": the caller's function ended a transaction
// that it did not own. A *sql.Tx cannot refuse that, and does not report
// whether it was committed.
func (s *Session) owned(ctx context.Context, err error) error {
	ended := errors.Is(err, sql.ErrTxDone)
	if err != nil && !ended && s.dialect.NoTx != nil {
		ended, _ = s.dialect.NoTx(ctx, s.conn, err)
	}
	if ended {
		return fmt.Errorf("%w: %w: ended by the caller", waybill.ErrUncertain, waybill.ErrTxOwned)
	}
	return err
}

// undone reports whether the database had rolled back by itself.
func (s *Session) undone(ctx context.Context, err error) bool {
	if err == nil || s.dialect.NoTx == nil {
		return false
	}
	_, undone := s.dialect.NoTx(ctx, s.conn, err)
	return undone
}

// Rollback implements [driver.Session]. If the caller's function ended the
// transaction, it may have been committed: the outcome is uncertain.
func (s *Session) Rollback(ctx context.Context) error {
	if s.over {
		return nil
	}
	defer s.end()
	var kept error
	if s.dialect.Kept != nil {
		kept = s.dialect.Kept(ctx, s.tx)
	}
	return errors.Join(kept, s.rollback(ctx))
}

func (s *Session) rollback(ctx context.Context) error {
	err := s.tx.Rollback()
	if s.undone(ctx, err) {
		return nil
	}
	return s.owned(ctx, err)
}

func (s *Session) end() {
	s.over = true
	_ = s.conn.Close()
	s.dialect.Ended()
}

// Done translates the driver's error for an ended transaction into Waybill's.
func Done(err error) error {
	if errors.Is(err, sql.ErrTxDone) {
		return fmt.Errorf("%w: %w", waybill.ErrTxDone, err)
	}
	return err
}
