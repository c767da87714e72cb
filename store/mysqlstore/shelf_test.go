package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill/store/drivertest"
	"github.com/waybillhq/waybill/store/mysqlstore"
)

// A shelf keeps the databases of tests that have ended. The next test takes one
// of them, because to create the tables takes longer than most tests. A
// database goes back on the shelf when its definitions are those of a fresh
// one, and with the rows of a fresh one.
type shelf struct {
	root  *sql.DB
	fresh string
	parts []part

	mu   sync.Mutex
	free []string
}

// A part is a table, a trigger or a procedure of a fresh database.
type part struct {
	kind, name, definition string
	rows                   int
	counts                 bool // the table has an AUTO_INCREMENT column
}

// shelve returns an empty shelf on the server of the test, which has to outlive
// all tests that use the shelf.
func shelve(t *testing.T) *shelf {
	t.Helper()
	db, name := openDB(t, nil)
	migrated(t, db)
	cfg := configOf(t, "")
	cfg.MultiStatements = true
	s := &shelf{root: pool(t, cfg), fresh: name}
	var err error
	if s.parts, err = s.partsOf(t.Context(), name); err != nil {
		t.Fatal(err)
	}
	for i, p := range s.parts {
		if p.kind == "TABLE" {
			s.parts[i].rows = ask[int](t, db, "SELECT COUNT(*) FROM `"+p.name+"`")
		}
	}
	t.Cleanup(func() {
		for _, name := range s.free {
			s.drop(t, name)
		}
	})
	return s
}

// instance returns an instance for the suite.
func (s *shelf) instance(t *testing.T) drivertest.Instance[*sql.Tx] {
	store, db := s.store(t, nil)
	return instanceOf(t, store, db, nil)
}

// store is [openStore] with a database of the shelf.
func (s *shelf) store(t *testing.T, change func(*mysql.Config)) (*mysqlstore.Store, *sql.DB) {
	t.Helper()
	db := s.open(t, change)
	return newStore(t, db), db
}

// open returns a pool on a database with fresh tables, which goes back on the
// shelf after the test.
func (s *shelf) open(t *testing.T, change func(*mysql.Config)) *sql.DB {
	t.Helper()
	s.mu.Lock()
	var name string
	if n := len(s.free); n > 0 {
		name, s.free = s.free[n-1], s.free[:n-1]
	}
	s.mu.Unlock()
	used := name != ""
	if !used {
		name = databaseName()
		exec(t, s.root, "CREATE DATABASE "+name)
	}
	t.Cleanup(func() { s.put(t, name) })
	db := poolOn(t, name, change)
	if !used {
		migrated(t, db)
	}
	return db
}

// put puts the database of a test that has passed back on the shelf. It drops
// all others.
func (s *shelf) put(t *testing.T, name string) {
	t.Helper()
	ctx := context.Background()
	if t.Failed() {
		s.drop(t, name)
		return
	}
	parts, err := s.partsOf(ctx, name)
	if err != nil {
		t.Error(err)
		return
	}
	same := slices.EqualFunc(parts, s.parts, func(a, b part) bool {
		return a.kind == b.kind && a.name == b.name && a.definition == b.definition
	})
	if !same {
		s.drop(t, name)
		return
	}
	var script strings.Builder
	script.WriteString("SET foreign_key_checks = 0;")
	for _, p := range s.parts {
		if p.kind != "TABLE" {
			continue
		}
		// A number that is drawn again would meet the deleted row of before:
		// the INSERT locks the gap beside it, and other writers wait.
		empty := "DELETE FROM"
		if p.counts {
			empty = "TRUNCATE"
		}
		fmt.Fprintf(&script, "%s %s.`%s`;", empty, name, p.name)
		if p.rows > 0 {
			fmt.Fprintf(&script, "INSERT INTO %s.`%s` SELECT * FROM %s.`%s`;", name, p.name, s.fresh, p.name)
		}
	}
	script.WriteString("SET foreign_key_checks = 1")
	if _, err := s.root.ExecContext(ctx, script.String()); err != nil {
		t.Errorf("%s: %v", script.String(), err)
		return
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.free = append(s.free, name)
}

func (s *shelf) drop(t *testing.T, name string) {
	t.Helper()
	if _, err := s.root.ExecContext(context.Background(), "DROP DATABASE "+name); err != nil {
		t.Error(err)
	}
}

var counter = regexp.MustCompile(` AUTO_INCREMENT=\d+`)

// partsOf returns the parts of a database in a fixed order, without the name of
// the database.
func (s *shelf) partsOf(ctx context.Context, database string) ([]part, error) {
	rows, err := s.root.QueryContext(ctx, `SELECT 'TABLE', table_name, '', auto_increment IS NOT NULL
FROM information_schema.tables WHERE table_schema = ?
UNION ALL SELECT 'TRIGGER', trigger_name,
  CONCAT_WS(' ', action_timing, event_manipulation, event_object_table, action_order, action_statement), FALSE
FROM information_schema.triggers WHERE trigger_schema = ?
UNION ALL SELECT routine_type, routine_name, routine_definition, FALSE
FROM information_schema.routines WHERE routine_schema = ?`, database, database, database)
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var parts []part
	for rows.Next() {
		var p part
		if err := rows.Scan(&p.kind, &p.name, &p.definition, &p.counts); err != nil {
			return nil, err
		}
		parts = append(parts, p)
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	for i, p := range parts {
		if p.kind != "TABLE" {
			continue
		}
		var name, definition string
		err := s.root.QueryRowContext(ctx, "SHOW CREATE TABLE "+database+".`"+p.name+"`").Scan(&name, &definition)
		if err != nil {
			return nil, err
		}
		parts[i].definition = strings.ReplaceAll(counter.ReplaceAllString(definition, ""), database, "")
	}
	slices.SortFunc(parts, func(a, b part) int { return strings.Compare(a.kind+a.name, b.kind+b.name) })
	return parts, nil
}
