package mysqlstore

import (
	"context"
	"database/sql"
	"fmt"

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
	sess, err := sqltx.Begin(ctx, s.db, opts, sqltx.Dialect{Present: s.stillThere, RolledBack: answeredNo})
	if err != nil {
		return nil, err
	}
	return sess, nil
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
	for part := range parts(ids, manyIDs) {
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
		return nil, fmt.Errorf("mysqlstore: %w: %w: a deadlock or a DDL statement inside has ended it", waybill.ErrUncertain, waybill.ErrTxDone)
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
