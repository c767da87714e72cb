package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store/driver"
)

// Begin implements [driver.Beginner].
func (s *backend) Begin(ctx context.Context, opts *sql.TxOptions) (driver.Session[*sql.Tx], error) {
	f, err := s.facts(ctx, s.db)
	if err != nil {
		return nil, err
	}
	s.prepareWanted(ctx, f)
	w := &written{}
	var tx *sql.Tx
	sess, err := sqltx.Begin(ctx, s.db, opts, sqltx.Dialect{
		Open: s.stillOpen, Present: s.stillThere, RolledBack: answeredNo,
		Kept: func(ctx context.Context, tx *sql.Tx) error { return s.kept(ctx, tx, w.all()) },
		Ended: func() {
			s.mu.Lock()
			defer s.mu.Unlock()
			delete(s.sessions, tx)
		},
	})
	if err != nil {
		return nil, err
	}
	tx = sess.Tx()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.sessions[tx] = w
	return sess, nil
}

// written lists the events that a transaction has written.
type written struct {
	mu  sync.Mutex
	ids []waybill.ID
}

func (w *written) all() []waybill.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ids
}

// note records the events that a transaction of this store has written. The
// store does not see the end of any other transaction.
func (s *backend) note(tx querier, evs []waybill.Event, placed []driver.AppendResult) {
	begun, ok := tx.(*sql.Tx)
	if !ok {
		return
	}
	s.mu.Lock()
	w := s.sessions[begun]
	s.mu.Unlock()
	if w == nil {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	for i, ev := range evs {
		if placed[i].ID == ev.ID {
			w.ids = append(w.ids, ev.ID)
		}
	}
}

// stillOpen returns an error unless the transaction is still open. The server
// ends a transaction on its own at a deadlock and at a DDL statement; a caller
// that swallows the deadlock error and continues would otherwise see a
// successful commit. The check costs a round trip, and nothing cheaper is
// reliable: the statements of a *sql.Tx are not visible to the store, and the
// driver does not expose the transaction status that the server sends with
// every response.
func (s *backend) stillOpen(ctx context.Context, tx *sql.Tx) error {
	f, err := s.facts(ctx, tx)
	if err != nil {
		return err
	}
	open := false
	if f.proves {
		_, err = tx.ExecContext(ctx, s.sql.proveOpen)
		open = err == nil
		if number(err) == errOutOfRange {
			err = nil
		}
	} else {
		open, err = inTransaction(ctx, tx)
	}
	if err != nil {
		return s.explain(err)
	}
	if !open {
		return errEndedInside()
	}
	return nil
}

func errEndedInside() error {
	return fmt.Errorf("mysqlstore: %w: %w: ended by a deadlock or a DDL statement", waybill.ErrUncertain, waybill.ErrTxDone)
}

// kept returns an error if the server ended a transaction that is to be rolled
// back and some of its writes survived: a DDL statement commits the writes
// before it. After a deadlock nothing survives, which equals a rollback.
func (s *backend) kept(ctx context.Context, tx *sql.Tx, ids []waybill.ID) error {
	// If the connection is lost, the server rolls back.
	if len(ids) == 0 || !errors.Is(s.stillOpen(ctx, tx), waybill.ErrTxDone) {
		return nil
	}
	for part := range parts(ids, maxIDs) {
		var found bool
		query := fill(s.sql.anyFound, "{ids}", idList(part))
		if err := each(ctx, tx, query, nil, nil, &found); err != nil || found {
			return errors.Join(errEndedInside(), s.explain(err))
		}
	}
	return nil
}

// stillThere returns the events that have a row visible to tx. It also checks
// that the transaction is still open, because the server accepts COMMIT even
// after it has ended the transaction. After a deadlock everything was rolled
// back; after a DDL statement everything before it was committed. Only a later
// query of the rows shows which.
func (s *backend) stillThere(ctx context.Context, tx *sql.Tx, ids []waybill.ID) (map[waybill.ID]bool, error) {
	f, err := s.facts(ctx, tx)
	if err != nil {
		return nil, err
	}
	query, open := s.sql.presentProven, false
	if !f.proves {
		query = s.sql.present
		if open, err = inTransaction(ctx, tx); err != nil {
			return nil, s.explain(err)
		}
	}
	there := make(map[waybill.ID]bool, len(ids))
	for part := range parts(ids, maxIDs) {
		var id scanID
		args := append(idArgs(part), idArgs(part)...)
		err := each(ctx, tx, fill(query, "{marks}", marks(len(part))), args, func() {
			there[waybill.ID(id)] = true
			// The marker row of an open transaction.
			open = open || id == (scanID{})
		}, &id)
		if err != nil {
			return nil, s.explain(err)
		}
	}
	if !open {
		return nil, errEndedInside()
	}
	return there, nil
}

// inTransaction reports whether a transaction is open, on servers without a
// variable for it: SET TRANSACTION fails inside a transaction. Outside of one,
// the statement sets the next transaction to READ WRITE, the default; the
// ROLLBACK that must follow resets it.
func inTransaction(ctx context.Context, q querier) (bool, error) {
	_, err := q.ExecContext(ctx, `SET TRANSACTION READ WRITE`)
	if number(err) == errTxInProgress {
		return true, nil
	}
	return false, err
}

// definite lists the errors of a COMMIT that prove that nothing was committed:
// a deadlock, including one that a cluster detects at commit; a lock wait
// timeout; a violated constraint; a refusal by group replication.
var definite = map[uint16]bool{
	errDeadlock: true, errLockTimeout: true, errDuplicate: true,
	1451: true, 1452: true, // foreign key violations
	3101: true, // rolled back during commit by a plugin
}

// answeredNo reports whether a failed COMMIT certainly committed nothing. For
// every other error, including a lost connection and a server shutdown, the
// outcome is unknown.
func answeredNo(err error) bool { return definite[number(err)] }
