package pgstore_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/reconcile/reconciletest"
	"github.com/waybillhq/waybill/store/drivertest"
)

// TestReconcile tests the guarantees of reconciliation over pgx.
func TestReconcile(t *testing.T) {
	pool := openPool(t, manyConns)
	reconciletest.Run(t, drivertest.Harness[pgx.Tx]{
		Name: "pgstore", Features: all,
		Open: shelve(t, pool).pgx,
	})
}

// TestReconcileSQL tests the guarantees of reconciliation over database/sql.
func TestReconcileSQL(t *testing.T) {
	pool := openPool(t, manyConns)
	features := all
	features.SavepointAPI = false
	reconciletest.Run(t, drivertest.Harness[*sql.Tx]{
		Name: "pgstore/sql", Features: features,
		Open: shelve(t, pool).sql,
	})
}
