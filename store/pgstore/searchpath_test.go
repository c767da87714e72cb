package pgstore_test

import (
	"strings"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// A plain-SQL producer needs only the table's name: the trigger finds its
// functions regardless of the search path, and never calls a function that a
// hostile search path puts in front of them.
func TestPlainInsertWithAnySearchPath(t *testing.T) {
	pool := openPool(t, nil)
	for name, config := range map[string]func(schema string) (pgstore.Config, string){
		"schema of the config": func(schema string) (pgstore.Config, string) { return pgstore.Config{Schema: schema}, "public" },
		"schema of the path":   func(schema string) (pgstore.Config, string) { return pgstore.Config{}, schema },
	} {
		t.Run(name, func(t *testing.T) {
			schema, evil := schemaOf(t, pool), schemaOf(t, pool)
			cfg, path := config(schema)
			conn, err := pool.Acquire(t.Context())
			if err != nil {
				t.Fatal(err)
			}
			defer conn.Release()
			run := func(statement string) {
				t.Helper()
				if _, err := conn.Exec(t.Context(), statement, pgx.QueryExecModeSimpleProtocol); err != nil {
					t.Fatalf("%v\n%s", err, statement)
				}
			}
			run(`CREATE SCHEMA "` + schema + `"`)
			db, err := pgstore.New(pool, cfg)
			if err != nil {
				t.Fatal(err)
			}
			psql(t, strings.Replace(db.MigrationSQL(), "CREATE SCHEMA IF NOT EXISTS", "-- CREATE SCHEMA IF NOT EXISTS", 1), path)
			// Functions that a hostile search path would make the trigger call.
			run(`CREATE SCHEMA "` + evil + `"`)
			run(`CREATE FUNCTION "` + evil + `".waybill_lane_of(text, text, text, integer) RETURNS smallint LANGUAGE sql AS 'SELECT 1/0::smallint'`)
			run(`CREATE FUNCTION "` + evil + `".waybill_lane_count() RETURNS integer LANGUAGE sql AS 'SELECT 1/0'`)
			run(`CREATE FUNCTION "` + evil + `".sha256(bytea) RETURNS bytea LANGUAGE sql AS 'SELECT (1/0)::text::bytea'`)
			run(`CREATE FUNCTION "` + evil + `".convert_to(text, name) RETURNS bytea LANGUAGE sql AS 'SELECT (1/0)::text::bytea'`)
			defer run(`RESET search_path`)
			for _, path := range []string{`''`, `"` + evil + `", pg_catalog`, `pg_temp`} {
				run(`SET search_path = ` + path)
				run(`INSERT INTO "` + schema + `".waybill_outbox (type, aggregate_type, aggregate_id, payload) VALUES ('A', 'order', 'A-1', '1')`)
				run(`INSERT INTO "` + schema + `".waybill_outbox (type, payload) VALUES ('A', '1')`)
			}
			var right, all int
			err = conn.QueryRow(t.Context(), `SELECT count(*) FILTER (WHERE aggregate_id = 'A-1' AND lane = $1), count(*) FROM "`+schema+`".waybill_outbox`,
				driver.LaneOf("", "order", "A-1", 32)).Scan(&right, &all)
			if err != nil || right != 3 || all != 6 {
				t.Errorf("%d of 3 are in their lane, and %d of 6 are there: %v", right, all, err)
			}
		})
	}
}
