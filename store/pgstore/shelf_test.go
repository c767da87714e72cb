package pgstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/jackc/pgx/v5"
	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/pgstore"
)

// A shelf keeps the schemas of tests that have ended. The next test takes one
// of them, because to create the tables takes longer than most tests. A schema
// goes back on the shelf when its definitions are those of a fresh one, and
// with the rows of a fresh one.
type shelf struct {
	pool       *pgxpool.Pool
	definition string
	clean      string // the statements that clean {schema}

	mu   sync.Mutex
	free []string
}

// shelve returns an empty shelf on the database of the pool. The shelf is for
// the tests within the test.
func shelve(t *testing.T, pool *pgxpool.Pool) *shelf {
	t.Helper()
	_, fresh := openStore(t, pool)
	s := &shelf{pool: pool}
	var err error
	if s.definition, err = s.definitionOf(t.Context(), fresh); err != nil {
		t.Fatal(err)
	}
	rows, err := pool.Query(t.Context(), `SELECT relname, relkind = 'S' FROM pg_class
WHERE relnamespace = $1::text::regnamespace AND relkind IN ('r', 'S') ORDER BY relname`, fresh)
	if err != nil {
		t.Fatal(err)
	}
	type relation struct {
		Name     string
		Sequence bool
	}
	relations, err := pgx.CollectRows(rows, pgx.RowToStructByPos[relation])
	if err != nil {
		t.Fatal(err)
	}
	var script strings.Builder
	for _, r := range relations {
		if r.Sequence {
			fmt.Fprintf(&script, `ALTER SEQUENCE "{schema}"."%s" RESTART;`, r.Name)
			continue
		}
		fmt.Fprintf(&script, `DELETE FROM "{schema}"."%s";`, r.Name)
		var n int
		if err := pool.QueryRow(t.Context(), fmt.Sprintf(`SELECT count(*) FROM "%s"."%s"`, fresh, r.Name)).Scan(&n); err != nil {
			t.Fatal(err)
		}
		if n > 0 {
			fmt.Fprintf(&script, `INSERT INTO "{schema}"."%s" SELECT * FROM "%s"."%s";`, r.Name, fresh, r.Name)
		}
	}
	s.clean = script.String()
	t.Cleanup(func() {
		for _, schema := range s.free {
			s.drop(t, schema)
		}
	})
	return s
}

// pgx returns an instance for a suite.
func (s *shelf) pgx(t *testing.T) drivertest.Instance[pgx.Tx] {
	return pgxInstanceOn(t, s.pool, s.open(t))
}

// sql returns an instance over database/sql for a suite.
func (s *shelf) sql(t *testing.T) drivertest.Instance[*sql.Tx] {
	return sqlInstanceOn(t, s.pool, s.open(t))
}

// open returns a schema with fresh tables, which goes back on the shelf after
// the test.
func (s *shelf) open(t *testing.T) string {
	t.Helper()
	s.mu.Lock()
	var schema string
	if n := len(s.free); n > 0 {
		schema, s.free = s.free[n-1], s.free[:n-1]
	}
	s.mu.Unlock()
	if schema == "" {
		schema = schemaName()
		t.Cleanup(func() { s.put(t, schema) })
		createTables(t, s.pool, pgstore.Config{Schema: schema})
		return schema
	}
	t.Cleanup(func() { s.put(t, schema) })
	return schema
}

// put puts the schema of a test that has passed back on the shelf. It drops all
// others.
func (s *shelf) put(t *testing.T, schema string) {
	t.Helper()
	ctx := context.Background()
	if t.Failed() {
		s.drop(t, schema)
		return
	}
	definition, err := s.definitionOf(ctx, schema)
	if err != nil {
		t.Error(err)
		return
	}
	if definition != s.definition {
		s.drop(t, schema)
		return
	}
	conn, err := s.pool.Acquire(ctx)
	if err != nil {
		t.Error(err)
		return
	}
	defer conn.Release()
	// One round trip, and one transaction.
	results := conn.Conn().PgConn().Exec(ctx, strings.ReplaceAll(s.clean, "{schema}", schema))
	if _, err := results.ReadAll(); err != nil {
		t.Error(err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, schema)
}

func (s *shelf) drop(t *testing.T, schema string) {
	t.Helper()
	if _, err := s.pool.Exec(context.Background(), `DROP SCHEMA IF EXISTS "`+schema+`" CASCADE`); err != nil {
		t.Error(err)
	}
}

// definitionOf returns what defines the schema, without its name.
func (s *shelf) definitionOf(ctx context.Context, schema string) (definition string, err error) {
	err = s.pool.QueryRow(ctx, `SELECT string_agg(replace(line, $1, ''), E'\n' ORDER BY replace(line, $1, '')) FROM (
SELECT concat_ws(' ', c.relkind, c.relname, c.reloptions::text, c.relacl::text, a.attnum, a.attname,
  format_type(a.atttypid, a.atttypmod), a.attnotnull, pg_get_expr(d.adbin, d.adrelid)) AS line
FROM pg_class c LEFT JOIN pg_attribute a ON a.attrelid = c.oid AND a.attnum > 0
LEFT JOIN pg_attrdef d ON d.adrelid = c.oid AND d.adnum = a.attnum
WHERE c.relnamespace = $1::text::regnamespace
UNION ALL SELECT pg_get_indexdef(indexrelid) FROM pg_index
WHERE indrelid IN (SELECT oid FROM pg_class WHERE relnamespace = $1::text::regnamespace)
UNION ALL SELECT concat_ws(' ', conrelid::regclass, conname, pg_get_constraintdef(oid)) FROM pg_constraint
WHERE connamespace = $1::text::regnamespace
UNION ALL SELECT concat_ws(' ', tgenabled, pg_get_triggerdef(oid)) FROM pg_trigger
WHERE tgrelid IN (SELECT oid FROM pg_class WHERE relnamespace = $1::text::regnamespace)
UNION ALL SELECT concat_ws(' ', proacl::text, pg_get_functiondef(oid)) FROM pg_proc
WHERE pronamespace = $1::text::regnamespace) AS lines`, schema).Scan(&definition)
	return definition, err
}
