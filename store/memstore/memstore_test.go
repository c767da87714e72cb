package memstore_test

import (
	"context"
	"testing"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/storematrix"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func TestConformance(t *testing.T) {
	storematrix.Run(t, drivertest.Harness[*memstore.Tx]{
		Name:     "memstore",
		Features: drivertest.Features{SavepointAPI: true, ForeignTx: true, StoredHeaders: true},
		Open:     func(t *testing.T) drivertest.Instance[*memstore.Tx] { return instance(t, memstore.Config{}) },
	})
}

// With one lane, as in an embedded database, all events are in one order.
func TestConformanceOneLane(t *testing.T) {
	drivertest.Run(t, drivertest.Harness[*memstore.Tx]{
		Name:     "memstore with one lane",
		Features: drivertest.Features{SavepointAPI: true, ForeignTx: true, StoredHeaders: true},
		Open:     func(t *testing.T) drivertest.Instance[*memstore.Tx] { return instance(t, memstore.Config{Lanes: 1}) },
	})
}

func instance(t *testing.T, cfg memstore.Config) drivertest.Instance[*memstore.Tx] {
	t.Helper()
	db, err := memstore.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return drivertest.Instance[*memstore.Tx]{
		DB: db.Driver(),
		Begin: func(ctx context.Context) (drivertest.Foreign[*memstore.Tx], error) {
			tx := memstore.BeginTx(db)
			return drivertest.Foreign[*memstore.Tx]{
				Tx:       tx,
				Commit:   func() error { return tx.Commit(ctx) },
				Rollback: func() error { return tx.Rollback(ctx) },
			}, nil
		},
		Savepoint: func(ctx context.Context, tx *memstore.Tx, fn func(tx *memstore.Tx) error) error {
			sp, err := tx.Begin(ctx)
			if err != nil {
				return err
			}
			if err := fn(sp); err != nil {
				_ = sp.Rollback(ctx)
				return err
			}
			return sp.Commit(ctx)
		},
		SetHeaders: func(_ context.Context, id waybill.ID, text string) error { return memstore.SetHeaders(db, id, text) },
		Pending:    func(context.Context) ([]store.Row, error) { return memstore.Pending(db), nil },
	}
}
