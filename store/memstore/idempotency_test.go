package memstore_test

import (
	"testing"

	"github.com/waybillhq/waybill/idempotency/idemtest"
	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestIdempotency runs the suite of idempotency keys over this store.
func TestIdempotency(t *testing.T) {
	idemtest.Run(t, drivertest.Harness[*memstore.Tx]{
		Name: "memstore", Features: drivertest.Features{SavepointAPI: true, ForeignTx: true, StoredHeaders: true},
		Open: func(t *testing.T) drivertest.Instance[*memstore.Tx] { return instance(t, memstore.Config{}) },
	})
}
