package ledger

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
)

// dataOnly are the packages that the ledger takes types of data from, with the
// names that it may use. None of them is an interface with effects.
var dataOnly = map[string][]string{
	"github.com/waybillhq/waybill": {
		"Event", "ID", "Delivery", "Position", "Class", "Classify", "ErrSettled", "ErrNoHandler",
		"ClassDone", "ClassUnavailable", "ClassDefer", "ClassRetry", "ClassPermanent",
	},
	"github.com/waybillhq/waybill/store": {"Row", "Key", "Aggregate"},
	"github.com/waybillhq/waybill/store/driver": {
		"Lease", "Cursor", "Page", "RowRef", "Hold", "WriterState", "Settlement", "Settled", "Result", "Diversion", "Commit", "Entry", "AggregateOf", "RowSize", "MaxPageBytes",
	},
	"github.com/waybillhq/waybill/observe": {
		"Drop", "DropQueueFull", "DropNotOwned", "DropNotDue", "DropAlreadyRead", "DropBlocked", "DropRowMissing", "DropStopped",
	},
	"time": {"Time", "Duration", "Second", "Millisecond"},
}

// library are the packages of the standard library that have no effects.
var library = []string{"cmp", "container/heap", "errors", "fmt", "iter", "math", "slices", "sort"}

// TestPure: the ledger has no goroutine, channel, clock, store, logger or
// source of randomness.
func TestPure(t *testing.T) {
	set := token.NewFileSet()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	files := 0
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		files++
		for _, problem := range effects(f) {
			t.Errorf("%s: %s", e.Name(), problem)
		}
	}
	if files < 10 {
		t.Errorf("only %d files were read", files)
	}
}

// TestPureFindsEffects: the check notices each kind of effect.
func TestPureFindsEffects(t *testing.T) {
	for _, body := range []string{
		"import \"math/rand/v2\"\nfunc f() { rand.IntN(3) }",
		"import \"time\"\nfunc f() { time.Now() }",
		"import \"log/slog\"\nfunc f() { slog.Info(\"\") }",
		"import \"github.com/waybillhq/waybill/store/driver\"\nvar r driver.Relay",
		"func f() { go f() }",
		"var c chan int",
		"func f() { select {} }",
	} {
		f, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\n"+body, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		if len(effects(f)) == 0 {
			t.Errorf("no effect is found in\n%s", body)
		}
	}
}

// effects returns what a file contains that a pure package has not.
func effects(f *ast.File) []string {
	var out []string
	names := make(map[string][]string) // the allowed names of a package, by its local name
	for _, i := range f.Imports {
		path, _ := strconv.Unquote(i.Path.Value)
		allowed, data := dataOnly[path]
		if !data && !slices.Contains(library, path) {
			out = append(out, "imports "+path)
		}
		if data {
			names[path[strings.LastIndexByte(path, '/')+1:]] = allowed
		}
	}
	ast.Inspect(f, func(n ast.Node) bool {
		switch n := n.(type) {
		case *ast.GoStmt:
			out = append(out, "starts a goroutine")
		case *ast.ChanType, *ast.SelectStmt, *ast.SendStmt:
			out = append(out, "uses a channel")
		case *ast.SelectorExpr:
			if pkg, ok := n.X.(*ast.Ident); ok {
				if allowed, ok := names[pkg.Name]; ok && !slices.Contains(allowed, n.Sel.Name) {
					out = append(out, "uses "+pkg.Name+"."+n.Sel.Name)
				}
			}
		}
		return true
	})
	return out
}

// TestOnlyMoveSetsTheState: one function changes the state of an item.
func TestOnlyMoveSetsTheState(t *testing.T) {
	set := token.NewFileSet()
	entries, err := os.ReadDir(".")
	if err != nil {
		t.Fatal(err)
	}
	var places []string
	for _, e := range entries {
		if !strings.HasSuffix(e.Name(), ".go") || strings.HasSuffix(e.Name(), "_test.go") {
			continue
		}
		f, err := parser.ParseFile(set, e.Name(), nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		for _, d := range f.Decls {
			fn, ok := d.(*ast.FuncDecl)
			if !ok {
				continue
			}
			ast.Inspect(fn, func(n ast.Node) bool {
				if a, ok := n.(*ast.AssignStmt); ok && slices.ContainsFunc(a.Lhs, isItemState) {
					places = append(places, fn.Name.Name)
				}
				return true
			})
		}
	}
	if !slices.Equal(places, []string{"move"}) {
		t.Errorf("the state of an item is set in %v, want only in move", places)
	}
}

// isItemState reports whether an expression is the state of an item: scans have
// a state as well.
func isItemState(e ast.Expr) bool {
	s, ok := e.(*ast.SelectorExpr)
	if !ok || s.Sel.Name != "state" {
		return false
	}
	x, ok := s.X.(*ast.Ident)
	return ok && x.Name != "s"
}
