package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"
	"time"

	sqlite3 "modernc.org/sqlite/lib"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store/driver"
)

// Begin implements [driver.Beginner]. The transaction has the write lock from
// the start, unless opts say that it is read-only. Begin waits for the write
// lock for at most Config.BusyTimeout. All isolation levels are the same in
// SQLite: serializable.
func (s *backend) Begin(ctx context.Context, opts *sql.TxOptions) (driver.Session[*sql.Tx], error) {
	if err := s.ready(ctx, s.db); err != nil {
		return nil, err
	}
	if opts != nil && opts.ReadOnly {
		return s.beginReading(ctx, opts)
	}
	return s.begin(ctx, opts, s.lock())
}

func (s *backend) beginReading(ctx context.Context, opts *sql.TxOptions) (driver.Session[*sql.Tx], error) {
	var tx *sql.Tx
	d := s.dialect()
	d.Ended = func() { s.readers.Delete(tx) }
	session, err := sqltx.Begin(ctx, s.db, opts, d)
	if err != nil {
		return nil, s.explain(err)
	}
	tx = session.Tx()
	s.readers.Store(tx, struct{}{})
	return session, nil
}

// locker takes the write lock in a transaction that has just begun; nil: the
// transaction already has it.
type locker func(ctx context.Context, tx *sql.Tx) error

// lock returns the locker for transactions, once the tables exist.
func (s *backend) lock() locker {
	if s.immediate {
		return nil
	}
	return func(ctx context.Context, tx *sql.Tx) error {
		_, err := txTarget{s, tx}.exec(ctx, s.sql.lock)
		return err
	}
}

// begin starts a write transaction when its turn has come.
func (s *backend) begin(ctx context.Context, opts *sql.TxOptions, lock locker) (*sqltx.Session, error) {
	// Prepare before the turn, and before a connection is held.
	if err := s.prepareWanted(ctx); err != nil {
		return nil, err
	}
	if err := s.turns.take(ctx, s.cfg.BusyTimeout); err != nil {
		return nil, err
	}
	session, err := s.beginLocked(ctx, opts, lock)
	if err != nil {
		s.turns.give()
		return nil, err
	}
	return session, nil
}

// writing is the store's own write transaction: the events that it has written,
// the records that it has marked as succeeded, and the keys that it has
// answered.
type writing struct {
	tx   *sql.Tx
	mu   sync.Mutex // several goroutines may use a *sql.Tx
	ids  []waybill.ID
	done []driver.Attempt
	kept []driver.KeyAttempt
}

// keeps notes an attempt whose answer the transaction has stored.
func (w *writing) keeps(a driver.KeyAttempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.kept = append(w.kept, a)
}

// handled notes a record that the transaction has marked as succeeded.
func (w *writing) handled(a driver.Attempt) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.done = append(w.done, a)
}

// took notes events that the transaction has written.
func (w *writing) took(evs []waybill.Event, placed []driver.AppendResult) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, ev := range evs {
		if placed[i].ID == ev.ID {
			w.ids = append(w.ids, ev.ID)
		}
	}
}

// beginLocked starts a transaction that has the write lock. Another process may
// hold the lock, and so may a transaction of this process that does not go
// through the store. The connection's own busy timeout waits for the lock. If
// the connection has no busy timeout, or a shorter one, beginLocked retries
// until Config.BusyTimeout has passed. Nothing has been read yet, so a retry is
// safe.
func (s *backend) beginLocked(ctx context.Context, opts *sql.TxOptions, lock locker) (*sqltx.Session, error) {
	d := s.dialect()
	d.Started = lock
	w := &writing{}
	d.NoTx = func(ctx context.Context, conn *sql.Conn, err error) (ended, undone bool) {
		return s.noTx(ctx, conn, err, w)
	}
	d.Ended = func() {
		s.writer.Store(nil)
		s.turns.give()
	}
	start := time.Now()
	for pause := time.Millisecond; ; pause = min(2*pause, 20*time.Millisecond) {
		session, err := sqltx.Begin(ctx, s.db, opts, d)
		switch {
		case err == nil:
			w.tx = session.Tx()
			s.writer.Store(w)
			return session, nil
		case !isBusy(err):
			return nil, s.explain(err)
		case time.Since(start) >= s.cfg.BusyTimeout:
			return nil, fmt.Errorf("%w: %w", waitedFor(s.cfg.BusyTimeout), err)
		}
		timer := time.NewTimer(pause)
		select {
		case <-timer.C:
		case <-ctx.Done():
			timer.Stop()
			return nil, context.Cause(ctx)
		}
	}
}

