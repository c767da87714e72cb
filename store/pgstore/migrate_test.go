package pgstore_test

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/docblock"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
)

// psql runs a script in the database's own shell, as the user of the tests.
func psql(t testing.TB, script, searchPath string) {
	t.Helper()
	if out, err := tryPsql(t, script, searchPath); err != nil {
		t.Fatalf("psql: %v\n%s", err, out)
	}
}

// tryPsql returns the output of psql.
func tryPsql(t testing.TB, script, searchPath string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), testserver.Shell(t, "psql"), "-X", "-q", "-v", "ON_ERROR_STOP=1", testserver.Postgres(t))
	cmd.Stdin = strings.NewReader(script)
	cmd.Env = append(os.Environ(), "PGOPTIONS=-c search_path="+searchPath)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// catalog describes everything in a schema, without the schema's name.
func catalog(t testing.TB, pool *pgxpool.Pool, schema string) []string {
	t.Helper()
	rows, err := pool.Query(t.Context(), `
SELECT 'table ' || c.relname || ' ' || c.relkind::text || ' ' || coalesce(c.reloptions::text, '') || ' ' || coalesce(pg_get_partkeydef(c.oid), '')
  || ' ' || coalesce(pg_get_expr(c.relpartbound, c.oid), '') FROM pg_class c WHERE c.relnamespace = $1::regnamespace
UNION ALL SELECT 'column ' || c.relname || ' ' || a.attnum || ' ' || a.attname || ' ' || format_type(a.atttypid, a.atttypmod) || ' ' || a.attnotnull::text
  || ' ' || coalesce(pg_get_expr(d.adbin, d.adrelid), '') || ' ' || coalesce(co.collname, '')
  FROM pg_attribute a JOIN pg_class c ON c.oid = a.attrelid LEFT JOIN pg_attrdef d ON d.adrelid = a.attrelid AND d.adnum = a.attnum
  LEFT JOIN pg_collation co ON co.oid = a.attcollation
  WHERE c.relnamespace = $1::regnamespace AND c.relkind IN ('r', 'p') AND a.attnum > 0
UNION ALL SELECT 'index ' || pg_get_indexdef(i.indexrelid) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid WHERE c.relnamespace = $1::regnamespace
UNION ALL SELECT 'constraint ' || conname || ' ' || pg_get_constraintdef(oid) FROM pg_constraint WHERE connamespace = $1::regnamespace
UNION ALL SELECT 'function ' || pg_get_functiondef(oid) FROM pg_proc WHERE pronamespace = $1::regnamespace
UNION ALL SELECT 'trigger ' || pg_get_triggerdef(t.oid) FROM pg_trigger t JOIN pg_class c ON c.oid = t.tgrelid WHERE c.relnamespace = $1::regnamespace
UNION ALL SELECT 'sequence ' || s.seqrelid::regclass || ' cache ' || s.seqcache || ' start ' || s.seqstart FROM pg_sequence s
  JOIN pg_class c ON c.oid = s.seqrelid WHERE c.relnamespace = $1::regnamespace`, schema)
	if err != nil {
		t.Fatal(err)
	}
	lines, err := pgx.CollectRows(rows, pgx.RowTo[string])
	if err != nil {
		t.Fatal(err)
	}
	for i := range lines {
		lines[i] = strings.ReplaceAll(lines[i], schema, "SCHEMA")
	}
	slices.Sort(lines)
	return lines
}

