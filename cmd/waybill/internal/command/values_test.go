package command_test

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"unicode/utf8"

	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/internal/docblock"
)

// TestCompletionKnowsValues checks states, sinks, stores, and every setting
// with a fixed list of values.
func TestCompletionKnowsValues(t *testing.T) {
	t.Chdir(t.TempDir())
	s := &script{t: t, ids: map[string]string{}}
	offered := func(args ...string) []string {
		t.Helper()
		out, errs, code := s.run(t.Context(), append([]string{"__complete"}, args...), "")
		if code != command.Ok {
			t.Fatalf("%v: %s", args, errs)
		}
		return strings.Split(out, "\n")
	}
	for _, c := range []struct {
		args []string
		want []string
	}{
		{[]string{"list", "--state", ""}, []string{"ready", "delayed", "scheduled", "failed", "dead", "delivered"}},
		{[]string{"inbox", "list", "--state", ""}, []string{"processing", "failed", "dead"}},
		{[]string{"keys", "list", "--state", ""}, []string{"processing", "succeeded", "failed", "uncertain"}},
		{[]string{"serve", "--sink", ""}, []string{"nats:embedded", "nats://", "kafka://", "log:"}},
		{[]string{"stats", "--store", ""}, []string{"postgres://", "mysql://", "sqlite:"}},
		{[]string{"demo", "--sabotage", ""}, []string{"lose"}},
		{[]string{"s"}, []string{"serve", "stats", "show", "send"}},
	} {
		got := offered(c.args...)
		for _, want := range c.want {
			if !slices.ContainsFunc(got, func(line string) bool { word, _, _ := strings.Cut(line, "\t"); return word == want }) {
				t.Errorf("%v offers %q, without %s", c.args, got, want)
			}
		}
	}
	for _, k := range settings.Table() {
		for _, want := range k.Choices() {
			if got := offered("serve", "--"+k.Flag(), ""); !k.Switch() && !slices.Contains(got, want) {
				t.Errorf("--%s offers %q, without %s", k.Flag(), got, want)
			}
		}
	}
}

// TestTablesFitTheScreen checks realistic lengths of names and errors, and that
// no id or time is truncated.
func TestTablesFitTheScreen(t *testing.T) {
	s := newScript(t, "sqlite")
	s.fixture([]string{"events"}, "")
	s.fixture([]string{"inbox"}, "")
	s.fixture([]string{"keys"}, "")
	s.fixture([]string{"destinations"}, "")
	if _, errs, code := s.run(t.Context(), []string{"destinations", "add", "the-warehouse-of-the-company-in-town"}, ""); code != command.Ok {
		t.Fatal(errs)
	}
	if _, errs, code := s.run(t.Context(), []string{"destinations", "pause", "partner", "--reason", "the partner moves its servers to another continent"}, ""); code != command.Ok {
		t.Fatal(errs)
	}
	long := "OrderHasBeenAcceptedByTheWarehouse"
	if _, errs, code := s.run(t.Context(), []string{
		"send", long, "--aggregate-type", "customer-order-line", "--aggregate", "0190c2f8-7b5a-7c3e-9d8e-2f1a4b6c8d0e", "--tenant", "the-company-of-the-customer",
	}, ""); code != command.Ok {
		t.Fatal(errs)
	}
	for _, args := range [][]string{
		{"list"},
		{"stats"},
		{"blocked", "list"},
		{"dead", "list"},
		{"inbox", "list"},
		{"keys", "list"},
		{"doctor", "--sink", "log:"},
		{"migrate", "status"},
		{"show", s.names["dead"]},
		{"config"},
		{"destinations", "list"},
		{"list", "--destination", "partner"},
		{"show", s.names["behind"]},
		{"stats", "--destination", "partner"},
		{"restored", "--yes"},
	} {
		out, errs, _ := s.run(t.Context(), args, "")
		if out == "" {
			t.Fatalf("%v: %s", args, errs)
		}
		for line := range strings.Lines(out) {
			if n := utf8.RuneCountInString(strings.TrimSpace(line)); n > 100 && len(strings.Fields(line)) > 1 {
				t.Errorf("%v: %d columns: %s", args, n, line)
			}
		}
		if times := regexp.MustCompile(`\d{4}-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*`).FindAllString(out, -1); slices.ContainsFunc(times, func(at string) bool {
			return !strings.HasSuffix(at, "Z") || !strings.Contains(at, "T")
		}) {
			t.Errorf("%v: times without a zone, or truncated: %v", args, times)
		}
	}
	out, _, _ := s.run(t.Context(), []string{"list"}, "")
	ids := regexp.MustCompile(`(?m)^[0-9A-Z]{26} `).FindAllString(out, -1)
	if len(ids) != 12 {
		t.Errorf("%d of 12 ids are complete:\n%s", len(ids), out)
	}
}

