package memstore_test

import (
	"testing"

	"github.com/waybillhq/waybill/inbox/inboxtest"
	"github.com/waybillhq/waybill/store/memstore"
	"github.com/waybillhq/waybill/store/storetest"
)

// TestInbox runs the suite of consumer groups over this store.
func TestInbox(t *testing.T) {
	inboxtest.Run(t, storetest.Harness[*memstore.Tx]{
		Name: "memstore", Features: storetest.Features{SavepointAPI: true, ForeignTx: true, StoredHeaders: true},
		Open: func(t *testing.T) storetest.Instance[*memstore.Tx] { return instance(t, memstore.Config{}) },
	})
}
