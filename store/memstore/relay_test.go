package memstore_test

import (
	"testing"

	"github.com/waybillhq/waybill/relay/relaytest"
	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestRelay runs the relay's suite over this store, with the default lanes and
// with one.
func TestRelay(t *testing.T) {
	for name, cfg := range map[string]memstore.Config{"lanes": {}, "one_lane": {Lanes: 1}} {
		t.Run(name, func(t *testing.T) {
			relaytest.Run(t, drivertest.Harness[*memstore.Tx]{
				Name: "memstore", Features: drivertest.Features{SavepointAPI: true, ForeignTx: true, StoredHeaders: true},
				Open: func(t *testing.T) drivertest.Instance[*memstore.Tx] { return instance(t, cfg) },
			})
		})
	}
}
