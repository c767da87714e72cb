package repocheck_test

import (
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"unicode"

	"github.com/waybillhq/waybill/internal/docblock"
)

// synonyms are the words that a word of testdata/options.txt replaces.
var synonyms = []struct {
	pattern *regexp.Regexp
	word    string
}{
	{regexp.MustCompile(`^(MaxRetry|MaxRetries|Retries|Attempts|MaxAttempt)$`), "MaxAttempts"},
	{regexp.MustCompile(`^(LockTTL|LeaseTTL|LockTimeout|LeaseDuration)$`), "Lease"},
	{regexp.MustCompile(`^(Batch|MaxBatch|BatchLimit)$`), "BatchSize"},
	{regexp.MustCompile(`^(PurgeBatch|CleanBatch|CleanBatchSize)$`), "PurgeBatchSize"},
	{regexp.MustCompile(`^(Clean|Cleanup|Delete)Interval$`), "PurgeInterval"},
	{regexp.MustCompile(`^Keep([A-Z]\w*)$`), "${1}Retention"},
	{regexp.MustCompile(`^(\w+?)s?Kept$`), "${1}Retention"},
	{regexp.MustCompile(`^(\w*)TTL$`), "${1}Retention"},
	{regexp.MustCompile(`^(Base|Min|Initial)Backoff$`), "BackoffBase"},
	{regexp.MustCompile(`^MaxBackoff$`), "BackoffMax"},
	{regexp.MustCompile(`^(Source|CloudEventsSource)$`), "EventSource"},
	{regexp.MustCompile(`^(Timeout|SendTimeout|ConfirmTimeout)$`), "PublishTimeout"},
	{regexp.MustCompile(`^(AutoCreate|Declare|ExistingOnly|CreateMissing)$`), "Create"},
	{regexp.MustCompile(`^(InHand|InFlight|Prefetch)$`), "MaxInFlight"},
	{regexp.MustCompile(`^(HoldFor|HoldMax)$`), "MaxHold"},
	{regexp.MustCompile(`^(MaxReply|MaxAnswer)$`), "MaxResult"},
	{regexp.MustCompile(`^(Log|Slog)$`), "Logger"},
	{regexp.MustCompile(`^(Observer|Metrics|Hook)$`), "Observe"},
}

// replacement returns the word that replaces a name, or "".
func replacement(name string) string {
	for _, s := range synonyms {
		if s.pattern.MatchString(name) {
			return s.pattern.ReplaceAllString(name, s.word)
		}
	}
	return ""
}

// defaults matches a comment that names the default of a field, or says that it
// has none.
var defaults = regexp.MustCompile(`\b(Defaults? to|[Bb]y default|[Rr]equired)\b`)

// option is a field of an exported struct of options.
type option struct {
	pkg, structName, name, doc, pos string
}

func (o option) String() string { return o.pkg + "." + o.structName + "." + o.name }

// optionStructs are structs of options whose names do not end with Config or
// Options.
var optionStructs = []string{"admin.Retention", "admin.Capture", "reconcile.Job", "idempotency.Request"}

// optionsOf returns the fields of the structs of options in a file.
func optionsOf(set *token.FileSet, folder string, file *ast.File) []option {
	var out []option
	ast.Inspect(file, func(n ast.Node) bool {
		spec, ok := n.(*ast.TypeSpec)
		if !ok || !spec.Name.IsExported() {
			return true
		}
		name := spec.Name.Name
		fields, ok := spec.Type.(*ast.StructType)
		if !ok || !strings.HasSuffix(name, "Config") && !strings.HasSuffix(name, "Options") && !slices.Contains(optionStructs, folder+"."+name) {
			return true
		}
		for _, field := range fields.Fields.List {
			for _, id := range field.Names {
				if id.IsExported() {
					out = append(out, option{folder, name, id.Name, strings.Join(strings.Fields(field.Doc.Text()), " "), set.Position(id.Pos()).String()})
				}
			}
		}
		return true
	})
	return out
}

// checkOption returns the problems of a field.
func checkOption(o option, words map[string]string) []string {
	var out []string
	_, known := words[o.name]
	switch word := replacement(o.name); {
	case word != "":
		out = append(out, fmt.Sprintf("%s: the word is %s", o, word))
	case !known:
		out = append(out, fmt.Sprintf("%s: not in testdata/options.txt: use a word of the list, or add this one", o))
	}
	if !defaults.MatchString(o.doc) {
		out = append(out, fmt.Sprintf("%s: the comment names no default; write what it defaults to, or that it is required", o))
	}
	return out
}

