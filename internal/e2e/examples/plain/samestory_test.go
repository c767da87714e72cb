package main

import (
	"context"
	"database/sql"
	"go/ast"
	"go/parser"
	"go/token"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/go-sql-driver/mysql"
	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
)

// variants are the same program on the other stores, each in its folder below
// testdata.
var variants = []struct {
	name string
	// tx is the type of the transactions, and exec its method that runs a
	// statement.
	tx, exec string
	// database returns a new, empty database, for those that need a server.
	database func(t *testing.T) string
}{
	{name: "memstore", tx: "*sql.Tx", exec: "ExecContext"},
	{name: "pgstore", tx: "pgx.Tx", exec: "Exec", database: newPostgres},
	{name: "pgstoresql", tx: "*sql.Tx", exec: "ExecContext", database: newPostgres},
	{name: "mysqlstore", tx: "*sql.Tx", exec: "ExecContext", database: newMariaDB},
}

// TestSameStory proves that moving to another store changes the constructor and
// the type of the transaction, and nothing else: without these, the programs
// are the same text.
func TestSameStory(t *testing.T) {
	want := story(t, "main.go", "*sql.Tx", "ExecContext")
	if n := strings.Count(want, "\n"); n < 40 {
		t.Fatalf("only %d lines of the program are compared", n)
	}
	for _, v := range variants {
		got := story(t, filepath.Join("testdata", v.name, "main.go"), v.tx, v.exec)
		if got == want {
			continue
		}
		gotLines, wantLines := strings.Split(got, "\n"), strings.Split(want, "\n")
		for i := range min(len(gotLines), len(wantLines)) {
			if gotLines[i] != wantLines[i] {
				t.Errorf("%s tells another story than main.go:\n  %s\n  %s", v.name, gotLines[i], wantLines[i])
				break
			}
		}
		if len(gotLines) != len(wantLines) {
			t.Errorf("%s has %d lines of story, main.go %d", v.name, len(gotLines), len(wantLines))
		}
	}
	folders, err := os.ReadDir("testdata")
	if err != nil {
		t.Fatal(err)
	}
	if len(folders) != len(variants) {
		t.Errorf("%d folders in testdata, %d variants", len(folders), len(variants))
	}
}

// TestSameEnding runs the variants: their output is the same.
func TestSameEnding(t *testing.T) {
	for _, v := range variants {
		t.Run(v.name, func(t *testing.T) {
			var env []string
			if v.database != nil {
				env = append(env, "DATABASE_URL="+v.database(t))
			}
			if got := goRun(t, filepath.Join("testdata", v.name), env...); got != told {
				t.Errorf("it says:\n%s", got)
			}
		})
	}
	t.Run("mysqlstore on MySQL", func(t *testing.T) {
		if got := goRun(t, filepath.Join("testdata", "mysqlstore"), "DATABASE_URL="+newMySQL(t)); got != told {
			t.Errorf("it says:\n%s", got)
		}
	})
}

// story returns a program without the differing parts: its first comment, its
// imports, the function open with the statement in the database's own SQL, and
// the type of the transaction with its method.
func story(t *testing.T, path, tx, exec string) string {
	t.Helper()
	source, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	files := token.NewFileSet()
	parsed, err := parser.ParseFile(files, path, source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	offset := func(p token.Pos) int { return files.Position(p).Offset }
	var b strings.Builder
	next := offset(parsed.Package)
	for _, decl := range parsed.Decls {
		start, name := decl.Pos(), ""
		switch d := decl.(type) {
		case *ast.FuncDecl:
			name = d.Name.Name
			if d.Doc != nil {
				start = d.Doc.Pos()
			}
		case *ast.GenDecl:
			if spec, ok := d.Specs[0].(*ast.ValueSpec); ok {
				name = spec.Names[0].Name
			}
			if d.Tok == token.IMPORT {
				name = "import"
			}
		}
		if name == "import" || name == "open" || name == "insertOrder" {
			b.Write(source[next:offset(start)])
			next = offset(decl.End())
		}
	}
	b.Write(source[next:])
	text := strings.ReplaceAll(b.String(), tx, "TX")
	return strings.TrimSpace(strings.ReplaceAll(text, "tx."+exec+"(", "tx.EXEC("))
}

// databaseName returns a unique name of a database.
func databaseName() string { return "plain_" + strings.ToLower(waybill.NewID().String()) }

// newPostgres creates a database on the test server, drops it at the end of the
// test, and returns its URL.
func newPostgres(t *testing.T) string {
	t.Helper()
	server := testserver.Postgres(t)
	conn, err := pgx.Connect(t.Context(), server)
	if err != nil {
		t.Fatal(err)
	}
	name := databaseName()
	if _, err := conn.Exec(t.Context(), `CREATE DATABASE `+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ctx := context.WithoutCancel(t.Context())
		if _, err := conn.Exec(ctx, `DROP DATABASE `+name+` WITH (FORCE)`); err != nil {
			t.Error(err)
		}
		_ = conn.Close(ctx)
	})
	u, err := url.Parse(server)
	if err != nil {
		t.Fatal("the server's address is not a URL")
	}
	u.Path = "/" + name
	return u.String()
}

// newMariaDB creates a database on the MariaDB test server, drops it at the end
// of the test, and returns its data source name.
func newMariaDB(t *testing.T) string {
	t.Helper()
	return newDatabase(t, testserver.MariaDB(t))
}

// newMySQL does the same on the MySQL test server.
func newMySQL(t *testing.T) string {
	t.Helper()
	return newDatabase(t, testserver.MySQL(t))
}

func newDatabase(t *testing.T, server string) string {
	t.Helper()
	cfg, err := mysql.ParseDSN(server)
	if err != nil {
		t.Fatal("the server's data source name is not one")
	}
	db, err := sql.Open("mysql", cfg.FormatDSN())
	if err != nil {
		t.Fatal(err)
	}
	name := databaseName()
	if _, err := db.ExecContext(t.Context(), `CREATE DATABASE `+name); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if _, err := db.ExecContext(context.WithoutCancel(t.Context()), `DROP DATABASE `+name); err != nil {
			t.Error(err)
		}
		_ = db.Close()
	})
	cfg.DBName = name
	return cfg.FormatDSN()
}
