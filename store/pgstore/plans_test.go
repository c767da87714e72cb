package pgstore_test

import (
	"testing"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/store/driver"
)

// Reads are planned once: planning takes longer than reading a few rows, and
// the server would plan every read of fewer lanes than it expects again.
func TestReadsAreNotPlannedAgain(t *testing.T) {
	pool := openPool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	s, _ := openStore(t, pool)
	for range 20 {
		if _, err := s.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{Lane: 1}, {Lane: 2}}, 10); err != nil {
			t.Fatal(err)
		}
		if _, err := s.Driver().Relay.Sweep(t.Context(), []driver.Cursor{{Lane: 1}}, 10); err != nil {
			t.Fatal(err)
		}
	}
	rows, err := pool.Query(t.Context(), `SELECT statement, custom_plans, generic_plans FROM pg_prepared_statements WHERE statement LIKE '%LATERAL%' AND statement NOT LIKE '%pg_prepared_statements%'`)
	if err != nil {
		t.Fatal(err)
	}
	defer rows.Close()
	reads := 0
	for rows.Next() {
		var statement string
		var custom, generic int
		if err := rows.Scan(&statement, &custom, &generic); err != nil {
			t.Fatal(err)
		}
		reads++
		if custom > 0 || generic < 20 {
			t.Errorf("planned %d times, and once for %d executions: %s", custom, generic, statement)
		}
	}
	if err := rows.Err(); err != nil || reads != 2 {
		t.Errorf("%d reads are prepared, want 2 (%v)", reads, err)
	}
}