// The exported script, applied by psql, creates the same catalog as Migrate.
func TestMigrationSQLGivesTheSameCatalog(t *testing.T) {
	pool := openPool(t, nil)
	byCode, byShell := schemaOf(t, pool), schemaOf(t, pool)
	config := func(schema string) pgstore.Config { return pgstore.Config{Schema: schema, Prefix: "my_", Lanes: 7} }
	code, err := pgstore.New(pool, config(byCode))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := code.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	shell, err := pgstore.New(pool, config(byShell))
	if err != nil {
		t.Fatal(err)
	}
	psql(t, shell.MigrationSQL(), "public")
	a, b := catalog(t, pool, byCode), catalog(t, pool, byShell)
	if len(a) < 100 {
		t.Fatalf("the catalog has only %d lines", len(a))
	}
	if diff := cmpLines(a, b); diff != "" {
		t.Errorf("by code and by psql differ:\n%s", diff)
	}
	// Migrate continues after the script.
	applied, err := shell.Migrate(t.Context())
	if err != nil || len(applied) != 0 {
		t.Errorf("Migrate after the script applied %v, %v; want nothing", applied, err)
	}
	all, err := shell.Migrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, m := range all {
		if m.AppliedAt.IsZero() || m.Unknown {
			t.Errorf("after the script: %+v", m)
		}
	}
	for _, s := range []driver.Reader{code.Driver().Relay, shell.Driver().Relay} {
		if _, err := s.Fetch(t.Context(), []driver.Cursor{{Lane: 6}}, 1); err != nil {
			t.Error(err)
		}
	}
}

