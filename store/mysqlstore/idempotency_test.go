package mysqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/waybillhq/waybill/idempotency/idemtest"
	"github.com/waybillhq/waybill/store/drivertest"
)

// TestIdempotency runs the idempotency suite on this store.
func TestIdempotency(t *testing.T) { t.Parallel(); onBoth(t, testIdempotency) }

func testIdempotency(t *testing.T) {
	idemtest.Run(t, drivertest.Harness[*sql.Tx]{
		Name: columnOf(t), Features: features,
		Open: shelve(t).instance,
	})
}