// TestOptions: the fields of all structs of options, and the keys of the
// program's settings, have the names of testdata/options.txt, and each field's
// comment names its default.
func TestOptions(t *testing.T) {
	root := docblock.Root(t)
	words := wordList(t, "testdata/options.txt")
	used := map[string]bool{}
	count := 0
	walkText(t, root, func(file string, text []byte) {
		folder := filepath.ToSlash(filepath.Dir(file))
		if !strings.HasSuffix(file, ".go") || strings.HasSuffix(file, "_test.go") || !isPublic(folder) {
			return
		}
		set := token.NewFileSet()
		parsed, err := parser.ParseFile(set, file, text, parser.ParseComments)
		if err != nil {
			t.Fatal(err)
		}
		for _, o := range optionsOf(set, folder, parsed) {
			count++
			used[o.name] = true
			for _, p := range checkOption(o, words) {
				t.Errorf("%s: %s", o.pos, p)
			}
		}
	})
	if count < 150 {
		t.Errorf("the check found %d options", count)
	}
	for word := range words {
		if !used[word] {
			t.Errorf("testdata/options.txt has %s, which no struct has", word)
		}
	}
}

// isPublic reports whether users import the packages of a folder.
func isPublic(folder string) bool {
	parts := strings.Split(folder, "/")
	return !slices.Contains(parts, "internal") && !slices.Contains(parts, "testdata") && !slices.Contains([]string{"cmd", "demo", "test", "bench", "examples"}, parts[0])
}

// TestSettingNames: the last part of each key of the program's settings, or
// both parts, is a word of testdata/options.txt in lower case, or a word of
// testdata/settings.txt, which has the words that only the program has.
func TestSettingNames(t *testing.T) {
	root := docblock.Root(t)
	options, own := map[string]bool{}, wordList(t, "testdata/settings.txt")
	for word := range wordList(t, "testdata/options.txt") {
		options[kebab(word)] = true
	}
	used := map[string]bool{}
	keys := append(settingKeys(t, filepath.Join(root, "cmd/waybill/internal/settings/keys.go")), jobKeys(t, filepath.Join(root, "cmd/waybill/internal/settings/job.go"))...)
	if len(keys) < 60 {
		t.Errorf("the check found %d settings", len(keys))
	}
	for _, key := range keys {
		name := key[strings.LastIndex(key, ".")+1:]
		word := replacement(camel(name))
		_, inOwn := own[name]
		used[name] = true
		switch {
		case inOwn && options[name]:
			t.Errorf("testdata/settings.txt has %s, which is in testdata/options.txt", name)
		case inOwn:
		case word != "":
			t.Errorf("the setting %s: the word is %s", key, kebab(word))
		case !options[name] && !options[strings.ReplaceAll(key, ".", "-")]:
			t.Errorf("the setting %s: neither in testdata/options.txt nor in testdata/settings.txt", key)
		}
	}
	for word := range own {
		if !used[word] {
			t.Errorf("testdata/settings.txt has %s, which no setting has", word)
		}
	}
}

// settingKeys returns the field Name of every composite literal in a file.
func settingKeys(t *testing.T, path string) []string {
	t.Helper()
	var out []string
	inspectFile(t, path, func(n ast.Node) {
		if pair, ok := n.(*ast.KeyValueExpr); ok {
			if id, ok := pair.Key.(*ast.Ident); ok && id.Name == "Name" {
				out = append(out, unquoted(t, pair.Value))
			}
		}
	})
	return out
}

// jobKeys returns the keys of the map that the method fields returns.
func jobKeys(t *testing.T, path string) []string {
	t.Helper()
	var out []string
	inspectFile(t, path, func(n ast.Node) {
		if fn, ok := n.(*ast.FuncDecl); ok && fn.Name.Name == "fields" {
			ast.Inspect(fn, func(n ast.Node) bool {
				if pair, ok := n.(*ast.KeyValueExpr); ok {
					if key, ok := pair.Key.(*ast.BasicLit); ok {
						out = append(out, "job."+unquoted(t, key))
					}
				}
				return true
			})
		}
	})
	return out
}