// TestUpgradeSQL: the script from a version on, applied to tables of that
// version, creates the same catalog as Migrate on an empty schema. If the
// tables do not have that version, the script fails and changes nothing.
func TestUpgradeSQL(t *testing.T) {
	pool := openPool(t, nil)
	tables := func(schema string) *pgstore.Store {
		s, err := pgstore.New(pool, pgstore.Config{Schema: schema, Prefix: "my_", Lanes: 7})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	byCode := schemaOf(t, pool)
	all, err := tables(byCode).Migrate(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	want := catalog(t, pool, byCode)
	for version := 1; version < len(all); version++ {
		schema := schemaOf(t, pool)
		s := tables(schema)
		first, _, _ := strings.Cut(s.MigrationSQL(), fmt.Sprintf("-- Migration %d:", version+1))
		psql(t, first+"COMMIT;", "public")
		before := catalog(t, pool, schema)
		if later := s.UpgradeSQL(version + 1); later != "" {
			if out, err := tryPsql(t, later, "public"); err == nil {
				t.Errorf("the script from version %d on goes through on tables of version %d: %s", version+1, version, out)
			}
			if diff := cmpLines(before, catalog(t, pool, schema)); diff != "" {
				t.Errorf("the script from version %d on changes tables of version %d:\n%s", version+1, version, diff)
			}
		}
		psql(t, s.UpgradeSQL(version), "public")
		if diff := cmpLines(want, catalog(t, pool, schema)); diff != "" {
			t.Errorf("from version %d on, code and psql differ:\n%s", version, diff)
		}
		if applied, err := s.Migrate(t.Context()); err != nil || len(applied) != 0 {
			t.Errorf("Migrate after the script from version %d on applied %v, %v; want nothing", version, applied, err)
		}
	}
	for _, version := range []int{len(all), len(all) + 1} {
		if text := tables(byCode).UpgradeSQL(version); text != "" {
			t.Errorf("behind version %d there is %s", version, text)
		}
	}
}

func cmpLines(a, b []string) string {
	var diff strings.Builder
	for _, line := range a {
		if !slices.Contains(b, line) {
			fmt.Fprintf(&diff, "- %s\n", line)
		}
	}
	for _, line := range b {
		if !slices.Contains(a, line) {
			fmt.Fprintf(&diff, "+ %s\n", line)
		}
	}
	return diff.String()
}

func TestMigrateFromManyAtOnce(t *testing.T) {
	pool := openPool(t, nil)
	schema := schemaOf(t, pool)
	var wg sync.WaitGroup
	var mu sync.Mutex
	applied := 0
	for range 8 {
		wg.Go(func() {
			db, err := pgstore.New(pool, pgstore.Config{Schema: schema})
			if err != nil {
				t.Error(err)
				return
			}
			ms, err := db.Migrate(t.Context())
			if err != nil {
				t.Error(err)
			}
			mu.Lock()
			applied += len(ms)
			mu.Unlock()
		})
	}
	wg.Wait()
	db, err := pgstore.New(pool, pgstore.Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	all, err := db.Migrations(t.Context())
	if err != nil || applied != len(all) {
		t.Errorf("%d migrations were applied by all together, %v; want each once: %v", applied, err, all)
	}
}

func TestMigrations(t *testing.T) {
	pool := openPool(t, nil)
	schema := schemaOf(t, pool)
	db, err := pgstore.New(pool, pgstore.Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	before, err := db.Migrations(t.Context())
	if err != nil || len(before) == 0 || !before[0].AppliedAt.IsZero() {
		t.Errorf("without tables: %v, %v; want all, none applied", before, err)
	}
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), `INSERT INTO "`+schema+`".waybill_migration VALUES (99, 'from the future')`); err != nil {
		t.Fatal(err)
	}
	after, err := db.Migrations(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if last := after[len(after)-1]; len(after) != len(before)+1 || !last.Unknown || last.Version != 99 || after[0].AppliedAt.IsZero() {
		t.Errorf("with an unknown migration: %+v", after)
	}
}

// A sequence that hands out blocks would break the order.
func TestSequenceCache(t *testing.T) {
	pool := openPool(t, nil)
	_, schema := openStore(t, pool)
	var cache int64
	err := pool.QueryRow(t.Context(), `SELECT seqcache FROM pg_sequence WHERE seqrelid = ($1 || '.waybill_outbox_seq')::regclass`, `"`+schema+`"`).Scan(&cache)
	if err != nil || cache != 1 {
		t.Errorf("CACHE is %d, %v; want 1", cache, err)
	}
}

func TestLanesBelongToTheTables(t *testing.T) {
	pool := openPool(t, nil)
	schema := schemaOf(t, pool)
	made, err := pgstore.New(pool, pgstore.Config{Schema: schema, Lanes: 4})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := made.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	silent, err := pgstore.New(pool, pgstore.Config{Schema: schema})
	if err != nil {
		t.Fatal(err)
	}
	tx, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer tx.Rollback(context.Background()) //nolint:errcheck // always rolled back
	for i := range 40 {
		ev := eventfill.Defaults(waybill.Event{Type: "A", AggregateID: fmt.Sprint(i), Payload: []byte("1")})
		placed, err := silent.Driver().Outbox.Append(t.Context(), tx, []waybill.Event{ev})
		if err != nil {
			t.Fatal(err)
		}
		if want := driver.LaneOf("", waybill.GlobalAggregate, ev.AggregateID, 4); placed[0].Lane != want {
			t.Fatalf("lane %d, want %d of 4", placed[0].Lane, want)
		}
	}
	other, err := pgstore.New(pool, pgstore.Config{Schema: schema, Lanes: 8})
	if err != nil {
		t.Fatal(err)
	}
	session, err := other.Driver().Outbox.Begin(t.Context(), nil)
	if err == nil {
		_ = session.Rollback(t.Context())
	}
	if err == nil || !containsAll(err.Error(), "Config.Lanes: 8", "the tables have 4") {
		t.Errorf("a store that wants 8 lanes: %v", err)
	}
}

// The SQL in docs/sql.md works in psql.
func TestDocumentedSQL(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	for _, block := range docblock.Blocks(t, "docs/sql.md", "sql postgresql") {
		psql(t, block, schema)
	}
	lane := driver.LaneOf("", "order", "A-1", 32)
	page, err := db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{Lane: lane}}, 10)
	if err != nil || len(page.Rows) != 1 {
		t.Fatalf("lane %d has %d rows, %v; want the inserted row", lane, len(page.Rows), err)
	}
	ev := page.Rows[0].Event
	if ev.Type != "OrderPlaced" || ev.AggregateID != "A-1" || string(ev.Payload) != `{"total": 9990}` || ev.Topic != "OrderPlaced" ||
		ev.ContentType != waybill.JSON || ev.SchemaVersion != 1 || page.Rows[0].Err != nil {
		t.Errorf("it reads back as %+v", page.Rows[0])
	}
}
