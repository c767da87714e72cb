package orm_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jmoiron/sqlx"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
)

// saveSQLX writes an order and its event in a transaction of sqlx.
func saveSQLX(ctx context.Context, tx *sqlx.Tx, box *outbox.Outbox[*sql.Tx], o Order) error {
	if _, err := tx.NamedExecContext(ctx, `INSERT INTO orders (id, total) VALUES (:id, :total)`, o); err != nil {
		return err
	}
	// tx.Tx is the *sql.Tx inside
	return box.Write(ctx, tx.Tx, OrderPlaced.New(o.ID, Placed{Total: o.Total}))
}

// inSQLX calls fn in a transaction of sqlx, and wakes the relay after the
// commit.
func inSQLX(ctx context.Context, db *sqlx.DB, box *outbox.Outbox[*sql.Tx], fn func(tx *sqlx.Tx) error) error {
	tx, err := db.BeginTxx(ctx, nil)
	if err != nil {
		return err
	}
	defer func() { _ = tx.Rollback() }() // no effect after the commit
	if err := fn(tx); err != nil {
		return err
	}
	if err := tx.Commit(); err != nil {
		return err
	}
	box.Wake()
	return nil
}

// joinSQLX writes an order with sqlx, and its event, in the transaction of
// InTx.
func joinSQLX(ctx context.Context, tx *sql.Tx, db *sqlx.DB, box *outbox.Outbox[*sql.Tx], o Order) error {
	// db binds the names, because it knows the driver's placeholders: a sqlx.Tx
	// that sqlx did not begin does not.
	query, args, err := db.BindNamed(`INSERT INTO orders (id, total) VALUES (:id, :total)`, o)
	if err != nil {
		return err
	}
	if _, err := tx.ExecContext(ctx, query, args...); err != nil {
		return err
	}
	var stored Order // such a sqlx.Tx can scan into structs
	stx := &sqlx.Tx{Tx: tx, Mapper: db.Mapper}
	if err := stx.GetContext(ctx, &stored, `SELECT id, total FROM orders WHERE id = $1`, o.ID); err != nil {
		return err
	}
	return box.Write(ctx, tx, OrderPlaced.New(stored.ID, Placed{Total: stored.Total}))
}

func TestSQLX(t *testing.T) {
	contract[*sql.Tx]{
		open: openSQL,
		own: func(ctx context.Context, s shop[*sql.Tx], o Order, then func(writer) error) error {
			return inSQLX(ctx, sqlx.NewDb(s.sqldb, "pgx"), s.box, func(tx *sqlx.Tx) error {
				if err := saveSQLX(ctx, tx, s.box, o); err != nil {
					return err
				}
				return then(func(evs ...waybill.Event) error { return s.box.Write(ctx, tx.Tx, evs...) })
			})
		},
		joined: func(ctx context.Context, s shop[*sql.Tx], o Order, then func() error) error {
			return s.box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
				if err := joinSQLX(ctx, tx, sqlx.NewDb(s.sqldb, "pgx"), s.box, o); err != nil {
					return err
				}
				return then()
			})
		},
	}.run(t)
}

// TestSQLXWhole: a *sqlx.Tx is also a driver.SQLTx: both ways of passing it
// work.
func TestSQLXWhole(t *testing.T) {
	s := openSQL(t)
	err := inSQLX(t.Context(), sqlx.NewDb(s.sqldb, "pgx"), s.box, func(tx *sqlx.Tx) error {
		return outbox.WriteSQL(t.Context(), s.box, tx, OrderPlaced.New("A-1", Placed{}))
	})
	if err != nil {
		t.Fatal(err)
	}
	if n := len(s.events(t)); n != 1 {
		t.Errorf("got %d events, want 1", n)
	}
}
