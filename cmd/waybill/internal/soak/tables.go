package soak

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/internal/sqlname"
)

// aggregates is the number of aggregates with an order.
const aggregates = 40

// tables are the names of the tables in one database.
type tables struct {
	kind, schema, prefix string
}

func tablesOf(kind, schema, prefix string) tables { return tables{kind, schema, prefix} }

// of returns the quoted name of a table.
func (t tables) of(name string) string {
	quote := `"`
	if t.kind == connect.MySQL {
		quote = "`"
	}
	parts := []string{t.prefix + name}
	if t.schema != "" {
		parts = []string{t.schema, t.prefix + name}
	}
	return sqlname.Quote(quote, parts...)
}

// fill replaces the names in braces, and question marks by the placeholders of
// the database.
func (t tables) fill(statement string) string {
	var b strings.Builder
	n := 0
	for i := 0; i < len(statement); i++ {
		switch c := statement[i]; {
		case c == '{':
			end := i + strings.IndexByte(statement[i:], '}')
			b.WriteString(t.of(statement[i+1 : end]))
			i = end
		case c == '?' && t.kind == connect.Postgres:
			n++
			b.WriteString("$" + strconv.Itoa(n))
		default:
			b.WriteByte(c)
		}
	}
	return b.String()
}

// ownTables are the tables of the soak itself, beside those of Waybill. source
// has the number of the last event of each aggregate, and ledger every event,
// both as its producer committed them. account and effect are the consumers'.
// None has a constraint that would prevent a double effect. Replication groups
// of MySQL refuse writes to tables without a primary key: there, "key" is one.
var ownTables = []string{ //nolint:gochecknoglobals // never changed
	`CREATE TABLE {source} (name INTEGER PRIMARY KEY, n BIGINT NOT NULL)`,
	`CREATE TABLE {ledger} (id VARCHAR(40) NOT NULL, name INTEGER NOT NULL, number BIGINT NOT NULL, amount BIGINT NOT NULL, topic VARCHAR(40) NOT NULL,
		payload BIGINT NOT NULL, headers BIGINT NOT NULL, due_at BIGINT NOT NULL, written_at BIGINT NOT NULL/* key */)`,
	`CREATE TABLE {account} (name INTEGER PRIMARY KEY, n BIGINT NOT NULL, total BIGINT NOT NULL)`,
	`CREATE TABLE {effect} (id VARCHAR(40) NOT NULL, name INTEGER NOT NULL, number BIGINT NOT NULL, amount BIGINT NOT NULL, place BIGINT NOT NULL, applied_at BIGINT NOT NULL/* key */)`,
	`CREATE TABLE {request} (name VARCHAR(80) NOT NULL, answer BIGINT NOT NULL/* key */)`,
}

// create creates the soak's own tables.
func (t tables) create(ctx context.Context, db *sql.DB) error {
	key := ""
	if t.kind == connect.MySQL {
		key = ", row_key BIGINT AUTO_INCREMENT PRIMARY KEY"
	}
	for _, statement := range ownTables {
		if _, err := db.ExecContext(ctx, t.fill(strings.ReplaceAll(statement, "/* key */", key))); err != nil {
			return fmt.Errorf("soak: tables of the ledger: %w", err)
		}
	}
	for i := range aggregates {
		if _, err := db.ExecContext(ctx, t.fill(`INSERT INTO {source} (name, n) VALUES (?, 0)`), i); err != nil {
			return fmt.Errorf("soak: tables of the ledger: %w", err)
		}
		if _, err := db.ExecContext(ctx, t.fill(`INSERT INTO {account} (name, n, total) VALUES (?, 0, 0)`), i); err != nil {
			return fmt.Errorf("soak: tables of the ledger: %w", err)
		}
	}
	return nil
}

// drop removes everything of a run: the schema on PostgreSQL, and on the others
// every table and procedure with the prefix of the run.
func (t tables) drop(ctx context.Context, db *sql.DB) (int, error) {
	switch t.kind {
	case connect.Postgres:
		return t.dropSchema(ctx, db)
	case connect.MySQL:
		n, err := t.dropListed(ctx, db, "TABLE", `SELECT table_name FROM information_schema.tables WHERE table_schema = `+t.database()+` AND table_name LIKE ?`)
		more, err2 := t.dropListed(ctx, db, "PROCEDURE", `SELECT routine_name FROM information_schema.routines WHERE routine_schema = `+t.database()+` AND routine_name LIKE ?`)
		return n + more, errors.Join(err, err2)
	}
	return t.dropListed(ctx, db, "TABLE", `SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE ? ESCAPE '\'`)
}

func (t tables) dropSchema(ctx context.Context, db *sql.DB) (int, error) {
	var n int
	if err := db.QueryRowContext(ctx, `SELECT count(*) FROM information_schema.tables WHERE table_schema = $1`, t.schema).Scan(&n); err != nil {
		return 0, err
	}
	_, err := db.ExecContext(ctx, `DROP SCHEMA IF EXISTS `+sqlname.Quote(`"`, t.schema)+` CASCADE`)
	return n, err
}

// database returns the expression for the schema of MySQL's tables.
func (t tables) database() string {
	if t.schema == "" {
		return "DATABASE()"
	}
	return "'" + t.schema + "'"
}

// dropListed drops what a query lists.
func (t tables) dropListed(ctx context.Context, db *sql.DB, what, query string) (int, error) {
	rows, err := db.QueryContext(ctx, query, strings.ReplaceAll(t.prefix, "_", `\_`)+"%")
	if err != nil {
		return 0, err
	}
	defer rows.Close()
	var names []string
	for rows.Next() {
		var name string
		if err := rows.Scan(&name); err != nil {
			return 0, err
		}
		names = append(names, name)
	}
	if err := rows.Err(); err != nil {
		return 0, err
	}
	for _, name := range names {
		if _, err := db.ExecContext(ctx, "DROP "+what+" IF EXISTS "+t.of(strings.TrimPrefix(name, t.prefix))); err != nil {
			return 0, err
		}
	}
	return len(names), nil
}

// version returns the version of the server.
func (t tables) version(ctx context.Context, db *sql.DB) (string, error) {
	query := `SELECT version()`
	if t.kind == connect.SQLite {
		query = `SELECT sqlite_version()`
	}
	var text string
	err := db.QueryRowContext(ctx, query).Scan(&text)
	switch {
	case t.kind == connect.SQLite:
		text = "SQLite " + text
	case t.kind == connect.Postgres: // the rest describes the compiler
		text, _, _ = strings.Cut(text, " on ")
	case !strings.Contains(text, "MariaDB"):
		text = "MySQL " + text
	}
	return text, err
}
