package memstore_test

import (
	"testing"

	"github.com/waybillhq/waybill/inbox/inboxtest"
	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestInbox runs the suite of consumer groups over this store.
func TestInbox(t *testing.T) {
	inboxtest.Run(t, drivertest.Harness[*memstore.Tx]{
		Name: "memstore", Features: drivertest.Features{SavepointAPI: true, ForeignTx: true, StoredHeaders: true},
		Open: func(t *testing.T) drivertest.Instance[*memstore.Tx] { return instance(t, memstore.Config{}) },
	})
}
