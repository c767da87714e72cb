package memstore_test

import (
	"testing"

	"github.com/waybillhq/waybill/idempotency/idemtest"
	"github.com/waybillhq/waybill/store/memstore"
	"github.com/waybillhq/waybill/store/storetest"
)

// TestIdempotency runs the suite of idempotency keys over this store.
func TestIdempotency(t *testing.T) {
	idemtest.Run(t, storetest.Harness[*memstore.Tx]{
		Name: "memstore", Features: storetest.Features{SavepointAPI: true, ForeignTx: true, StoredHeaders: true},
		Open: func(t *testing.T) storetest.Instance[*memstore.Tx] { return instance(t, memstore.Config{}) },
	})
}
