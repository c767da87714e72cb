package importing

import (
	"context"
	"database/sql"
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/internal/sqlname"
)

// queryer runs queries: a database or a transaction.
type queryer interface {
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
}

// Database is the database of the outbox.
type Database struct {
	sql  *sql.DB
	kind string // a kind of package connect
}

// Table is a table of the database.
type Table struct {
	// Schema is empty on SQLite.
	Schema, Name string
	// SQL is the quoted name.
	SQL string
	// Columns are the names of the columns, in their order.
	Columns []string
	quote   string
}

// String returns the full name, which does not depend on how the operator
// spelled it.
func (t *Table) String() string {
	if t.Schema == "" {
		return t.Name
	}
	return t.Schema + "." + t.Name
}

// Kind returns the kind of the database: [connect.Postgres], [connect.MySQL] or
// [connect.SQLite].
func (d *Database) Kind() string { return d.kind }

// bind returns the placeholder of the nth argument, counted from 1.
func (d *Database) bind(n int) string {
	if d.kind == connect.Postgres {
		return "$" + strconv.Itoa(n)
	}
	return "?"
}

// quoteMark returns the mark around names.
func (d *Database) quoteMark() string {
	if d.kind == connect.MySQL {
		return "`"
	}
	return `"`
}

// tableLists are the queries of all tables, by kind. The columns are schema,
// name, and whether the table is found without its schema.
var tableLists = map[string]string{
	connect.Postgres: `SELECT n.nspname, c.relname, pg_table_is_visible(c.oid) FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
WHERE c.relkind IN ('r', 'p', 'v') AND n.nspname NOT IN ('pg_catalog', 'information_schema') ORDER BY 1, 2`,
	connect.MySQL: `SELECT table_schema, table_name, table_schema = DATABASE() FROM information_schema.tables
WHERE table_schema NOT IN ('mysql', 'information_schema', 'performance_schema', 'sys') ORDER BY 1, 2`,
	connect.SQLite: `SELECT '', name, 1 FROM sqlite_schema WHERE type IN ('table', 'view') ORDER BY 2`,
}

// Table finds a table by its name, with or without its schema.
func (d *Database) Table(ctx context.Context, name string) (*Table, error) {
	schema, bare, qualified := strings.Cut(name, ".")
	if !qualified {
		schema, bare = "", name
	}
	rows, err := d.sql.QueryContext(ctx, tableLists[d.kind])
	if err != nil {
		return nil, err
	}
	defer rows.Close()
	var found *Table
	var names []string
	for rows.Next() {
		t := &Table{quote: d.quoteMark()}
		var visible bool
		if err := rows.Scan(&t.Schema, &t.Name, &visible); err != nil {
			return nil, err
		}
		if visible {
			names = append(names, t.Name)
		}
		names = append(names, t.String())
		if t.Name == bare && (qualified && t.Schema == schema || !qualified && visible) {
			found = t
		}
	}
	if err := rows.Err(); err != nil {
		return nil, err
	}
	if found == nil {
		advice := "the import reads a table of the database of store.url"
		if near := hint.Nearest(name, names); near != "" {
			advice = "did you mean " + near + "?"
		}
		return nil, hint.New(advice, "the database has no table %s", name)
	}
	found.SQL = sqlname.Quote(found.quote, found.Schema, found.Name)
	found.Columns, err = d.columns(ctx, found)
	return found, err
}

// columns returns the names of a table's columns.
func (d *Database) columns(ctx context.Context, t *Table) ([]string, error) {
	rows, err := d.sql.QueryContext(ctx, "SELECT * FROM "+t.SQL+" WHERE 1 = 0")
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", t, err)
	}
	defer rows.Close()
	names, err := rows.Columns()
	if err != nil {
		return nil, fmt.Errorf("table %s: %w", t, err)
	}
	return names, rows.Err()
}

// Has reports whether the table has a column.
func (t *Table) Has(column string) bool { return slices.Contains(t.Columns, column) }

// Column returns the quoted name of a column.
func (t *Table) Column(name string) (string, error) {
	if !t.Has(name) {
		advice := "its columns: " + strings.Join(t.Columns, ", ")
		if near := hint.Nearest(name, t.Columns); near != "" {
			advice = "did you mean " + near + "?"
		}
		return "", hint.New(advice, "table %s has no column %s", t, name)
	}
	return sqlname.Quote(t.quote, name), nil
}

// columnsNamed returns the quoted names of columns, all of which must exist.
func (t *Table) columnsNamed(names ...string) (map[string]string, error) {
	out := make(map[string]string, len(names))
	for _, name := range names {
		quoted, err := t.Column(name)
		if err != nil {
			return nil, err
		}
		out[name] = quoted
	}
	return out, nil
}

// plainName matches a name that needs no quotes.
var plainName = regexp.MustCompile(`^[A-Za-z_][A-Za-z0-9_]*$`)

// Expression returns the SQL of an operator's expression. A plain name is a
// column.
func (t *Table) Expression(text string) (string, error) {
	if plainName.MatchString(text) {
		return t.Column(text)
	}
	return text, nil
}

// in returns "expression IN (…)" for values, whose placeholders begin at n.
func (d *Database) in(expression string, n, values int) string {
	marks := make([]string, values)
	for i := range marks {
		marks[i] = d.bind(n + i)
	}
	return "(" + expression + ") IN (" + strings.Join(marks, ", ") + ")"
}

// timeColumns are the columns of plans that have times.
var timeColumns = []string{"available_at", "created_at", "timestamp"}

// absolute replaces the expressions of a plan whose times MySQL would show in
// the time zone of the session: those of the type TIMESTAMP. They are read as
// microseconds since 1970, which depend on no zone.
func (d *Database) absolute(ctx context.Context, p *Plan) error {
	if d.kind != connect.MySQL {
		return nil
	}
	for _, name := range timeColumns {
		expression, ok := p.Columns[name]
		if !ok {
			continue
		}
		zoned, err := d.isTimestamp(ctx, p.Table, expression)
		if err != nil {
			return err
		}
		if zoned {
			p.Columns[name] = "CAST(NULLIF(UNIX_TIMESTAMP(" + expression + "), 0) * 1000000 AS SIGNED)"
		}
	}
	return nil
}

// isTimestamp reports whether an expression has the type TIMESTAMP.
func (d *Database) isTimestamp(ctx context.Context, t *Table, expression string) (bool, error) {
	rows, err := d.sql.QueryContext(ctx, "SELECT "+expression+" FROM "+t.SQL+" WHERE 1 = 0")
	if err != nil {
		return false, err
	}
	defer rows.Close()
	types, err := rows.ColumnTypes()
	if err != nil {
		return false, err
	}
	return len(types) == 1 && types[0].DatabaseTypeName() == "TIMESTAMP", rows.Err()
}
