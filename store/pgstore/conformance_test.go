package pgstore_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/store/storetest"
)

var all = storetest.Features{
	PlainSQL: true, SavepointAPI: true, SavepointSQL: true, SecondStore: true, LateCommits: true, ForeignTx: true, StoredHeaders: true,
}

func TestConformance(t *testing.T) {
	pool := openPool(t, nil)
	storetest.Run(t, storetest.Harness[pgx.Tx]{
		Name: "pgstore", Features: all,
		Open: func(t *testing.T) storetest.Instance[pgx.Tx] { return pgxInstance(t, pool) },
	})
}

func TestConformanceSQL(t *testing.T) {
	pool := openPool(t, nil)
	features := all
	features.SavepointAPI = false // a *sql.Tx has none
	storetest.Run(t, storetest.Harness[*sql.Tx]{
		Name: "pgstore/sql", Features: features,
		Open: func(t *testing.T) storetest.Instance[*sql.Tx] { return sqlInstance(t, pool) },
	})
}

// Poolers in transaction mode want one of the other protocols. What rides in front of a statement must ride there too.
func TestConformanceProtocols(t *testing.T) {
	for name, mode := range map[string]pgx.QueryExecMode{
		"exec": pgx.QueryExecModeExec, "simple": pgx.QueryExecModeSimpleProtocol,
	} {
		t.Run(name, func(t *testing.T) {
			pool := openPool(t, func(c *pgxpool.Config) { c.ConnConfig.DefaultQueryExecMode = mode })
			storetest.Run(t, storetest.Harness[pgx.Tx]{
				Name: "pgstore/" + name, Features: all,
				Open: func(t *testing.T) storetest.Instance[pgx.Tx] { return pgxInstance(t, pool) },
			})
		})
	}
}
