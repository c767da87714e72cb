package doctor

import (
	"flag"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"runtime"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/internal/testserver"
)

// made is a finding that a test has caused.
type made struct {
	check, kind string // the check's Name and For
	text        string
	gone        bool // fixed, and checked
}

// ledger has the findings that the tests of this package have made.
// [TestEveryFindingIsMadeAndFixed] reads it after they end.
var ledger struct {
	sync.Mutex
	all []*made
}

// saw records an expected finding with its advice.
func (w *ward) saw(c Check, f Finding) {
	if f.Status == OK || f.Type == "" {
		return
	}
	ledger.Lock()
	defer ledger.Unlock()
	m := &made{check: c.Name, kind: c.For, text: f.Text}
	ledger.all = append(ledger.all, m)
	w.made = append(w.made, m)
}

// fixed records that the findings of a check are gone.
func (w *ward) fixed(c Check) {
	ledger.Lock()
	defer ledger.Unlock()
	for _, m := range w.made {
		if m.check == c.Name && m.kind == c.For {
			m.gone = true
		}
	}
}

// servers returns the checks, and the source files of the same name, that
// require a server.
func servers() map[string]string {
	return map[string]string{
		connect.Postgres: testserver.EnvPostgres, "pooler": testserver.EnvPostgres, "cdc": testserver.EnvPostgres, "rights": testserver.EnvPostgres, connect.MySQL: testserver.EnvMariaDB,
		kafkaSink: testserver.EnvKafka, pulsarSink: testserver.EnvPulsar, redisSink: testserver.EnvRedis, amqpSink: testserver.EnvRabbitMQ,
	}
}

// TestEveryFindingIsMadeAndFixed checks that a test has made each warning and
// failure in the code, checked its advice, and checked that it is gone after
// the fix; and the same for a finding of each check. It is the only parallel
// test, so it runs after all others.
func TestEveryFindingIsMadeAndFixed(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"test.run", "test.skip"} {
		if flag.Lookup(name).Value.String() != "" {
			t.Skip("only some of the tests are run")
		}
	}
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("most servers cannot be started on this platform")
	}
	missing := func(kind string) bool {
		env, needed := servers()[kind]
		return needed && os.Getenv(env) == ""
	}
	ledger.Lock()
	defer ledger.Unlock()
	for _, c := range Table() {
		if !missing(c.For) && !slices.ContainsFunc(ledger.all, func(m *made) bool { return m.gone && m.check == c.Name && m.kind == c.For }) {
			t.Errorf("no test makes and fixes a finding of the check %q of %s", c.Name, c.For)
		}
	}
	formats := make(map[string]string)
	for _, f := range utterances(t) {
		if before, twice := formats[f.format]; twice {
			t.Errorf("%s and %s have the same text, which must be unique: %q", before, f.at, f.format)
		}
		formats[f.format] = f.at
		says := regexp.MustCompile("^" + regexp.MustCompile(`%[sd]`).ReplaceAllString(regexp.QuoteMeta(f.format), ".+") + "$")
		if !missing(f.kind) && !slices.ContainsFunc(ledger.all, func(m *made) bool { return m.gone && says.MatchString(m.text) }) {
			t.Errorf("%s: no test makes and fixes this finding: %q", f.at, f.format)
		}
	}
}

// utterance is a call of warn or fail.
type utterance struct {
	at, kind string // the kind is the file's name
	format   string
}

func utterances(t *testing.T) []utterance {
	t.Helper()
	names, err := filepath.Glob("*.go")
	if err != nil {
		t.Fatal(err)
	}
	var out []utterance
	for _, name := range names {
		if strings.HasSuffix(name, "_test.go") {
			continue
		}
		files := token.NewFileSet()
		file, err := parser.ParseFile(files, name, nil, parser.SkipObjectResolution)
		if err != nil {
			t.Fatal(err)
		}
		ast.Inspect(file, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			if fn, ok := call.Fun.(*ast.Ident); !ok || fn.Name != "warn" && fn.Name != "fail" {
				return true
			}
			at := files.Position(call.Pos()).String()
			format, ok := literal(call.Args[1])
			switch {
			case !ok:
				t.Errorf("%s: the text of the finding is not a literal", at)
			case format != "%s": // the text of another error, the only finding of its check
				out = append(out, utterance{at, strings.TrimSuffix(name, ".go"), format})
			}
			return true
		})
	}
	if len(out) < 30 {
		t.Fatalf("only %d findings were found in the code", len(out))
	}
	return out
}

// literal returns the text of a literal, or of a concatenation of literals.
func literal(e ast.Expr) (string, bool) {
	switch e := e.(type) {
	case *ast.BasicLit:
		text, err := strconv.Unquote(e.Value)
		return text, err == nil
	case *ast.BinaryExpr:
		x, okX := literal(e.X)
		y, okY := literal(e.Y)
		return x + y, okX && okY && e.Op == token.ADD
	}
	return "", false
}
