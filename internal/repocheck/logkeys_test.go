package repocheck_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// otherLogKeys are keys of packages under broker that are not in the list.
var otherLogKeys = map[string]bool{"event": true, "type": true}

// TestLogKeys: every log attribute has a key of internal/logkey, and no message
// begins with the name of a package. Packages under broker, and
// examples, may write the key as a literal.
func TestLogKeys(t *testing.T) {
	root := docblock.Root(t)
	keys := logKeys(t, root)
	calls := 0
	for _, f := range parseImports(t) {
		if f.test || !slices.ContainsFunc(f.imports, func(i string) bool {
			return i == "log/slog" || local(i) == "internal/logkey" || local(i) == "internal/outage"
		}) || strings.HasPrefix(f.path, "internal/testserver/") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, f.path), nil, 0)
		if err != nil {
			t.Fatal(err)
		}
		literals := strings.HasPrefix(f.path, "broker/") || strings.HasPrefix(f.path, "internal/e2e/examples/")
		n, problems := checkLogCalls(parsed, keys, literals)
		calls += n
		for _, problem := range problems {
			t.Errorf("%s: %s", f.path, problem)
		}
	}
	if calls < 100 {
		t.Errorf("%d attributes and messages were found", calls)
	}
}

// TestLogKeyNames: keys are snake_case, and no two constants have the same key.
func TestLogKeyNames(t *testing.T) {
	seen := map[string]string{}
	for name, key := range logKeys(t, docblock.Root(t)) {
		if !regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`).MatchString(key) {
			t.Errorf("logkey.%s: %q is not snake_case", name, key)
		}
		if seen[key] != "" {
			t.Errorf("logkey.%s and logkey.%s are both %q", name, seen[key], key)
		}
		seen[key] = name
	}
}

// logKeys returns the constants of internal/logkey.
func logKeys(t *testing.T, root string) map[string]string {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), filepath.Join(root, "internal/logkey/logkey.go"), nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	keys := map[string]string{}
	ast.Inspect(parsed, func(n ast.Node) bool {
		if spec, ok := n.(*ast.ValueSpec); ok {
			keys[spec.Names[0].Name] = literal(spec.Values[0])
		}
		return true
	})
	if len(keys) < 30 {
		t.Fatalf("%d keys were found", len(keys))
	}
	return keys
}

// literal returns the value of a string literal, or "".
func literal(e ast.Expr) string {
	lit, ok := e.(*ast.BasicLit)
	if !ok || lit.Kind != token.STRING {
		return ""
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		return ""
	}
	return text
}

var (
	// attributes are the functions of slog whose first argument is a key.
	attributes = []string{"String", "Int", "Int64", "Uint64", "Float64", "Bool", "Time", "Duration", "Any", "Group"}
	// methods are methods of a logger, and the number of arguments before the
	// message. With has no message.
	methods = map[string]int{
		"Debug": 0, "Info": 0, "Warn": 0, "Error": 0, "With": -1, "Log": 2, "LogAttrs": 2,
		"DebugContext": 1, "InfoContext": 1, "WarnContext": 1, "ErrorContext": 1,
	}
	// loggers are the names of loggers.
	loggers = regexp.MustCompile(`(?i)(log|logger|^own)$`)
	// prefix is the name of a package in front of a message.
	prefix = regexp.MustCompile(`^[a-z]+: `)
)

// checkLogCalls returns the number of checked calls of a file, and the problems
// with their keys and messages.
func checkLogCalls(parsed *ast.File, keys map[string]string, literals bool) (calls int, problems []string) {
	key := func(e ast.Expr) {
		text := literal(e)
		s, ok := e.(*ast.SelectorExpr)
		switch {
		case ok && isSelector(e, "logkey", s.Sel.Name) && keys[s.Sel.Name] != "":
		case literals && (slices.Contains(values(keys), text) || otherLogKeys[text]):
		case text != "":
			problems = append(problems, fmt.Sprintf("the log key %q is not a constant of internal/logkey", text))
		default:
			problems = append(problems, "a log key is neither a constant of internal/logkey nor a literal")
		}
	}
	message := func(e ast.Expr) {
		if sum, ok := e.(*ast.BinaryExpr); ok {
			e = sum.X
		}
		if prefix.MatchString(literal(e)) {
			problems = append(problems, fmt.Sprintf("the message %q begins with a prefix; use logkey.Component", literal(e)))
		}
	}
	pairs := func(args []ast.Expr) {
		for i := 0; i < len(args); i++ {
			switch args[i].(type) {
			case *ast.CallExpr: // an attribute
				continue
			case *ast.Ident: // a slice of attributes
				if i == len(args)-1 {
					continue
				}
			}
			key(args[i])
			i++
		}
	}
	ast.Inspect(parsed, func(n ast.Node) bool {
		call, ok := n.(*ast.CallExpr)
		if !ok {
			return true
		}
		s, ok := call.Fun.(*ast.SelectorExpr)
		if !ok {
			return true
		}
		name := s.Sel.Name
		if isSelector(s, "slog", name) && slices.Contains(attributes, name) {
			calls++
			key(call.Args[0])
			return true
		}
		if isSelector(s, "outage", "New") {
			calls++
			message(call.Args[1])
			pairs(call.Args[2:])
			return true
		}
		switch name {
		case "with": // of internal/outage
			pairs(call.Args)
			return true
		case "warn", "event": // helpers; one of their arguments is the message
			for _, arg := range call.Args {
				message(arg)
			}
			return true
		}
		at, known := methods[name]
		if !known || !loggers.MatchString(lastName(s.X)) || len(call.Args) <= at {
			return true
		}
		calls++
		if at >= 0 {
			message(call.Args[at])
		}
		pairs(call.Args[at+1:])
		return true
	})
	return calls, problems
}

func values(keys map[string]string) []string {
	var all []string
	for _, key := range keys {
		all = append(all, key)
	}
	return all
}

// lastName returns the last name of an expression such as r.cfg.Logger.
func lastName(e ast.Expr) string {
	switch e := e.(type) {
	case *ast.Ident:
		return e.Name
	case *ast.SelectorExpr:
		return e.Sel.Name
	}
	return ""
}

// TestLogCallsAreChecked: the check finds each kind of problem.
func TestLogCallsAreChecked(t *testing.T) {
	keys := map[string]string{"EventID": "event_id"}
	for call, want := range map[string]int{
		`log.Info("done", slog.String(logkey.EventID, id))`:                            0,
		`log.Info("done", logkey.EventID, id)`:                                         0,
		`log.With(logkey.EventID, id)`:                                                 0,
		`log.Warn("call refused: again")`:                                              0,
		`fmt.Info("waybill: done")`:                                                    0,
		`log.Info("waybill: done")`:                                                    1,
		`log.Error("waybill: " + what)`:                                                1,
		`r.cfg.Logger.ErrorContext(ctx, "httpkey: failed")`:                            1,
		`r.cfg.Logger.LogAttrs(ctx, level, "inbox: failed")`:                           1,
		`k.warn(ctx, req, "waybill: failed", err)`:                                     1,
		`l.with("operation", name)`:                                                    1,
		`outage.New(log, "relay: the database")`:                                       1,
		`outage.New(log, "the database", "job", name)`:                                 1,
		`slog.String("event_id", id)`:                                                  1,
		`slog.Int("n", n)`:                                                             1,
		`slog.Any(logkey.Unknown, n)`:                                                  1,
		`slog.Any(key, n)`:                                                             1,
		`log.Info("done", "id", id)`:                                                   1,
		`log.Info("done", logkey.EventID, id, "id", id)`:                               1,
		`log.Info("done", slog.String(logkey.EventID, id), "id", id)`:                  1,
		`r.own.With("id", id)`:                                                         1,
		`a.log.DebugContext(ctx, "done", "id", id, slog.Bool("b", true), "type", "t")`: 3,
	} {
		parsed, err := parser.ParseFile(token.NewFileSet(), "x.go", "package x\nfunc f() { "+call+" }", 0)
		if err != nil {
			t.Fatal(err)
		}
		if _, problems := checkLogCalls(parsed, keys, false); len(problems) != want {
			t.Errorf("%s: %q, want %d problems", call, problems, want)
		}
	}
	parsed, err := parser.ParseFile(token.NewFileSet(), "x.go", `package x; func f() { log.Info("done", "event_id", id, "odd", id) }`, 0)
	if err != nil {
		t.Fatal(err)
	}
	if _, problems := checkLogCalls(parsed, keys, true); len(problems) != 1 || !strings.Contains(problems[0], "odd") {
		t.Errorf("literals: %q", problems)
	}
}
