package mysqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/waybillhq/waybill/reconcile/reconciletest"
	"github.com/waybillhq/waybill/store/drivertest"
)

// TestReconcile runs the reconciliation suite on this store.
func TestReconcile(t *testing.T) { t.Parallel(); onBoth(t, testReconcile) }

func testReconcile(t *testing.T) {
	reconciletest.Run(t, drivertest.Harness[*sql.Tx]{
		Name: columnOf(t), Features: features,
		Open: shelve(t).instance,
	})
}
