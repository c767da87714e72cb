package repocheck_test

import (
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// folders are where packages that requirements name live; others are found under their own name.
var folders = map[string]string{
	"waybill": ".", "outboxtest": "outbox/outboxtest", "memstore": "store/memstore", "pgstore": "store/pgstore",
	"mysqlstore": "store/mysqlstore", "sqlitestore": "store/sqlitestore", "storetest": "store/storetest", "sqlname": "internal/sqlname",
	"httpkey": "idempotency/httpkey", "grpckey": "idempotency/grpckey", "jcs": "idempotency/jcs", "otelobserve": "observe/otelobserve",
	"brokertest": "broker/brokertest", "membroker": "broker/membroker", "natsbroker": "broker/natsbroker", "natsembed": "broker/natsbroker/natsembed",
	"kafkabroker": "broker/kafkabroker", "rabbitbroker": "broker/rabbitbroker", "redisbroker": "broker/redisbroker", "pulsarbroker": "broker/pulsarbroker",
	"admin": "cmd/waybill/internal/admin", "daemon": "cmd/waybill/internal/daemon", "doctor": "cmd/waybill/internal/doctor",
	"place": "cmd/waybill/internal/place", "telemetry": "cmd/waybill/internal/telemetry",
	"webhook": "broker/webhook", "watermillbridge": "broker/watermillbridge",
}

var quoted = regexp.MustCompile("`([^`]+)`")

// TestRequirements reads docs/requirements.md and wants everything on it to exist.
func TestRequirements(t *testing.T) {
	root := docblock.Root(t)
	text, err := os.ReadFile(filepath.Join(root, "docs", "requirements.md"))
	if err != nil {
		t.Fatal(err)
	}
	rows := 0
	for n, line := range strings.Split(string(text), "\n") {
		cells := strings.Split(strings.Trim(line, "| "), " | ")
		if !strings.HasPrefix(line, "| ") || cells[0] == "feature" {
			continue
		}
		rows++
		if len(cells) != 3 {
			t.Errorf("line %d: %d cells, want feature, what does it, test", n+1, len(cells))
			continue
		}
		code, tests := quoted.FindAllStringSubmatch(cells[1], -1), quoted.FindAllStringSubmatch(cells[2], -1)
		if len(code) == 0 || len(tests) == 0 {
			t.Errorf("line %d: %q names no code or no test", n+1, cells[0])
		}
		for _, m := range code {
			if problem := codeExists(t, root, m[1]); problem != "" {
				t.Errorf("line %d: %s", n+1, problem)
			}
		}
		for _, m := range tests {
			if problem := testExists(t, root, m[1]); problem != "" {
				t.Errorf("line %d: %s", n+1, problem)
			}
		}
	}
	if rows < 35 {
		t.Errorf("only %d requirements were read", rows)
	}
}

// TestRequirementNamesAreLookedUp: names that do not exist are found out.
func TestRequirementNamesAreLookedUp(t *testing.T) {
	root := docblock.Root(t)
	for _, name := range []string{"waybill.Evnt", "waybill.Event.Typ", "outbox.Outbox.Wrte", "nowhere.X", "go.wrk"} {
		if codeExists(t, root, name) == "" {
			t.Errorf("%s is said to exist", name)
		}
	}
	for _, name := range []string{". TestNothing", "store/storetest 99", "nowhere TestX", "store", "relay/relaytest 99_nothing"} {
		if testExists(t, root, name) == "" {
			t.Errorf("%s is said to exist", name)
		}
	}
}

// codeExists returns what is wrong with the name of a symbol or file, or "".
func codeExists(t *testing.T, root, name string) string {
	t.Helper()
	if !regexp.MustCompile(`^[a-z]+(\.[A-Z]\w*){1,2}$`).MatchString(name) {
		if strings.Contains(name, "(") || strings.Contains(name, "_") && !strings.Contains(name, "/") {
			return "" // a value or an expression, not a name
		}
		if _, err := os.Stat(filepath.Join(root, name)); err != nil {
			return name + " is neither a symbol nor a file"
		}
		return ""
	}
	parts := strings.Split(name, ".")
	folder, ok := folders[parts[0]]
	if !ok {
		folder = parts[0]
	}
	if !declared(t, filepath.Join(root, folder), parts[1:]) {
		return name + " does not exist"
	}
	return ""
}

// declared reports whether a package declares a symbol, or a type with a field or method.
func declared(t *testing.T, dir string, path []string) bool {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(dir, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	found := false
	for _, file := range files {
		if strings.HasSuffix(file, "_test.go") {
			continue
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), file, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(parsed, func(n ast.Node) bool {
			switch n := n.(type) {
			case *ast.FuncDecl:
				found = found || n.Recv == nil && len(path) == 1 && n.Name.Name == path[0]
				found = found || n.Recv != nil && len(path) == 2 && receiver(n.Recv.List[0].Type) == path[0] && n.Name.Name == path[1]
				return false
			case *ast.TypeSpec:
				found = found || n.Name.Name == path[0] && (len(path) == 1 || hasMember(n.Type, path[1]))
			case *ast.ValueSpec:
				for _, ident := range n.Names {
					found = found || len(path) == 1 && ident.Name == path[0]
				}
			}
			return true
		})
	}
	return found
}

// receiver returns the name of a receiver's type, without its star and its type parameters.
func receiver(expr ast.Expr) string {
	switch e := expr.(type) {
	case *ast.StarExpr:
		return receiver(e.X)
	case *ast.IndexExpr:
		return receiver(e.X)
	case *ast.Ident:
		return e.Name
	}
	return ""
}

// hasMember reports whether a type has a field or an interface method of that name.
func hasMember(expr ast.Expr, name string) bool {
	var fields *ast.FieldList
	switch e := expr.(type) {
	case *ast.StructType:
		fields = e.Fields
	case *ast.InterfaceType:
		fields = e.Methods
	default:
		return false
	}
	for _, field := range fields.List {
		for _, ident := range field.Names {
			if ident.Name == name {
				return true
			}
		}
	}
	return false
}

// testExists returns what is wrong with the name of a test, or "".
func testExists(t *testing.T, root, name string) string {
	t.Helper()
	folder, test, _ := strings.Cut(name, " ")
	if folder == "store/storetest" {
		matrix, err := os.ReadFile(filepath.Join(root, "store/storetest/testdata/matrix.txt"))
		if err != nil {
			t.Fatal(err)
		}
		if !regexp.MustCompile(`(?m)^\| ` + regexp.QuoteMeta(test) + ` +\|`).Match(matrix) {
			return name + ": the matrix has no such row"
		}
		return ""
	}
	if folder == "relay/relaytest" || folder == "inbox/inboxtest" || folder == "idempotency/idemtest" {
		return checkExists(t, root, folder, test)
	}
	files, err := filepath.Glob(filepath.Join(root, folder, "*_test.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if regexp.MustCompile(`(?m)^func ` + regexp.QuoteMeta(test) + `\(`).Match(text) {
			return ""
		}
	}
	return name + " does not exist"
}

// checkExists returns what is wrong with the name of a check of a suite of promises, or "".
func checkExists(t *testing.T, root, folder, name string) string {
	t.Helper()
	files, err := filepath.Glob(filepath.Join(root, folder, "*.go"))
	if err != nil {
		t.Fatal(err)
	}
	for _, file := range files {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		if strings.Contains(string(text), `{name: "`+name+`"`) {
			return ""
		}
	}
	return folder + " has no check " + name
}

// TestLinks: links of the documentation to files of the repository lead somewhere.
func TestLinks(t *testing.T) {
	root := docblock.Root(t)
	pages, err := filepath.Glob(filepath.Join(root, "docs", "*.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{"README.md", "CONTRIBUTING.md", "CHANGELOG.md"} {
		pages = append(pages, filepath.Join(root, name))
	}
	link := regexp.MustCompile(`\[[^\]\[]+\]\(([^)#\s"]+)[^)]*\)`)
	fenced := regexp.MustCompile("(?s)\n```.*?\n```")
	for _, page := range pages {
		text, err := os.ReadFile(page)
		if err != nil {
			t.Fatal(err)
		}
		for _, m := range link.FindAllStringSubmatch(fenced.ReplaceAllString(string(text), ""), -1) {
			if strings.Contains(m[1], "://") {
				continue
			}
			if _, err := os.Stat(filepath.Join(filepath.Dir(page), m[1])); err != nil {
				t.Errorf("%s links to %s: %v", filepath.Base(page), m[1], err)
			}
		}
	}
}
