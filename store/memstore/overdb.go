package memstore

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/sqltx"
	"github.com/waybillhq/waybill/store/driver"
)

// OverDB returns a store that follows the transactions of db, a database of any
// kind without tables of the outbox.
//
// Over a db that [OpenDB] or [Connector] opened, the store follows every
// transaction: those that it begins, those of db.BeginTx, and through
// outbox.WriteSQL those that a library hides. SAVEPOINT and ROLLBACK TO as SQL
// text undo events too. Over any other db, the store follows only those that it
// begins itself, without savepoints, and writing to another one fails with
// [waybill.ErrNoTx].
//
// The store learns of the end of a transaction from Commit and Rollback. If the
// server has rolled back by itself, as MySQL does after a deadlock, the caller
// has to call Rollback. A COMMIT that fails without an SQLSTATE of the server
// counts as [waybill.ErrUncertain].
func OverDB(db *sql.DB, cfg Config) (*Store[*sql.Tx], error) {
	if db == nil {
		return nil, errors.New("memstore: db is nil")
	}
	t, err := newTables(cfg)
	if err != nil {
		return nil, err
	}
	b := &sqlBackend{backend: &backend[*sql.Tx]{tables: t}}
	_, followed := db.Driver().(followedDriver)
	b.begin = func(ctx context.Context, opts *sql.TxOptions) (Handle[*sql.Tx], error) {
		return b.beginOn(ctx, db, opts, followed)
	}
	if followed {
		b.join = func(ctx context.Context, tx *sql.Tx) (*txn, error) { return joinTx(ctx, tx, t) }
	}
	return &Store[*sql.Tx]{backend: b.backend, roles: driver.RolesOf[*sql.Tx](b)}, nil
}

// sqlBackend is a backend over a [*sql.DB].
type sqlBackend struct{ *backend[*sql.Tx] }

var (
	_ driver.SQLAppender     = (*sqlBackend)(nil)
	_ driver.RetryClassifier = (*sqlBackend)(nil)
)

func (b *sqlBackend) beginOn(ctx context.Context, db *sql.DB, opts *sql.TxOptions, followed bool) (Handle[*sql.Tx], error) {
	sess, err := sqltx.Begin(ctx, db, opts, sqltx.Dialect{RolledBack: refused})
	if err != nil {
		return Handle[*sql.Tx]{}, err
	}
	h := Handle[*sql.Tx]{
		Tx:       sess.Tx(),
		Commit:   func(ctx context.Context) error { _, err := sess.Commit(ctx, nil, false); return err },
		Rollback: sess.Rollback,
	}
	if followed {
		if h.txn, err = joinTx(ctx, h.Tx, b.tables); err != nil {
			return Handle[*sql.Tx]{}, errors.Join(err, sess.Rollback(ctx))
		}
	}
	return h, nil
}

// AppendSQL implements [driver.SQLAppender].
func (b *sqlBackend) AppendSQL(ctx context.Context, tx driver.SQLTx, evs []waybill.Event) ([]driver.AppendResult, error) {
	if b.join == nil {
		return nil, errNotFollowed
	}
	txn, err := joinTx(ctx, tx, b.tables)
	if err != nil {
		return nil, err
	}
	return txn.append(ctx, evs)
}

// IsRetryable implements [driver.RetryClassifier].
func (b *sqlBackend) IsRetryable(err error) bool {
	switch sqlState(err) {
	case "40001", "40P01": // serialization failure, deadlock
		return true
	}
	return b.tables.IsRetryable(err)
}

// refused reports whether a failed COMMIT certainly left nothing: the server
// itself reported a violation, or that the transaction was rolled back.
func refused(err error) bool {
	state := sqlState(err)
	return strings.HasPrefix(state, "23") || strings.HasPrefix(state, "40") && state != "40003"
}

// sqlState returns the SQLSTATE of an error of pgx, lib/pq or another driver
// that offers it, or "".
func sqlState(err error) string {
	var coded interface{ SQLState() string }
	if errors.As(err, &coded) {
		return coded.SQLState()
	}
	return ""
}

var errNotFollowed = fmt.Errorf("%w: memstore.OpenDB has not opened the database of this transaction", waybill.ErrNoTx)

// joinTx returns the store's part of a transaction of a followed database.
func joinTx(ctx context.Context, tx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
}, t *tables,
) (*txn, error) {
	j := &join{tables: t}
	if _, err := tx.ExecContext(ctx, joinText, j); err != nil {
		return nil, fmt.Errorf("memstore: join: %w", sqltx.Done(err))
	}
	if j.txn == nil {
		return nil, errNotFollowed
	}
	return j.txn, nil
}
