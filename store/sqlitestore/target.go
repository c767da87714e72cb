package sqlitestore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// target is a transaction that statements run in.
type target interface {
	querier
	exec(ctx context.Context, st *statement, args ...any) (sql.Result, error)
	query(ctx context.Context, st *statement, args ...any) (*sql.Rows, error)
	// text runs a statement that is not worth preparing.
	text(ctx context.Context, query string) error
}

// txTarget is a transaction of database/sql. It uses prepared statements where
// they exist.
type txTarget struct {
	store *backend
	*sql.Tx
}

func (t txTarget) exec(ctx context.Context, st *statement, args ...any) (sql.Result, error) {
	if p := t.prepared(st); p != nil {
		result, err := t.StmtContext(ctx, p).ExecContext(ctx, args...) //nolint:sqlclosecheck // ends with the transaction
		if !otherHandle(err) {
			return result, err
		}
	}
	return t.ExecContext(ctx, st.text, args...)
}

func (t txTarget) query(ctx context.Context, st *statement, args ...any) (*sql.Rows, error) {
	if p := t.prepared(st); p != nil {
		rows, err := t.StmtContext(ctx, p).QueryContext(ctx, args...) //nolint:sqlclosecheck // ends with the transaction
		if !otherHandle(err) {
			return rows, err
		}
	}
	return t.QueryContext(ctx, st.text, args...)
}

func (t txTarget) text(ctx context.Context, query string) error {
	_, err := t.ExecContext(ctx, query)
	return err
}

// prepared returns the prepared form of a statement. If there is none, it
// returns nil and marks the statement.
func (t txTarget) prepared(st *statement) *sql.Stmt {
	p := st.prepared.Load()
	if p == nil && !st.wanted.Swap(true) {
		t.store.wanted.Store(true)
	}
	return p
}

// otherHandle reports whether a prepared statement may have failed only because
// the transaction belongs to another [*sql.DB] on the same file. Such a
// transaction is valid but cannot use the statement. database/sql has no name
// for that error; it is none of the errors of SQLite, of the context or of an
// ended transaction. If the guess is wrong, the statement fails again, from its
// text.
func otherHandle(err error) bool {
	if err == nil || errors.Is(err, sql.ErrTxDone) || errors.Is(err, context.Canceled) || errors.Is(err, context.DeadlineExceeded) {
		return false
	}
	extended, _ := code(err)
	return extended == 0
}

// sqlTarget is a transaction of a library that hides its [*sql.Tx].
type sqlTarget struct{ driver.SQLTx }

func (t sqlTarget) exec(ctx context.Context, st *statement, args ...any) (sql.Result, error) {
	return t.ExecContext(ctx, st.text, args...)
}

func (t sqlTarget) query(ctx context.Context, st *statement, args ...any) (*sql.Rows, error) {
	return t.QueryContext(ctx, st.text, args...)
}

func (t sqlTarget) text(ctx context.Context, query string) error {
	_, err := t.ExecContext(ctx, query)
	return err
}

// eachRow calls fn for every row and closes the rows.
func eachRow(rows *sql.Rows, err error, fn func(*sql.Rows) error) error {
	if err != nil {
		return err
	}
	defer rows.Close()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}

// affected returns the number of rows that a statement changed.
func affected(result sql.Result, err error) (int64, error) {
	if err != nil {
		return 0, err
	}
	return result.RowsAffected()
}

// idArg returns an id as an argument.
func idArg(id waybill.ID) any { return id[:] }

// scanID scans an id. NULL is the zero id.
type scanID waybill.ID

// Scan implements sql.Scanner.
func (id *scanID) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*id = scanID{}
		return nil
	case []byte:
		if len(v) == len(id) {
			copy(id[:], v)
			return nil
		}
	}
	return fmt.Errorf("sqlitestore: %T is not an id of 16 bytes", src)
}
