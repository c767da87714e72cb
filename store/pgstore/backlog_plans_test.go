package pgstore_test

import (
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// touched returns the number of rows and index entries of the history, of dead
// letters and of the backlogs that were read.
func touched(t *testing.T, pool *pgxpool.Pool, schema string) (n int64) {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
		t.Fatal(err)
	}
	err := pool.QueryRow(t.Context(), `SELECT
(SELECT sum(seq_tup_read + coalesce(idx_tup_fetch, 0)) FROM pg_stat_user_tables WHERE schemaname = $1 AND (relname ~ 'waybill_(backlog|history|dead)')) +
(SELECT sum(idx_tup_read) FROM pg_stat_user_indexes WHERE schemaname = $1 AND (relname ~ 'waybill_(backlog|history|dead)'))`, schema).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// fillBacklogs inserts rows in every state, in one lane of two destinations,
// and into the history.
const fillBacklogs = `WITH e AS MATERIALIZED (
  SELECT 1 AS lane, seq, gen_random_uuid() AS id, 'X' AS type, '' AS aggregate_type, 1 AS schema_version, now() - interval '1 hour' AS occurred_at,
    (seq % 2)::smallint AS priority, '1'::bytea AS payload, now() - interval '1 hour' AS created_at FROM generate_series(1, 5000) AS seq
), h AS (
  INSERT INTO waybill_history (lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, attempts, replay, done_at)
  SELECT *, 0, 0, now() - interval '1 hour' + seq * interval '1 millisecond' FROM e
), b AS (
  INSERT INTO waybill_backlog (lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, attempts, replay, final)
  SELECT 1024 * n + lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, 0, 0, false
  FROM e, generate_series(1, 2) AS n WHERE seq < 2000
), l AS (
  INSERT INTO waybill_backlog_delayed (lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, due_at, attempts,
    replay, holds)
  SELECT 1024 * n + lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, created_at, 0, 0, false
  FROM e, generate_series(1, 2) AS n WHERE seq BETWEEN 2000 AND 3000
)
INSERT INTO waybill_backlog_dead (lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, attempts, replay, holds,
  died_at)
SELECT 1024 * n + lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, 0, 0, false, created_at
FROM e, generate_series(1, 2) AS n WHERE seq BETWEEN 3001 AND 4000`

// TestBacklogsFollowTheIndexes: no statement reads a whole backlog, the rows of
// another destination, or the history. The plans are from empty tables; those
// of some statements adapt when the server has analyzed the tables.
func TestBacklogsFollowTheIndexes(t *testing.T) {
	pool := openPool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	db, schema, rows, _ := owned(t, pool, 20)
	register(t, db, "a", "b")
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	if _, err := db.Driver().Relay.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	leases, err := db.Driver().Relay.Acquire(t.Context(), node, []int{1}, 1)
	if err != nil {
		t.Fatal(err)
	}
	if rows[0].Lane == 1 {
		t.Fatal("the events of the outbox are in lane 1")
	}
	backlog := db.Driver().Backlogs.Backlog(2)
	cursors := []driver.Cursor{{Lane: 1}}
	var ids []waybill.ID // of rows in the three states
	var after driver.HistoryCursor
	result := func(i int) []driver.Result {
		if ids == nil {
			return []driver.Result{{Lane: 1, ID: waybill.NewID()}}
		}
		return []driver.Result{{Lane: 1, ID: ids[i], Delay: time.Hour}}
	}
	id := func(i int) []waybill.ID { return []waybill.ID{result(i)[0].ID} }
	steps := []struct {
		name string
		most int64
		do   func() error
	}{
		// These reads follow an index whatever the statistics are.
		{"Fetch", 10, func() error { return second(backlog.Fetch(t.Context(), cursors, 2)) }},
		{"Sweep", 10, func() error { return second(backlog.Sweep(t.Context(), cursors, 2)) }},
		{"Load", 10, func() error { return second(backlog.Load(t.Context(), []store.Key{{Lane: 1, Seq: 1000}})) }},
		{"Due", 10, func() error { return second(backlog.Due(t.Context(), []int{1}, 2)) }},
		{"FetchPriority", 60, func() error { return second(backlog.FetchPriority(t.Context(), cursors, 2)) }},
		{"Occupied", 20, func() error { return second(backlog.Occupied(t.Context())) }},
		{"Refill", 60, func() error { return second(backlog.Refill(t.Context(), driver.HistoryQuery{}, after, 2)) }},
		// These statements need statistics.
		{"Holds", 10, func() error { return second(backlog.Holds(t.Context(), []int{1, 2})) }},
		{"Find", 20, func() error { return second(backlog.Find(t.Context(), id(0)[0])) }},
		{"List ready", 10, func() error { return second(backlog.List(t.Context(), store.Ready, store.Filter{}, 0, 2)) }},
		{"List dead", 20, func() error { return second(backlog.List(t.Context(), store.Dead, store.Filter{}, 3500, 2)) }},
		{"Settle done", 40, func() error {
			return second(backlog.Settle(t.Context(), driver.Settlement{Leases: leases, Done: result(0), History: true}))
		}},
		{"Settle retry", 40, func() error {
			return second(backlog.Settle(t.Context(), driver.Settlement{Leases: leases, Retry: result(1)}))
		}},
		{"Settle dead", 40, func() error {
			return second(backlog.Settle(t.Context(), driver.Settlement{Leases: leases, Dead: result(2)}))
		}},
		{"Unblock", 20, func() error { return second(backlog.Unblock(t.Context(), id(3))) }},
		{"Replay", 20, func() error { return second(backlog.Replay(t.Context(), id(3))) }},
		{"Discard", 20, func() error { return second(backlog.Discard(t.Context(), id(4))) }},
		{"PurgeDead", 20, func() error { return second(backlog.PurgeDead(t.Context(), time.Minute, 2)) }},
		{"divert", 20, func() error {
			if ids == nil {
				rows = rows[1:]
			}
			return second(db.Driver().Relay.Settle(t.Context(), diverting(leases, rows[:1], 2)))
		}},
	}
	for range 8 { // until the server has chosen the plans
		for _, s := range steps {
			if err := s.do(); err != nil {
				t.Fatalf("%s: %v", s.name, err)
			}
		}
	}
	for _, statement := range []string{
		`SET search_path = "` + schema + `"`, `TRUNCATE waybill_history, waybill_backlog`, fillBacklogs, `RESET search_path`,
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	for _, seq := range []int64{1001, 1002, 1003, 3500, 3600} {
		var id waybill.ID
		if err := pool.QueryRow(t.Context(), `SELECT id FROM "`+schema+`".waybill_history WHERE seq = $1`, seq).Scan((*[16]byte)(&id)); err != nil {
			t.Fatal(err)
		}
		ids = append(ids, id)
	}
	err = pool.QueryRow(t.Context(), `SELECT done_at FROM "`+schema+`".waybill_history WHERE seq = 2500`).Scan(&after.At)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range steps {
		if s.name == "Holds" {
			for _, table := range []string{"history", "backlog", "backlog_delayed", "backlog_dead"} {
				if _, err := pool.Exec(t.Context(), `ANALYZE "`+schema+`".waybill_`+table); err != nil {
					t.Fatal(err)
				}
			}
		}
		before := touched(t, pool, schema)
		if err := s.do(); err != nil {
			t.Fatalf("%s: %v", s.name, err)
		}
		if n := touched(t, pool, schema) - before; n > s.most {
			t.Errorf("%s read %d rows and index entries, want at most %d", s.name, n, s.most)
		}
	}
}
