package memstore_test

import (
	"testing"

	"github.com/waybillhq/waybill/reconcile/reconciletest"
	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestReconcile runs the suite of reconciliation over this store.
func TestReconcile(t *testing.T) {
	reconciletest.Run(t, drivertest.Harness[*memstore.Tx]{
		Name: "memstore", Features: drivertest.Features{SavepointAPI: true, ForeignTx: true, StoredHeaders: true},
		Open: func(t *testing.T) drivertest.Instance[*memstore.Tx] { return instance(t, memstore.Config{}) },
	})
}
