package orm_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/e2e/orm/sqlc/pgxorders"
	"github.com/waybillhq/waybill/internal/e2e/orm/sqlc/sqlorders"
	"github.com/waybillhq/waybill/outbox"
)

// saveSQLC writes an order with sqlc's code for pgx, and its event, in any
// transaction.
func saveSQLC(ctx context.Context, tx pgx.Tx, queries *pgxorders.Queries, box *outbox.Outbox[pgx.Tx], o Order) error {
	if err := queries.WithTx(tx).InsertOrder(ctx, pgxorders.InsertOrderParams(o)); err != nil {
		return err
	}
	return box.Write(ctx, tx, OrderPlaced.New(o.ID, Placed{Total: o.Total}))
}

// inPGX calls fn in a transaction of pgx, and wakes the relay after the commit.
func inPGX(ctx context.Context, pool *pgxpool.Pool, box *outbox.Outbox[pgx.Tx], fn func(tx pgx.Tx) error) error {
	if err := pgx.BeginFunc(ctx, pool, fn); err != nil {
		return err
	}
	box.Wake()
	return nil
}

// saveSQLCStd is saveSQLC with sqlc's code for database/sql.
func saveSQLCStd(ctx context.Context, tx *sql.Tx, queries *sqlorders.Queries, box *outbox.Outbox[*sql.Tx], o Order) error {
	if err := queries.WithTx(tx).InsertOrder(ctx, sqlorders.InsertOrderParams(o)); err != nil {
		return err
	}
	return box.Write(ctx, tx, OrderPlaced.New(o.ID, Placed{Total: o.Total}))
}

func TestSQLC(t *testing.T) {
	contract[pgx.Tx]{
		open: openPGX,
		own: func(ctx context.Context, s shop[pgx.Tx], o Order, then func(writer) error) error {
			return inPGX(ctx, s.pool, s.box, func(tx pgx.Tx) error {
				if err := saveSQLC(ctx, tx, pgxorders.New(s.pool), s.box, o); err != nil {
					return err
				}
				return then(func(evs ...waybill.Event) error { return s.box.Write(ctx, tx, evs...) })
			})
		},
		joined: func(ctx context.Context, s shop[pgx.Tx], o Order, then func() error) error {
			return s.box.InTx(ctx, func(ctx context.Context, tx pgx.Tx) error {
				if err := saveSQLC(ctx, tx, pgxorders.New(s.pool), s.box, o); err != nil {
					return err
				}
				return then()
			})
		},
	}.run(t)
}

func TestSQLCStd(t *testing.T) {
	contract[*sql.Tx]{
		open: openSQL,
		own: func(ctx context.Context, s shop[*sql.Tx], o Order, then func(writer) error) error {
			tx, err := s.sqldb.BeginTx(ctx, nil)
			if err != nil {
				return err
			}
			defer func() { _ = tx.Rollback() }()
			if err := saveSQLCStd(ctx, tx, sqlorders.New(s.sqldb), s.box, o); err != nil {
				return err
			}
			if err := then(func(evs ...waybill.Event) error { return s.box.Write(ctx, tx, evs...) }); err != nil {
				return err
			}
			if err := tx.Commit(); err != nil {
				return err
			}
			s.box.Wake()
			return nil
		},
		joined: func(ctx context.Context, s shop[*sql.Tx], o Order, then func() error) error {
			return s.box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
				if err := saveSQLCStd(ctx, tx, sqlorders.New(s.sqldb), s.box, o); err != nil {
					return err
				}
				return then()
			})
		},
	}.run(t)
}
