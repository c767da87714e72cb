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

// made is a finding that a test has brought about.
type made struct {
	check, kind string // the check's Name and For
	text        string
	gone        bool // it was mended, and seen to be
}

// ledger has what the tests of this package have made. [TestEveryFindingIsMadeAndMended] reads it when they are through.
var ledger struct {
	sync.Mutex
	all []*made
}

// saw writes down that a test has asked for a finding and got it, with what to type.
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

// mended writes down that what the ward has had of a check is gone.
func (w *ward) mended(c Check) {
	ledger.Lock()
	defer ledger.Unlock()
	for _, m := range w.made {
		if m.check == c.Name && m.kind == c.For {
			m.gone = true
		}
	}
}

// servers says which checks, and which source files with their name, cannot be tried without a server.
func servers() map[string]string {
	return map[string]string{
		connect.Postgres: testserver.EnvPostgres, "pooler": testserver.EnvPostgres, "cdc": testserver.EnvPostgres, connect.MySQL: testserver.EnvMariaDB,
		kafkaSink: testserver.EnvKafka, pulsarSink: testserver.EnvPulsar, redisSink: testserver.EnvRedis, amqpSink: testserver.EnvRabbitMQ,
	}
}

// TestEveryFindingIsMadeAndMended: each warning and failure that the code can utter was brought about by a test, seen with what to type, and seen to be
// gone once it was mended. So was something of each check. Parallel tests run when the others are through, and this is the only one.
func TestEveryFindingIsMadeAndMended(t *testing.T) {
	t.Parallel()
	for _, name := range []string{"test.run", "test.skip"} {
		if flag.Lookup(name).Value.String() != "" {
			t.Skip("only some of the tests are run")
		}
	}
	if runtime.GOOS != "linux" && runtime.GOOS != "darwin" {
		t.Skip("most servers are not started here")
	}
	missing := func(kind string) bool {
		env, needed := servers()[kind]
		return needed && os.Getenv(env) == ""
	}
	ledger.Lock()
	defer ledger.Unlock()
	for _, c := range Table() {
		if !missing(c.For) && !slices.ContainsFunc(ledger.all, func(m *made) bool { return m.gone && m.check == c.Name && m.kind == c.For }) {
			t.Errorf("no test makes the check %q of %s find something, and mends it", c.Name, c.For)
		}
	}
	formats := make(map[string]string)
	for _, f := range utterances(t) {
		if before, twice := formats[f.format]; twice {
			t.Errorf("%s and %s say the same, so that nobody knows which of them was tested: %q", before, f.at, f.format)
		}
		formats[f.format] = f.at
		says := regexp.MustCompile("^" + regexp.MustCompile(`%[sd]`).ReplaceAllString(regexp.QuoteMeta(f.format), ".+") + "$")
		if !missing(f.kind) && !slices.ContainsFunc(ledger.all, func(m *made) bool { return m.gone && says.MatchString(m.text) }) {
			t.Errorf("%s: no test makes this finding, and mends it: %q", f.at, f.format)
		}
	}
}

// utterance is a call of warn or fail.
type utterance struct {
	at, kind string // the file's name says the kind
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
				t.Errorf("%s: a finding whose text is no literal cannot be looked for", at)
			case format != "%s": // an error of others, which is the check's only finding
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

// literal returns the text of a literal, or of several with plus signs between them.
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
