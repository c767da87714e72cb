package memstore_test

import (
	"testing"

	"github.com/waybillhq/waybill/reconcile/reconciletest"
	"github.com/waybillhq/waybill/store/memstore"
	"github.com/waybillhq/waybill/store/storetest"
)

// TestReconcile runs the suite of reconciliation over this store.
func TestReconcile(t *testing.T) {
	reconciletest.Run(t, storetest.Harness[*memstore.Tx]{
		Name: "memstore", Features: storetest.Features{SavepointAPI: true, ForeignTx: true, StoredHeaders: true},
		Open: func(t *testing.T) storetest.Instance[*memstore.Tx] { return instance(t, memstore.Config{}) },
	})
}
