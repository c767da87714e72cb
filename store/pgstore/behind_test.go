package pgstore_test

import (
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/idempotency/idemtest"
	"github.com/waybillhq/waybill/inbox/inboxtest"
	"github.com/waybillhq/waybill/relay/relaytest"
	"github.com/waybillhq/waybill/store/drivertest"
)

// behind returns a pool for whose sessions the server's clock is an hour
// behind: a schema in front of the server's own replaces the clock functions.
// Tables that are created through the pool keep that clock in their defaults.
func behind(t *testing.T) *pgxpool.Pool {
	t.Helper()
	plain := openPool(t, nil)
	schema := schemaOf(t, plain)
	if _, err := plain.Exec(t.Context(), `CREATE SCHEMA "`+schema+`"`); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"now", "clock_timestamp", "statement_timestamp", "transaction_timestamp"} {
		volatility := "STABLE"
		if name == "clock_timestamp" {
			volatility = "VOLATILE"
		}
		_, err := plain.Exec(t.Context(), `CREATE FUNCTION "`+schema+`".`+name+`() RETURNS timestamptz LANGUAGE sql `+volatility+
			` AS $$ SELECT pg_catalog.`+name+`() - interval '1 hour' $$`)
		if err != nil {
			t.Fatal(err)
		}
	}
	return openPool(t, func(c *pgxpool.Config) {
		manyConns(c)
		c.ConnConfig.RuntimeParams["search_path"] = schema + ", pg_catalog, public"
	})
}

// TestClockBehind: the server's clock is an hour behind the clock of this
// process. No event is delivered before its due time by the server's clock, and
// the leases of consumers and of keys follow the server's clock.
func TestClockBehind(t *testing.T) {
	pool := behind(t)
	h := drivertest.Harness[pgx.Tx]{
		Name: "pgstore", Features: all,
		Open: shelve(t, pool).pgx,
	}
	t.Run("relay", func(t *testing.T) { relaytest.RunBehind(t, h) })
	t.Run("inbox", func(t *testing.T) { inboxtest.Run(t, h) })
	t.Run("keys", func(t *testing.T) { idemtest.Run(t, h) })
}