func (s *backend) dialect() sqltx.Dialect {
	return sqltx.Dialect{
		Present: func(ctx context.Context, tx *sql.Tx, ids []waybill.ID) (map[waybill.ID]bool, error) {
			return s.presentIn(context.WithoutCancel(ctx), txTarget{s, tx}, ids)
		},
		RolledBack: rolledBack,
	}
}

// rolledBack reports whether a failed COMMIT certainly left nothing.
//
// SQLite fails before it writes the commit mark, and the driver then rolls
// back, if the error is busy, a violated constraint, an interrupt, or a lack of
// space. An I/O error may come after the mark was written and before it is
// durable: the mark may or may not exist after a crash. "No transaction is
// active" means that the transaction ended inside, with either outcome.
func rolledBack(err error) bool {
	_, primary := code(err)
	switch primary {
	case sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_CONSTRAINT, sqlite3.SQLITE_FULL, sqlite3.SQLITE_INTERRUPT,
		sqlite3.SQLITE_READONLY, sqlite3.SQLITE_TOOBIG:
		return true
	}
	return false
}

// noTx is the dialect's NoTx for a write transaction.
//
// SQLite rolls back by itself when a writing statement is interrupted, which
// the driver does when the context ends. This case is common, and must not
// count as an uncertain commit. The other cause is a COMMIT or ROLLBACK as SQL
// text inside InTx. The events show which case it was: they exist, in any
// table, or they do not. The records of the inbox and of keys show the same.
func (s *backend) noTx(ctx context.Context, conn *sql.Conn, err error, w *writing) (ended, undone bool) {
	if _, primary := code(err); primary != sqlite3.SQLITE_ERROR {
		return false, false
	}
	for _, id := range w.ids {
		var found bool
		rows, err := conn.QueryContext(ctx, s.sql.found.text, id[:])
		if _, err := scanOne(rows, err, &found); err != nil || found {
			return true, false
		}
	}
	for _, a := range w.done {
		var found bool
		rows, err := conn.QueryContext(ctx, s.sql.handled.text, heldArgs(a)...)
		if _, err := scanOne(rows, err, &found); err != nil || found {
			return true, false
		}
	}
	for _, a := range w.kept {
		var found bool
		rows, err := conn.QueryContext(ctx, s.sql.kept.text, a.Tenant, a.Operation, a.Key, a.Owner[:], a.Fence)
		if _, err := scanOne(rows, err, &found); err != nil || found {
			return true, false
		}
	}
	return true, true
}

// within runs fn in a write transaction, for the store's own work.
func (s *backend) within(ctx context.Context, fn func(ctx context.Context, t txTarget) error) error {
	if err := s.ready(ctx, s.db); err != nil {
		return err
	}
	return s.transact(ctx, s.lock(), fn)
}

// transact runs fn in a write transaction. The statements of fn cannot be
// canceled: they are few and short, and an interrupted statement would roll
// back the transaction.
func (s *backend) transact(ctx context.Context, lock locker, fn func(ctx context.Context, t txTarget) error) error {
	session, err := s.begin(ctx, nil, lock)
	if err != nil {
		return err
	}
	detached := context.WithoutCancel(ctx)
	if err := fn(detached, txTarget{s, session.Tx()}); err != nil {
		return errors.Join(s.explain(err), session.Rollback(detached))
	}
	_, err = session.Commit(detached, nil, false)
	return err
}
