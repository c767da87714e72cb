package metrics_test

import (
	"encoding/json"
	"log/slog"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql/parser"
)

const (
	rulesFile     = "../../../deploy/prometheus/waybill.rules.yml"
	ruleTestsFile = "../../../deploy/prometheus/waybill.rules.test.yml"
	composeConfig = "../../../deploy/compose/prometheus.yml"
	dashboard     = "../../../deploy/grafana/waybill.json"
)

func rules(t *testing.T) []rulefmt.Rule {
	t.Helper()
	groups, errs := rulefmt.ParseFile(rulesFile, false, model.UTF8Validation, parser.NewParser(parser.Options{}), slog.New(slog.DiscardHandler))
	for _, err := range errs {
		t.Error(err)
	}
	if len(errs) > 0 || len(groups.Groups) == 0 {
		t.FailNow()
	}
	return groups.Groups[0].Rules
}

// queries returns the expressions of the dashboard, and the queries of its
// variables.
func queries(t *testing.T) (exprs, lookups []string) {
	t.Helper()
	var d struct {
		Panels []struct {
			Title   string
			Targets []struct{ Expr string }
		}
		Templating struct {
			List []struct{ Type, Query string }
		}
	}
	b, err := os.ReadFile(dashboard)
	if err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	for _, p := range d.Panels {
		for _, q := range p.Targets {
			exprs = append(exprs, strings.ReplaceAll(q.Expr, "$__rate_interval", "5m"))
		}
	}
	for _, v := range d.Templating.List {
		if v.Type == "query" {
			lookups = append(lookups, v.Query)
		}
	}
	return exprs, lookups
}

// series removes the labels that a scrape adds to a metric, and the suffixes of
// a histogram.
var (
	scraped  = []string{"instance", "job", "relay"}
	parts    = regexp.MustCompile(`_(bucket|sum|count)$`)
	lookedUp = regexp.MustCompile(`^label_values\((\w+), (\w+)\)$`)
)

// use checks that an expression parses, and that its metrics and their labels
// exist. It returns the metrics.
func use(t *testing.T, all map[string]*exported, expr string) []string {
	t.Helper()
	tree, err := parser.NewParser(parser.Options{}).ParseExpr(expr)
	if err != nil {
		t.Errorf("%s: %v", expr, err)
		return nil
	}
	var used []string
	known := slices.Clone(scraped)
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		v, ok := node.(*parser.VectorSelector)
		if !ok {
			return nil
		}
		name := v.Name
		e := all[name]
		if base := parts.ReplaceAllString(name, ""); e == nil && all[base] != nil && all[base].kind == "histogram" {
			name, e = base, all[base]
			known = append(known, "le")
		}
		if e == nil {
			t.Errorf("%s: there is no metric %s", expr, v.Name)
			return nil
		}
		used = append(used, name)
		for label := range e.labels {
			known = append(known, label)
		}
		for _, m := range v.LabelMatchers {
			if m.Name != model.MetricNameLabel && !slices.Contains(known, m.Name) {
				t.Errorf("%s: %s has no label %s", expr, name, m.Name)
			}
		}
		return nil
	})
	parser.Inspect(tree, func(node parser.Node, _ []parser.Node) error {
		if a, ok := node.(*parser.AggregateExpr); ok {
			for _, label := range a.Grouping {
				if !slices.Contains(known, label) {
					t.Errorf("%s: no metric here has the label %s", expr, label)
				}
			}
		}
		return nil
	})
	return used
}

// TestExpressionsUseWhatIsExported: every expression of the rules and the
// dashboard parses, and names metrics and labels that exist.
func TestExpressionsUseWhatIsExported(t *testing.T) {
	all := exportedMetrics(t)
	for _, r := range rules(t) {
		use(t, all, r.Expr)
	}
	exprs, lookups := queries(t)
	shown := map[string]bool{}
	for _, expr := range exprs {
		for _, name := range use(t, all, expr) {
			shown[name] = true
		}
	}
	for _, q := range lookups {
		m := lookedUp.FindStringSubmatch(q)
		if m == nil || all[m[1]] == nil || !slices.Contains(scraped, m[2]) {
			t.Errorf("the dashboard looks up %s", q)
		}
	}
	for name := range all {
		if !shown[name] {
			t.Errorf("%s is not on the dashboard", name)
		}
	}
}

// TestAlertsSayWhatToType: every alert states the problem and the first command
// to run; the page lists the same. The tests of the program check the commands.
func TestAlertsSayWhatToType(t *testing.T) {
	listed := map[string]string{}
	for _, c := range tables(t, "alert") {
		listed[strings.Trim(c[0], "`")] = strings.Trim(c[2], "`")
	}
	for _, r := range rules(t) {
		runbook := strings.NewReplacer("{{ $labels.destination }}", "NAME", "{{ $labels.group }}", "GROUP").Replace(r.Annotations["runbook"])
		if r.Annotations["summary"] == "" || !strings.HasPrefix(runbook, "waybill ") || r.Labels["severity"] == "" {
			t.Errorf("%s: annotations %v, labels %v", r.Alert, r.Annotations, r.Labels)
		}
		if listed[r.Alert] != runbook {
			t.Errorf("%s: the page says %q, the rule %q", r.Alert, listed[r.Alert], runbook)
		}
		delete(listed, r.Alert)
	}
	for name := range listed {
		t.Errorf("there is no alert %s", name)
	}
}
