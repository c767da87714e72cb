package pgstore_test

import (
	"slices"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// owned writes events of one aggregate and returns their rows, and the lease of
// their lane.
func owned(t *testing.T, pool *pgxpool.Pool, n int) (*pgstore.Store, string, []store.Row, []driver.Lease) {
	t.Helper()
	db, schema := openStore(t, pool)
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for range n {
		ev := event("A")
		ev.AggregateType, ev.AggregateID = "thing", "a"
		if err := box.Write(t.Context(), tx, ev); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	lane := driver.LaneOf("", "thing", "a", 32)
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	if _, err := db.Driver().Relay.Heartbeat(t.Context(), node, time.Minute); err != nil {
		t.Fatal(err)
	}
	leases, err := db.Driver().Relay.Acquire(t.Context(), node, []int{lane}, 10)
	if err != nil {
		t.Fatal(err)
	}
	page, err := db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{Lane: lane}}, n)
	if err != nil || len(page.Rows) != n {
		t.Fatalf("%d rows: %v", len(page.Rows), err)
	}
	return db, schema, page.Rows, leases
}

// TestDurability: a settlement commits without waiting for the disk, except if
// it contains a dead letter or sets Durable. A trigger records the session's
// setting when the row moves.
func TestDurability(t *testing.T) {
	pool := openPool(t, nil)
	db, schema, rows, leases := owned(t, pool, 4)
	for _, statement := range []string{
		`CREATE TABLE "` + schema + `".seen (what text, mode text)`,
		`CREATE FUNCTION "` + schema + `".note() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
		  INSERT INTO "` + schema + `".seen VALUES (TG_TABLE_NAME, current_setting('synchronous_commit')); RETURN NULL; END $$`,
		`CREATE TRIGGER note AFTER INSERT ON "` + schema + `".waybill_dead FOR EACH ROW EXECUTE FUNCTION "` + schema + `".note()`,
		`CREATE TRIGGER note AFTER INSERT ON "` + schema + `".waybill_delayed FOR EACH ROW EXECUTE FUNCTION "` + schema + `".note()`,
		`CREATE TRIGGER note AFTER DELETE ON "` + schema + `".waybill_outbox FOR EACH ROW EXECUTE FUNCTION "` + schema + `".note()`,
		`CREATE TRIGGER gone AFTER DELETE ON "` + schema + `".waybill_delayed FOR EACH ROW EXECUTE FUNCTION "` + schema + `".note()`,
	} {
		if _, err := pool.Exec(t.Context(), statement); err != nil {
			t.Fatal(err)
		}
	}
	result := func(i int) []driver.Result {
		return []driver.Result{{Lane: rows[i].Lane, ID: rows[i].ID, Attempts: 1, Delay: time.Hour}}
	}
	for _, step := range []struct {
		name string
		s    driver.Settlement
		want []string
	}{
		{"done", driver.Settlement{Done: result(0), History: true}, []string{"waybill_outbox off"}},
		{"retry", driver.Settlement{Retry: result(1)}, []string{"waybill_delayed off", "waybill_outbox off"}},
		{"retry that must last", driver.Settlement{Retry: result(2), Durable: true}, []string{"waybill_delayed on", "waybill_outbox on"}},
		{"done in the other table", driver.Settlement{Done: result(1), History: true}, []string{"waybill_delayed off"}},
		{"done in the other table, that must last", driver.Settlement{Done: result(2), History: true, Durable: true}, []string{"waybill_delayed on"}},
		{"dead", driver.Settlement{Dead: result(3)}, []string{"waybill_dead on", "waybill_outbox on"}},
	} {
		step.s.Leases = leases
		if got, err := db.Driver().Relay.Settle(t.Context(), step.s); err != nil || len(got.Moved) != 1 {
			t.Fatalf("%s: %+v, %v", step.name, got, err)
		}
		var got []string
		seen, err := pool.Query(t.Context(), `DELETE FROM "`+schema+`".seen RETURNING what || ' ' || mode`)
		if err != nil {
			t.Fatal(err)
		}
		for seen.Next() {
			var line string
			if err := seen.Scan(&line); err != nil {
				t.Fatal(err)
			}
			got = append(got, line)
		}
		if err := seen.Err(); err != nil {
			t.Fatal(err)
		}
		slices.Sort(got)
		if !slices.Equal(got, step.want) {
			t.Errorf("%s: %v, want %v", step.name, got, step.want)
		}
	}
}

// TestFetchFollowsSeq: the order is the order of seq, regardless of the clock
// at the time of the write.
func TestFetchFollowsSeq(t *testing.T) {
	pool := openPool(t, nil)
	db, schema, rows, _ := owned(t, pool, 4)
	_, err := pool.Exec(t.Context(), `UPDATE "`+schema+`".waybill_outbox SET created_at = now() - seq * interval '1 minute'`)
	if err != nil {
		t.Fatal(err)
	}
	page, err := db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{Lane: rows[0].Lane}}, 2)
	if err != nil || len(page.Rows) != 2 {
		t.Fatalf("%d rows: %v", len(page.Rows), err)
	}
	for i, row := range page.Rows {
		if row.ID != rows[i].ID {
			t.Errorf("row %d has seq %d, want %d", i, row.Seq, rows[i].Seq)
		}
	}
}

// TestFetchWalksTheIndex: with a plan and statistics from an empty table, Fetch
// still does not read a whole lane.
func TestFetchWalksTheIndex(t *testing.T) {
	pool := openPool(t, func(c *pgxpool.Config) { c.MaxConns = 1 })
	db, schema, _, _ := owned(t, pool, 1)
	for range 10 { // until the server has chosen a plan
		if _, err := db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{Lane: 1}}, 2); err != nil {
			t.Fatal(err)
		}
	}
	_, err := pool.Exec(t.Context(), `INSERT INTO "`+schema+`".waybill_outbox (lane, type, payload) SELECT 1, 'X', '\x30' FROM generate_series(1, 5000)`)
	if err != nil {
		t.Fatal(err)
	}
	before := blocks(t, pool, schema)
	if page, err := db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{Lane: 1}}, 2); err != nil || len(page.Rows) != 2 {
		t.Fatalf("%d rows: %v", len(page.Rows), err)
	}
	if read := blocks(t, pool, schema) - before; read > 20 {
		t.Errorf("Fetch read %d tuples for 2 rows", read)
	}
}

// blocks returns the number of tuples that were read from the outbox.
func blocks(t *testing.T, pool *pgxpool.Pool, schema string) int64 {
	t.Helper()
	if _, err := pool.Exec(t.Context(), `SELECT pg_stat_force_next_flush()`); err != nil {
		t.Fatal(err)
	}
	var n int64
	err := pool.QueryRow(t.Context(), `SELECT seq_tup_read + coalesce(idx_tup_fetch, 0) FROM pg_stat_user_tables
WHERE schemaname = $1 AND relname = 'waybill_outbox'`, schema).Scan(&n)
	if err != nil {
		t.Fatal(err)
	}
	return n
}
