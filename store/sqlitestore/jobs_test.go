package sqlitestore_test

import (
	"testing"

	"github.com/waybillhq/waybill/reconcile/reconciletest"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// TestReconcile tests the guarantees of reconciliation over this store.
func TestReconcile(t *testing.T) {
	t.Parallel()
	reconciletest.Run(t, harness(func(t *testing.T, path string) *sqlitestore.Store {
		return openAt(t, path, sqlitestore.Config{})
	}))
}
