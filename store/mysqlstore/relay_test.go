package mysqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/waybillhq/waybill/relay/relaytest"
	"github.com/waybillhq/waybill/store/drivertest"
)

// TestRelay runs the relay suite on this store.
func TestRelay(t *testing.T) { t.Parallel(); onBoth(t, testRelay) }

func testRelay(t *testing.T) {
	relaytest.Run(t, drivertest.Harness[*sql.Tx]{
		Name: columnOf(t), Features: features,
		Open: shelve(t).instance,
	})
}
