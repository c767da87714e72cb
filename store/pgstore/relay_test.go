package pgstore_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/relay/relaytest"
	"github.com/waybillhq/waybill/store/storetest"
)

// TestRelay shows the relay's promises over pgx.
func TestRelay(t *testing.T) {
	pool := openPool(t, nil)
	relaytest.Run(t, storetest.Harness[pgx.Tx]{
		Name: "pgstore", Features: all,
		Open: func(t *testing.T) storetest.Instance[pgx.Tx] { return pgxInstance(t, pool) },
	})
}

// TestRelaySQL shows them over database/sql.
func TestRelaySQL(t *testing.T) {
	pool := openPool(t, nil)
	features := all
	features.SavepointAPI = false
	relaytest.Run(t, storetest.Harness[*sql.Tx]{
		Name: "pgstore/sql", Features: features,
		Open: func(t *testing.T) storetest.Instance[*sql.Tx] { return sqlInstance(t, pool) },
	})
}