func inspectFile(t *testing.T, path string, fn func(ast.Node)) {
	t.Helper()
	parsed, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(parsed, func(n ast.Node) bool { fn(n); return true })
}

func unquoted(t *testing.T, e ast.Expr) string {
	t.Helper()
	lit, ok := e.(*ast.BasicLit)
	if !ok {
		t.Fatalf("%T is not a literal", e)
	}
	text, err := strconv.Unquote(lit.Value)
	if err != nil {
		t.Fatal(err)
	}
	return text
}

// wordList reads lines of a word, a colon and its meaning.
func wordList(t *testing.T, path string) map[string]string {
	t.Helper()
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	out := map[string]string{}
	previous := ""
	for n, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		word, meaning, ok := strings.Cut(line, ": ")
		if !ok || meaning == "" || word <= previous {
			t.Fatalf("%s:%d: want a word and its meaning, sorted: %q", path, n+1, line)
		}
		out[word], previous = meaning, word
	}
	return out
}

// kebab returns MaxAttempts as max-attempts, and ListenURL as listen-url.
func kebab(name string) string {
	var b strings.Builder
	runes := []rune(name)
	for i, r := range runes {
		if unicode.IsUpper(r) && i > 0 && (!unicode.IsUpper(runes[i-1]) || i+1 < len(runes) && unicode.IsLower(runes[i+1])) {
			b.WriteByte('-')
		}
		b.WriteRune(unicode.ToLower(r))
	}
	return b.String()
}

// camel returns max-attempts as MaxAttempts.
func camel(name string) string {
	var b strings.Builder
	for part := range strings.SplitSeq(name, "-") {
		b.WriteString(strings.ToUpper(part[:1]) + part[1:])
	}
	return b.String()
}

// TestOptionsAreChecked: the check finds what it looks for.
func TestOptionsAreChecked(t *testing.T) {
	const source = `package p

type SinkConfig struct {
	// MaxRetry is a limit. Defaults to 3.
	MaxRetry int
	// Lease is a time.
	Lease, Linger int
	// KeepHistory is a time. Defaults to 3.
	KeepHistory int
	Unheard int
	hidden int
}

type Other struct{ MaxRetry int }
type config struct{ MaxRetry int }
`
	set := token.NewFileSet()
	file, err := parser.ParseFile(set, "p.go", source, parser.ParseComments)
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, o := range optionsOf(set, "p", file) {
		got = append(got, checkOption(o, map[string]string{"Lease": "", "Linger": ""})...)
	}
	const noDefault = "the comment names no default; write what it defaults to, or that it is required"
	want := []string{
		"p.SinkConfig.MaxRetry: the word is MaxAttempts",
		"p.SinkConfig.Lease: " + noDefault, "p.SinkConfig.Linger: " + noDefault,
		"p.SinkConfig.KeepHistory: the word is HistoryRetention",
		"p.SinkConfig.Unheard: not in testdata/options.txt: use a word of the list, or add this one", "p.SinkConfig.Unheard: " + noDefault,
	}
	if !slices.Equal(got, want) {
		t.Errorf("the check reports\n%s\nwant\n%s", strings.Join(got, "\n"), strings.Join(want, "\n"))
	}
	for name, want := range map[string]string{
		"LockTTL": "Lease", "TTL": "Retention", "ResultTTL": "ResultRetention", "TracesKept": "TraceRetention", "Batch": "BatchSize", "CleanInterval": "PurgeInterval",
		"Source": "EventSource", "Timeout": "PublishTimeout", "ExistingOnly": "Create", "BaseBackoff": "BackoffBase",
		"EventSource": "", "PublishTimeout": "", "DrainTimeout": "", "BackoffMax": "", "MaxAttempts": "",
	} {
		if got := replacement(name); got != want {
			t.Errorf("the word for %s is %q, want %q", name, got, want)
		}
	}
	for name, want := range map[string]string{"MaxAttempts": "max-attempts", "ListenURL": "listen-url", "URL": "url", "TLSConfig": "tls-config", "DLQ": "dlq"} {
		if got := kebab(name); got != want {
			t.Errorf("%s is %s, want %s", name, got, want)
		}
	}
}
