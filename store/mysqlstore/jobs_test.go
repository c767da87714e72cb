package mysqlstore_test

import (
	"database/sql"
	"testing"

	"github.com/waybillhq/waybill/reconcile/reconciletest"
	"github.com/waybillhq/waybill/store/storetest"
)

// TestReconcile runs the reconciliation suite on this store.
func TestReconcile(t *testing.T) { onBoth(t, testReconcile) }

func testReconcile(t *testing.T) {
	reconciletest.Run(t, storetest.Harness[*sql.Tx]{
		Name: columnOf(t), Features: features,
		Open: func(t *testing.T) storetest.Instance[*sql.Tx] { return instance(t, nil, nil) },
	})
}
