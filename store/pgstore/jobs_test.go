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
		Open: func(t *testing.T) drivertest.Instance[pgx.Tx] { return pgxInstance(t, pool) },
	})
}

// TestReconcileSQL tests the guarantees of reconciliation over database/sql.
func TestReconcileSQL(t *testing.T) {
	pool := openPool(t, manyConns)
	features := all
	features.SavepointAPI = false
	reconciletest.Run(t, drivertest.Harness[*sql.Tx]{
		Name: "pgstore/sql", Features: features,
		Open: func(t *testing.T) drivertest.Instance[*sql.Tx] { return sqlInstance(t, pool) },
	})
}
