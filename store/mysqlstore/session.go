package mysqlstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store"
)

// Begin implements [store.Beginner].
func (s *Store) Begin(ctx context.Context, opts *sql.TxOptions) (store.Session[*sql.Tx], error) {
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

// written is the events that a transaction has taken.
type written struct {
	mu  sync.Mutex
	ids []waybill.ID
}

func (w *written) all() []waybill.ID {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.ids
}

// note remembers what a transaction that this store began has taken. Another one ends without being
// asked.
func (s *Store) note(tx querier, evs []waybill.Event, placed []store.AppendResult) {
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

// stillOpen returns an error unless there is something to commit. The server ends a transaction by
// itself at a deadlock, and at a DDL statement; a caller that swallows the error of the first, and
// goes on, would be told that all of it was committed. It costs a round trip, and nothing cheaper
// is sure: the statements of a *sql.Tx cannot be seen, and the driver does not tell what the server
// says about its transaction with every answer.
func (s *Store) stillOpen(ctx context.Context, tx *sql.Tx) error {
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
	return fmt.Errorf("mysqlstore: %w: %w: a deadlock or a DDL statement inside has ended it", waybill.ErrUncertain, waybill.ErrTxDone)
}

// kept returns an error if a transaction that is to be rolled back has been ended by the server,
// and not without a trace: a DDL statement has committed what was before it. After a deadlock
// nothing is left, and that is as good as a rollback.
func (s *Store) kept(ctx context.Context, tx *sql.Tx, ids []waybill.ID) error {
	if len(ids) == 0 || !errors.Is(s.stillOpen(ctx, tx), waybill.ErrTxDone) { // without a connection the server rolls back
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

// stillThere returns which of the events have a row that tx sees. It also finds out whether there is still something to commit: the
// server may have ended the transaction, and answers COMMIT with yes even so. After a deadlock everything was rolled back; after a DDL
// statement everything before it was committed. Which of the two, only the rows can tell, later.
func (s *Store) stillThere(ctx context.Context, tx *sql.Tx, ids []waybill.ID) (map[waybill.ID]bool, error) {
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
			open = open || id == (scanID{}) // the row that is there if a transaction is open
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

// inTransaction reports whether a transaction is open, on servers that have no variable for it: its characteristics cannot be changed
// then. Where they can, the change is for the next transaction only, and to what it would have been anyway; the ROLLBACK that
// must follow takes it back.
func inTransaction(ctx context.Context, q querier) (bool, error) {
	_, err := q.ExecContext(ctx, `SET TRANSACTION READ WRITE`)
	if number(err) == errTxInProgress {
		return true, nil
	}
	return false, err
}

// definite are the answers to a COMMIT that say that there was none: a deadlock, also one that a cluster finds at the end; a lock
// wait that took too long; a violated constraint; a group that refused it.
var definite = map[uint16]bool{
	errDeadlock: true, errLockTimeout: true, errDuplicate: true,
	1451: true, 1452: true, // a foreign key
	3101: true, // rolled back during commit, by a plugin
}

// answeredNo reports whether a failed COMMIT certainly left nothing. Anything that is not in the list, the loss of the connection and a
// server that is shutting down included, leaves it open.
func answeredNo(err error) bool { return definite[number(err)] }
