package pgstore_test

import (
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/internal/storematrix"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/drivertest"
)

var all = drivertest.Features{
	PlainSQL: true, SavepointAPI: true, SavepointSQL: true, SecondStore: true, LateCommits: true, ForeignTx: true, StoredHeaders: true,
}

func TestConformance(t *testing.T) {
	t.Parallel()
	pool := openPool(t, nil)
	storematrix.Run(t, drivertest.Harness[pgx.Tx]{
		Name: "pgstore", Features: all,
		Open: shelve(t, pool).pgx,
	})
}

func TestConformanceSQL(t *testing.T) {
	t.Parallel()
	pool := openPool(t, nil)
	features := all
	features.SavepointAPI = false // a *sql.Tx has no savepoints
	storematrix.Run(t, drivertest.Harness[*sql.Tx]{
		Name: "pgstore/sql", Features: features,
		Open: shelve(t, pool).sql,
	})
}

// foreignSession configures sessions with another time zone and with other
// output formats of times and bytes, as settings of a role or a database may:
// no result may depend on them.
func foreignSession(c *pgxpool.Config) {
	c.ConnConfig.RuntimeParams["timezone"] = "Asia/Kathmandu" // 5:45 ahead
	c.ConnConfig.RuntimeParams["datestyle"] = "SQL, DMY"
	c.ConnConfig.RuntimeParams["intervalstyle"] = "sql_standard"
	c.ConnConfig.RuntimeParams["bytea_output"] = "escape"
}

// The suite on another major version of the server: the newest in make test,
// each in make test-postgres-versions. The sessions are those of
// foreignSession.
func TestConformanceNew(t *testing.T) {
	t.Parallel()
	pool := openPoolAt(t, testserver.PostgresNew(t), foreignSession)
	storematrix.Run(t, drivertest.Harness[pgx.Tx]{
		Name: "pgstore", Features: all,
		Open: shelve(t, pool).pgx,
	})
}

// Some poolers need the simple protocol; TestConformancePooler covers the other
// protocol that they accept. Buffered events must share the round trip of a
// statement here too. The sessions are those of foreignSession.
func TestConformanceSimpleProtocol(t *testing.T) {
	if !testserver.Full() {
		t.Skip("make test-stores-full runs it; TestPoolerEndToEnd has this protocol, too")
	}
	pool := openPool(t, func(c *pgxpool.Config) {
		c.ConnConfig.DefaultQueryExecMode = pgx.QueryExecModeSimpleProtocol
		foreignSession(c)
		// Results arrive as text, of which pgx itself reads only times in ISO
		// format and bytes in hexadecimal format.
		delete(c.ConnConfig.RuntimeParams, "datestyle")
		delete(c.ConnConfig.RuntimeParams, "bytea_output")
	})
	drivertest.Run(t, drivertest.Harness[pgx.Tx]{
		Name: "pgstore/simple", Features: all,
		Open: shelve(t, pool).pgx,
	})
}
