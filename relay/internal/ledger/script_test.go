package ledger

import (
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

var update = flag.Bool("update", false, "rewrite the results in the scripts of testdata")

// elsewhere are the rules of docs/protocol.md that the ledger has no part in,
// with the folder that enforces each of them.
var elsewhere = map[string]string{
	"fence-changes-at-every-acquisition":        "store",
	"heartbeats-do-not-touch-lanes":             "store",
	"no-delivery-after-the-local-deadline":      "relay",
	"lapsed-lanes-are-released":                 "relay",
	"lost-answer-to-an-acquisition":             "relay",
	"one-relay-per-outbox":                      "relay",
	"a-failover-voids-leases":                   "store/pgstore",
	"settlement-locks-the-fence":                "store",
	"no-round-trip-under-the-lock":              "store",
	"two-names-of-a-transaction":                "store/pgstore",
	"stale-transaction-list-is-detected":        "store/mysqlstore",
	"fan-out-has-combined-destinations":         "relay",
	"copies-are-part-of-the-settlement":         "store",
	"behind-until-the-backlog-is-empty":         "relay",
	"backlog-waits-for-slow-calls":              "relay",
	"waiting-calls-ask-again":                   "relay",
	"destinations-that-are-not-called-wait-too": "relay",
	"backlogs-belong-to-lanes":                  "relay",
	"results-are-of-one-ownership":              "relay",
	"writers-carry-the-lane-count":              "store",
	"dedup-keys-are-taken-in-order":             "store",
	"committed-asks-open-transactions-first":    "store",
}

// TestEveryRuleHasAScript: each rule of docs/protocol.md has a script in
// testdata, or the ledger has no part in the rule.
func TestEveryRuleHasAScript(t *testing.T) {
	page, err := os.ReadFile("../../../docs/protocol.md")
	if err != nil {
		t.Fatal(err)
	}
	var rules []string
	for _, m := range regexp.MustCompile(`(?m)^### (\S+)$`).FindAllStringSubmatch(string(page), -1) {
		rules = append(rules, m[1])
	}
	for _, rule := range rules {
		_, err := os.Stat(scriptFile(rule))
		if _, other := elsewhere[rule]; other == (err == nil) {
			t.Errorf("%s: has a script: %v, is enforced elsewhere: %v; want one of the two", rule, err == nil, other)
		}
	}
	for _, rule := range append(slices.Collect(maps.Keys(elsewhere)), scripts(t)...) {
		if !slices.Contains(rules, rule) {
			t.Errorf("docs/protocol.md has no rule %s", rule)
		}
	}
	for rule, folder := range elsewhere {
		if _, err := os.Stat(filepath.Join("../../..", folder)); err != nil {
			t.Errorf("%s: %v", rule, err)
		}
	}
}

// TestScript runs each script of testdata: one per rule of docs/protocol.md.
// scriptHelp describes the commands.
func TestScript(t *testing.T) {
	for _, rule := range scripts(t) {
		t.Run(rule, func(t *testing.T) { playFile(t, scriptFile(rule)) })
	}
}

// TestCases runs each script of testdata/cases: rare combinations of inputs
// that no rule of docs/protocol.md names.
func TestCases(t *testing.T) {
	files, err := filepath.Glob("testdata/cases/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("there are no cases: ", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { playFile(t, f) })
	}
}

// playFile runs the script of a file, and compares or updates its results.
func playFile(t *testing.T, name string) {
	t.Helper()
	raw, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	want := string(raw)
	got := play(t, want)
	switch {
	case got == want:
	case !*update:
		t.Errorf("the results differ:\n%s", firstDifference(want, got))
	default:
		if err := os.WriteFile(name, []byte(got), 0o644); err != nil { //nolint:gosec // a source file
			t.Fatal(err)
		}
	}
}

func scriptFile(rule string) string { return filepath.Join("testdata", rule+".txt") }

// scripts returns the names of the scripts.
func scripts(t *testing.T) []string {
	t.Helper()
	files, err := filepath.Glob(scriptFile("*"))
	if err != nil || len(files) == 0 {
		t.Fatal("there are no scripts: ", err)
	}
	for i, f := range files {
		files[i] = strings.TrimSuffix(filepath.Base(f), ".txt")
	}
	return files
}

// play runs a script and returns it with the results of this run. A script is a
// sequence of blocks: lines with commands, a line "----", the results, and a
// blank line. Lines that begin with # are comments.
func play(t *testing.T, text string) string {
	t.Helper()
	var out []string
	s := newScript(t)
	pending, inResults := 0, false
	for n, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		switch {
		case inResults && line != "":
			continue
		case line == "----":
			if pending == 0 {
				t.Fatalf("line %d: results without a command", n+1)
			}
			out = append(out, line)
			out = append(out, s.results()...)
			pending, inResults = 0, true
			continue
		case line == "" || strings.HasPrefix(line, "#"):
			inResults = false
			if pending > 0 {
				t.Fatalf("line %d: want \"----\" after the commands", n+1)
			}
		default:
			pending++
			if err := s.run(strings.Fields(line)); err != nil {
				t.Fatalf("line %d: %s: %v, after\n%s", n+1, line, err, strings.Join(append(out, s.lines...), "\n"))
			}
		}
		out = append(out, line)
	}
	if pending > 0 {
		t.Fatal("the script ends without \"----\"")
	}
	return strings.Join(out, "\n") + "\n"
}

// firstDifference shows where two texts begin to differ.
func firstDifference(want, got string) string {
	w, g := strings.Split(want, "\n"), strings.Split(got, "\n")
	for i := range max(len(w), len(g)) {
		if i >= len(w) || i >= len(g) || w[i] != g[i] {
			from := max(i-8, 0)
			return fmt.Sprintf("line %d\nwant:\n%s\n\ngot:\n%s", i+1,
				strings.Join(w[min(from, len(w)):min(i+6, len(w))], "\n"), strings.Join(g[min(from, len(g)):min(i+6, len(g))], "\n"))
		}
	}
	return "nothing"
}

// TestScriptsAreRead: a script with a wrong result, or a wrong command, fails.
func TestScriptsAreRead(t *testing.T) {
	const good = "begin 1\n----\n"
	played := play(t, good)
	if played == good || play(t, played) != played {
		t.Errorf("the results of a script are\n%s", played)
	}
	if got := firstDifference("a\nb\nc", "a\nx\nc"); !strings.Contains(got, "line 2") {
		t.Errorf("the difference is %s", got)
	}
	for _, line := range []string{"jump", "read", "read nothing", "read fast e1", "result e1 ok", "settled", "answer", "advance soon", "config depth=3", "acquire 1 late"} {
		if err := newScript(t).run(strings.Fields(line)); err == nil {
			t.Errorf("%s: no error", line)
		}
	}
}
