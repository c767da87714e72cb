package repocheck_test

import (
	"go/parser"
	"go/token"
	"io/fs"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

const module = "github.com/waybillhq/waybill"

// file is a Go file and what it imports.
type file struct {
	path    string // slash-separated, relative to the repository
	test    bool
	imports []string
}

// folder returns the file's folder, "." for the root.
func (f file) folder() string { return path.Dir(f.path) }

// parseImports reads the imports of all Go files.
func parseImports(t *testing.T) []file {
	t.Helper()
	root := docblock.Root(t)
	var files []file
	err := filepath.WalkDir(root, func(name string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		base := d.Name()
		if d.IsDir() && (base == "testdata" || name != root && strings.HasPrefix(base, ".")) {
			return filepath.SkipDir
		}
		if d.IsDir() || !strings.HasSuffix(base, ".go") {
			return nil
		}
		parsed, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.ImportsOnly)
		if err != nil {
			return err
		}
		rel, err := filepath.Rel(root, name)
		if err != nil {
			return err
		}
		f := file{path: filepath.ToSlash(rel), test: strings.HasSuffix(base, "_test.go")}
		for _, spec := range parsed.Imports {
			f.imports = append(f.imports, strings.Trim(spec.Path.Value, `"`))
		}
		files = append(files, f)
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if len(files) < 50 {
		t.Fatalf("only %d Go files were found", len(files))
	}
	return files
}

// local returns an import's folder in this repository, or "" for other imports.
func local(imported string) string {
	if imported == module {
		return "."
	}
	if rest, ok := strings.CutPrefix(imported, module+"/"); ok {
		return rest
	}
	return ""
}

// flow lists the packages above the stores.
var flow = []string{"outbox", "relay", "inbox", "idempotency", "reconcile", "admin", "handler", "broker", "dashboard"}

// rules are the import directions of non-test files: a folder (and its
// subfolders) → the imports of this repository that it may have. The first rule
// that matches a folder applies.
var rules = []struct {
	folder string
	may    []string
}{
	{"store/driver", []string{".", "store"}},
	{"store/drivertest", []string{".", "store", "store/driver", "outbox", "internal/eventfill"}},
	{"store", []string{".", "store", "store/driver", "internal/eventrow", "internal/sqlname", "internal/sqltx", "internal/migration", "internal/sqlstore", "internal/eventfill"}},
	{"outbox/outboxtest", []string{".", "outbox", "internal/eventfill"}},
	{"outbox", []string{".", "store", "store/driver", "observe", "internal/txrun", "internal/eventfill"}},
	{"observe", []string{".", "observe"}},
	{"relay/relaytest", []string{".", "store", "store/driver", "store/drivertest", "outbox", "relay", "handler", "admin", "observe", "internal/testroles", "relay/internal/ledger"}},
	{"relay/internal/ledger", []string{".", "store", "store/driver", "observe"}},
	{"relay", []string{".", "store", "store/driver", "observe", "relay/internal/ledger", "internal/retention", "internal/backoff", "internal/panics", "internal/outage"}},
	{"inbox/inboxtest", []string{".", "store", "store/driver", "store/drivertest", "outbox", "relay", "inbox", "admin", "observe", "internal/testroles", "internal/eventfill"}},
	{"inbox", []string{".", "store", "store/driver", "observe", "internal/txrun", "internal/backoff", "internal/panics", "internal/kind", "internal/outage", "internal/eventfill"}},
	{"handler", []string{".", "internal/panics", "internal/kind"}},
	{"admin", []string{".", "store", "store/driver", "observe", "internal/retention", "internal/outage", "internal/requestkey", "internal/words"}},
	{"dashboard", []string{".", "store", "observe", "admin", "internal/words"}},
	{"idempotency/idemtest", []string{".", "store", "store/driver", "store/drivertest", "outbox", "idempotency"}},
	{"idempotency/httpkey", []string{".", "idempotency", "internal/requestkey"}},
	{"idempotency/ginkey", []string{"idempotency/httpkey"}},
	{"idempotency/echokey", []string{"idempotency/httpkey"}},
	{"idempotency/grpckey", []string{".", "idempotency", "internal/requestkey"}},
	{"idempotency/jcs", []string{}},
	{"idempotency", []string{".", "store", "store/driver", "observe", "idempotency/jcs", "internal/txrun", "internal/backoff", "internal/outage"}},
	{"publicid", []string{"."}},
	{"catalog", []string{".", "internal/jsontext"}},
	{"payload", []string{".", "outbox", "handler", "internal/jsontext"}},
	{"reconcile/reconciletest", []string{".", "store", "store/driver", "store/drivertest", "outbox", "relay", "inbox", "reconcile"}},
	{"reconcile", []string{".", "store", "store/driver", "observe", "outbox", "inbox", "internal/txrun", "internal/panics", "internal/outage", "internal/eventfill"}},
	{"broker/drivertest", []string{".", "observe", "broker", "broker/driver", "outbox", "relay", "inbox", "store/memstore", "internal/eventfill"}},
	{"broker/driver", []string{".", "observe", "broker", "internal/message", "internal/backoff", "internal/panics", "internal/outage", "internal/eventfill"}},
	{"broker", []string{".", "observe", "broker", "broker/driver", "internal/message", "internal/panics", "internal/eventfill"}},
	{"cmd", nil},
	{"demo", nil},
	{"internal/sim", []string{".", "store", "store/driver", "store/memstore", "observe", "outbox", "relay", "handler", "inbox", "idempotency", "admin", "internal/testroles", "internal/mutants", "internal/docblock", "internal/sim"}},
	{"internal/retention", []string{".", "store", "store/driver", "observe", "internal/outage"}},
	{"internal/txrun", []string{".", "store", "store/driver", "observe"}},
	{"internal/sqltx", []string{".", "store", "store/driver"}},
	{"internal/eventrow", []string{".", "store", "store/driver"}},
	{"internal/eventfill", []string{"."}},
	{"internal/message", []string{"."}},
	{"internal/sqlstore", []string{".", "store", "store/driver", "internal/migration", "internal/sqlname"}},
	{"internal/testroles", []string{"store/driver"}},
	{"internal/testaudit", []string{".", "store", "store/driver", "outbox"}},
	{"internal/e2e", nil},
	{"internal/storematrix", []string{"store/drivertest"}},
	{"internal", []string{"internal/testserver", "internal/mutants", "internal/docblock"}},
	{".", []string{"internal/jsontext"}},
}

// TestImportDirections enforces the architecture of docs/flow.md.
func TestImportDirections(t *testing.T) {
	for _, f := range parseImports(t) {
		if f.test {
			continue // tests may drive a package through packages above it
		}
		for _, imported := range f.imports {
			if complaint := judge(f.folder(), local(imported)); complaint != "" {
				t.Errorf("%s imports %s: %s", f.path, imported, complaint)
			}
		}
	}
}

// judge returns an error text if a file in folder must not import target, both
// of this repository, or "".
func judge(folder, target string) string {
	if target == "" || target == folder || target == "internal/logkey" { // constants
		return ""
	}
	if strings.HasPrefix(target, "demo/") && !strings.HasPrefix(folder, "demo/") && !strings.HasPrefix(folder, "cmd/") {
		return "only cmd imports the demo"
	}
	if (target == "cmd" || strings.HasPrefix(target, "cmd/")) && !strings.HasPrefix(folder, "cmd/") {
		return "nothing imports cmd"
	}
	if strings.HasPrefix(target, "internal/e2e/") && !strings.HasPrefix(folder, "internal/e2e/") {
		return "nothing imports internal/e2e"
	}
	for _, rule := range rules {
		if folder != rule.folder && (rule.folder == "." || !strings.HasPrefix(folder, rule.folder+"/")) {
			continue
		}
		switch {
		case rule.may == nil, slices.Contains(rule.may, target), family(folder) == family(target):
			return ""
		case strings.HasPrefix(folder, "store/") && strings.HasPrefix(target, "store/"):
			return "stores do not import each other"
		case strings.HasPrefix(folder, "broker/") && strings.HasPrefix(target, "broker/"):
			return "brokers do not import each other"
		}
		return "only " + strings.Join(rule.may, ", ") + " may be imported there; see docs/flow.md"
	}
	return "the folder has no rule; give it one, here and in docs/flow.md"
}

// family returns the program under internal/ that a folder belongs to, such as
// internal/testserver, or the folder itself.
func family(folder string) string {
	if parts := strings.Split(folder, "/"); parts[0] == "internal" && len(parts) > 2 {
		return strings.Join(parts[:2], "/")
	}
	return folder
}

// TestJudge breaks the rules on purpose.
func TestJudge(t *testing.T) {
	for _, tc := range []struct {
		folder, target string
		allowed        bool
	}{
		{"store/pgstore", "store", true},
		{"outbox", "internal/logkey", true},
		{"dashboard", "admin", true},
		{"dashboard", "store/driver", false},
		{"internal/logkey", "observe", false},
		{"store/pgstore", "internal/sqltx", true},
		{"store/pgstore", "outbox", false},
		{"store/pgstore", "relay", false},
		{"store/pgstore", "store/memstore", false},
		{"store/pgstore", "internal/txrun", false},
		{"store", "store/memstore", false},
		{"outbox", "store", true},
		{"outbox", "store/driver", true},
		{"outbox", "store/memstore", false},
		{"store/driver", "store/memstore", false},
		{"outbox", "relay", false},
		{"outbox/outboxtest", "store", false},
		{".", "store", false},
		{".", "internal/jsontext", true},
		{"internal/txrun", "outbox", false},
		{"internal/e2e/examples/plain", "store/sqlitestore", true},
		{"internal/e2e/chaos", "internal/e2e/process/journal", true},
		{"cmd/waybill", "internal/e2e/process/journal", false},
		{"outbox", "cmd/waybill", false},
		{"demo/app", "demo/shop", true},
		{"cmd/waybill/internal/demo", "demo/shop", true},
		{"internal/e2e/process", "demo/shop", false},
		{"broker/natsbroker", "broker", true},
		{"broker/natsbroker", "broker/driver", true},
		{"broker/driver", "broker/membroker", false},
		{"broker/driver", "inbox", false},
		{"broker/natsbroker", "broker/redisbroker", false},
		{"broker/natsbroker", "inbox", false},
		{"broker/natsbroker", "store", false},
		{"cmd/waybill", "relay", true},
		{"nowhere", "store", false},
	} {
		if got := judge(tc.folder, tc.target) == ""; got != tc.allowed {
			t.Errorf("%s importing %s: allowed is %v, want %v", tc.folder, tc.target, got, tc.allowed)
		}
	}
	for _, name := range flow {
		if judge("store", name) == "" {
			t.Errorf("store may import %s", name)
		}
	}
}

// TestCoreDependencies: at run time the core module needs oklog/ulid and
// nothing else.
func TestCoreDependencies(t *testing.T) {
	modules := nestedModules(t)
	for _, f := range parseImports(t) {
		if f.test || slices.ContainsFunc(modules, func(m string) bool { return f.folder() == m || strings.HasPrefix(f.folder(), m+"/") }) {
			continue
		}
		for _, imported := range f.imports {
			if strings.Contains(strings.Split(imported, "/")[0], ".") && local(imported) == "" && imported != "github.com/oklog/ulid/v2" {
				t.Errorf("%s imports %s", f.path, imported)
			}
		}
	}
}

// nestedModules returns the folders of the modules other than the core.
func nestedModules(t *testing.T) []string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(docblock.Root(t), "go.work"))
	if err != nil {
		t.Fatal(err)
	}
	var modules []string
	for _, line := range strings.Split(string(text), "\n") {
		if rest, ok := strings.CutPrefix(strings.TrimSpace(line), "./"); ok {
			modules = append(modules, rest)
		}
	}
	if len(modules) == 0 {
		t.Fatal("go.work names no modules")
	}
	return modules
}
