package orm_test

import (
	"context"
	"database/sql"
	"errors"
	"testing"

	"entgo.io/ent/dialect"
	entsql "entgo.io/ent/dialect/sql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/e2e/orm/ent"
	"github.com/waybillhq/waybill/outbox"
)

// saveEnt writes an order and its event in a transaction of ent.
func saveEnt(ctx context.Context, tx *ent.Tx, box *outbox.Outbox[*sql.Tx], o Order) error {
	if err := tx.Order.Create().SetID(o.ID).SetTotal(o.Total).Exec(ctx); err != nil {
		return err
	}
	return outbox.WriteSQL(ctx, box, tx, OrderPlaced.New(o.ID, Placed{Total: o.Total}))
}

// inEnt calls fn in a transaction of ent, and wakes the relay after the commit.
func inEnt(ctx context.Context, client *ent.Client, box *outbox.Outbox[*sql.Tx], fn func(tx *ent.Tx) error) error {
	tx, err := client.Tx(ctx)
	if err != nil {
		return err
	}
	done := false
	defer func() {
		// an error or a panic; after the commit it would run OnRollback hooks
		if !done {
			_ = tx.Rollback()
		}
	}()
	if err := fn(tx); err != nil {
		return err
	}
	done = true
	if err := tx.Commit(); err != nil {
		return err
	}
	box.Wake()
	return nil
}

// entTx is a driver for ent over a transaction that the caller begins and ends.
type entTx struct{ entsql.Conn }

func (t entTx) Tx(context.Context) (dialect.Tx, error) { return t, nil }
func (entTx) Commit() error                            { return waybill.ErrTxOwned }
func (entTx) Rollback() error                          { return waybill.ErrTxOwned }
func (entTx) Close() error                             { return nil }
func (entTx) Dialect() string                          { return dialect.Postgres }

// entOver returns an ent client in tx.
func entOver(ctx context.Context, tx *sql.Tx) (*ent.Tx, error) {
	return ent.NewClient(ent.Driver(entTx{entsql.Conn{ExecQuerier: tx}})).Tx(ctx)
}

// joinEnt writes an order with ent, and its event, in the transaction of InTx.
func joinEnt(ctx context.Context, tx *sql.Tx, box *outbox.Outbox[*sql.Tx], o Order) error {
	etx, err := entOver(ctx, tx)
	if err != nil {
		return err
	}
	if err := etx.Order.Create().SetID(o.ID).SetTotal(o.Total).Exec(ctx); err != nil {
		return err
	}
	return box.Write(ctx, tx, OrderPlaced.New(o.ID, Placed{Total: o.Total}))
}

func openEnt(s shop[*sql.Tx]) *ent.Client {
	return ent.NewClient(ent.Driver(entsql.OpenDB(dialect.Postgres, s.sqldb)))
}

func TestEnt(t *testing.T) {
	contract[*sql.Tx]{
		open: openSQL,
		own: func(ctx context.Context, s shop[*sql.Tx], o Order, then func(writer) error) error {
			return inEnt(ctx, openEnt(s), s.box, func(tx *ent.Tx) error {
				if err := saveEnt(ctx, tx, s.box, o); err != nil {
					return err
				}
				return then(func(evs ...waybill.Event) error { return outbox.WriteSQL(ctx, s.box, tx, evs...) })
			})
		},
		joined: func(ctx context.Context, s shop[*sql.Tx], o Order, then func() error) error {
			return s.box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
				if err := joinEnt(ctx, tx, s.box, o); err != nil {
					return err
				}
				return then()
			})
		},
	}.run(t)
}

// TestEntDebug: the debug driver of ent wraps the transaction once more.
func TestEntDebug(t *testing.T) {
	s := openSQL(t)
	logged := 0
	drv := dialect.DebugWithContext(entsql.OpenDB(dialect.Postgres, s.sqldb), func(context.Context, ...any) { logged++ })
	err := inEnt(t.Context(), ent.NewClient(ent.Driver(drv)), s.box, func(tx *ent.Tx) error {
		return saveEnt(t.Context(), tx, s.box, order)
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wants(t, order)
	if logged == 0 {
		t.Error("nothing was logged")
	}
}

// TestEntNoTransaction: a context without a transaction gives a nil *ent.Tx.
func TestEntNoTransaction(t *testing.T) {
	s := openSQL(t)
	err := outbox.WriteSQL(t.Context(), s.box, ent.TxFromContext(t.Context()), OrderPlaced.New("A-1", Placed{}))
	if !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("got the error %v, want %v", err, waybill.ErrNoTx)
	}
}

// TestEntOver: an update makes ent request a transaction of its own from its
// driver; in InTx it gets the existing one. Commit and Rollback are refused.
func TestEntOver(t *testing.T) {
	s := openSQL(t)
	err := s.box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		if err := joinEnt(ctx, tx, s.box, Order{ID: order.ID, Total: order.Total}); err != nil {
			return err
		}
		etx, err := entOver(ctx, tx)
		if err != nil {
			return err
		}
		if err := etx.Order.UpdateOneID(order.ID).AddTotal(1).Exec(ctx); err != nil {
			t.Error(err)
		}
		if err := etx.Order.UpdateOneID(order.ID).AddTotal(-1).Exec(ctx); err != nil {
			t.Error(err)
		}
		if err := etx.Commit(); !errors.Is(err, waybill.ErrTxOwned) {
			t.Errorf("commit: got the error %v, want %v", err, waybill.ErrTxOwned)
		}
		if err := etx.Rollback(); !errors.Is(err, waybill.ErrTxOwned) {
			t.Errorf("rollback: got the error %v, want %v", err, waybill.ErrTxOwned)
		}
		if _, err := etx.Client().Tx(ctx); !errors.Is(err, ent.ErrTxStarted) {
			t.Errorf("a transaction within: got the error %v, want %v", err, ent.ErrTxStarted)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wants(t, order)
}

// TestEntHidden: in InTx, an event that is written through a handle that hides
// the *sql.Tx is stored, but Waybill cannot assign it to that transaction: the
// hooks after the commit do not get it, and the hub is only woken. Hence the
// recipe writes to tx itself.
func TestEntHidden(t *testing.T) {
	s := openSQL(t)
	heard := s.listen(t)
	err := s.box.InTx(t.Context(), func(ctx context.Context, tx *sql.Tx) error {
		etx, err := entOver(ctx, tx)
		if err != nil {
			return err
		}
		return saveEnt(ctx, etx, s.box, order)
	})
	if err != nil {
		t.Fatal(err)
	}
	s.wants(t, order)
	if len(s.rec.Events()) != 0 || len(*heard) != 1 || len((*heard)[0].Entries) != 0 {
		t.Errorf("hooks saw %v and the hub heard %v; want nothing, and a bare wake-up", s.rec.Events(), *heard)
	}
}