// TestListKnowsWhatStatsCounts checks that scheduled and failed are states of
// list, too.
func TestListKnowsWhatStatsCounts(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "mysql", "mariadb"} {
		t.Run(kind, func(t *testing.T) {
			s := newScript(t, kind)
			s.fixture([]string{"events"}, "")
			for state, want := range map[string]string{"scheduled": "scheduled", "failed": "failed"} {
				out, errs, code := s.run(t.Context(), []string{"list", "--state", state}, "")
				if code != command.Ok || strings.Count(out, "delayed") != 1 || !strings.Contains(out, s.names[want]) {
					t.Errorf("list --state %s: %d\n%s%s", state, code, out, errs)
				}
			}
		})
	}
}

// TestDocumentedSettingsExist checks that every name in the pages that looks
// like a setting is one.
func TestDocumentedSettingsExist(t *testing.T) {
	known, groups := map[string]bool{}, map[string]bool{}
	for _, k := range settings.Table() {
		known[k.Name] = true
		if k.Secret() {
			known[k.FileName()] = true
		}
		if group, _, dotted := strings.Cut(k.Name, "."); dotted {
			groups[group] = true
		}
	}
	var names []string
	for group := range groups {
		names = append(names, group)
	}
	written := regexp.MustCompile("`(?:" + strings.Join(names, "|") + `)\.[a-z][a-z-]*` + "[`=: ]")
	found := 0
	for _, page := range []string{"README.md", "docs/operating.md", "docs/cli.md", "docs/relay.md", "docs/brokers.md", "docs/inbox.md", "docs/reconcile.md", "docs/sql.md", "docs/metrics.md"} {
		text, err := os.ReadFile(filepath.Join(docblock.Root(t), page))
		if err != nil {
			t.Fatal(err)
		}
		for _, name := range written.FindAllString(string(text), -1) {
			name = strings.Trim(name, "`=: ")
			if strings.HasSuffix(name, ".go") {
				continue
			}
			found++
			if !known[name] {
				t.Errorf("%s: unknown setting %s", page, name)
			}
		}
	}
	if found < 20 {
		t.Errorf("only %d settings were found", found)
	}
}

// TestFindersOnlyRead checks that a query that deletes the rows that it returns
// deletes nothing, in a run and in a dry run.
func TestFindersOnlyRead(t *testing.T) {
	for _, kind := range []string{"sqlite", "postgres", "mysql", "mariadb"} {
		t.Run(kind, func(t *testing.T) {
			s := newScript(t, kind)
			s.fixture([]string{"orders"}, "")
			s.fixture([]string{"file", "waybill.yaml"}, "jobs:\n  orders: {sql: \"DELETE FROM {orders} WHERE created_at >= {from} AND created_at < {to} RETURNING id AS aggregate_id, '' AS payload\", "+
				"type: OrderPlaced, aggregate-type: order}\n")
			for _, args := range [][]string{{"reconcile", "run", "orders", "--dry-run"}, {"reconcile", "run", "orders"}} {
				_, _, _ = s.run(t.Context(), args, "") // servers refuse it, SQLite does not
				st := s.open()
				var left int
				err := st.SQL.QueryRowContext(t.Context(), s.spell("SELECT count(*) FROM {orders}")).Scan(&left)
				s.must(st.Close())
				if err != nil || left != 3 {
					t.Errorf("%v: %d of 3 orders are left, %v", args, left, err)
				}
			}
		})
	}
}
