package pgstore_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/idempotency/idemtest"
	"github.com/waybillhq/waybill/store/drivertest"
)

// TestIdempotency tests the guarantees of idempotency keys over pgx.
func TestIdempotency(t *testing.T) {
	pool := openPool(t, manyConns)
	idemtest.Run(t, drivertest.Harness[pgx.Tx]{
		Name: "pgstore", Features: all,
		Open: shelve(t, pool).pgx,
	})
}

// TestIdempotencySQL tests the guarantees of idempotency keys over
// database/sql.
func TestIdempotencySQL(t *testing.T) {
	pool := openPool(t, manyConns)
	features := all
	features.SavepointAPI = false
	idemtest.Run(t, drivertest.Harness[*sql.Tx]{
		Name: "pgstore/sql", Features: features,
		Open: shelve(t, pool).sql,
	})
}
