package pgstore_test

import (
	"fmt"
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// fillDead inserts dead letters of 200 types and 200 aggregates into the outbox
// and into the backlogs of two destinations.
const fillDead = `WITH e AS MATERIALIZED (
  SELECT 1 AS lane, seq, gen_random_uuid() AS id, 'Type' || seq % 200 AS type, 'thing' AS aggregate_type, 'a' || seq % 200 AS aggregate_id,
    1 AS schema_version, now() AS occurred_at, 0::smallint AS priority, '1'::bytea AS payload, now() AS created_at FROM generate_series(1, 4000) AS seq
), d AS (
  INSERT INTO waybill_dead (lane, seq, id, type, aggregate_type, aggregate_id, schema_version, occurred_at, priority, payload, created_at, attempts,
    replay, holds)
  SELECT *, 1, 0, false FROM e
)
INSERT INTO waybill_backlog_dead (lane, seq, id, type, aggregate_type, aggregate_id, schema_version, occurred_at, priority, payload, created_at, attempts,
  replay, holds)
SELECT 1024 * n + lane, seq, id, type, aggregate_type, aggregate_id, schema_version, occurred_at, priority, payload, created_at, 1, 0, false
FROM e, generate_series(1, 2) AS n`

// TestDeadLettersFollowTheIndexes: lists and counts of the dead letters of one
// type or of one aggregate read no others, however often they run and whatever
// else the filter has.
func TestDeadLettersFollowTheIndexes(t *testing.T) {
	pool := openPool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	db, schema := openStore(t, pool)
	register(t, db, "a", "b")
	for _, statement := range []string{
		`SET search_path = "` + schema + `"`, fillDead, `ANALYZE waybill_dead`, `ANALYZE waybill_backlog_dead`, `RESET search_path`,
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	filters := []store.Filter{
		{Type: "Type7"}, {AggregateType: "thing", AggregateID: "a7"}, {Type: "Type7", AggregateID: "a7"}, {Type: "Type7", NoTenant: true, Failed: true},
	}
	for name, inspector := range map[string]driver.Inspector{"outbox": db.Driver().OutboxAdmin, "backlog": db.Driver().Backlogs.Backlog(2)} {
		for range 8 { // until the server has chosen the plans
			for _, f := range filters {
				before := touched(t, pool, schema)
				n, err := inspector.Count(t.Context(), store.Dead, f)
				if err != nil || n != 20 {
					t.Fatalf("%s: %d dead letters match %+v, %v", name, n, f, err)
				}
				list, err := inspector.List(t.Context(), store.Dead, f, 2007, 5)
				if err != nil || len(list) != 5 || list[0].Seq != 2207 {
					t.Fatalf("%s: %d letters of %+v, %v", name, len(list), f, err)
				}
				if read := touched(t, pool, schema) - before; read > 100 {
					t.Fatalf("%s: %+v read %d rows and index entries", name, f, read)
				}
			}
		}
	}
	all := fmt.Sprint(db.Driver().OutboxAdmin.Count(t.Context(), store.Dead, store.Filter{}))
	if all != "4000 <nil>" {
		t.Errorf("all dead letters: %s", all)
	}
}
