package metrics_test

import (
	"context"
	"fmt"
	"maps"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/storage"
	"github.com/prometheus/prometheus/template"
	"github.com/prometheus/prometheus/tsdb/chunks"
	"go.yaml.in/yaml/v3"

	"github.com/waybillhq/waybill/internal/testserver"
)

// ruleTests is the part of promtool's format that our rule tests use. As a
// library promtool would pull in the clients of every cloud, and as a program
// it is not always installed, so the tests also run here, with Prometheus's own
// parser, engine and templates.
type ruleTests struct {
	RuleFiles          []string       `yaml:"rule_files"`
	EvaluationInterval model.Duration `yaml:"evaluation_interval"`
	Tests              []ruleTest     `yaml:"tests"`
}

type ruleTest struct {
	Name        string         `yaml:"name"`
	Interval    model.Duration `yaml:"interval"`
	InputSeries []struct {
		Series string `yaml:"series"`
		Values string `yaml:"values"`
	} `yaml:"input_series"`
	Alerts []alertTest `yaml:"alert_rule_test"`
}

type alertTest struct {
	EvalTime model.Duration `yaml:"eval_time"`
	Alert    string         `yaml:"alertname"`
	Want     []alert        `yaml:"exp_alerts"`
}

type alert struct {
	Labels      map[string]string `yaml:"exp_labels"`
	Annotations map[string]string `yaml:"exp_annotations"`
}

func readRuleTests(t *testing.T) ruleTests {
	t.Helper()
	f, err := os.Open(ruleTestsFile)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	var tests ruleTests
	d := yaml.NewDecoder(f)
	d.KnownFields(true)
	if err := d.Decode(&tests); err != nil {
		t.Fatal(err)
	}
	if !slices.Equal(tests.RuleFiles, []string{"waybill.rules.yml"}) {
		t.Fatalf("rule files %v", tests.RuleFiles)
	}
	return tests
}

// TestAlertsFireAtTheirThresholds runs the rule tests, and checks that every
// alert has one in which it fires and one in which it does not.
func TestAlertsFireAtTheirThresholds(t *testing.T) {
	tests := readRuleTests(t)
	fires, silent := map[string]bool{}, map[string]bool{}
	for _, test := range tests.Tests {
		t.Run(test.Name, func(t *testing.T) { runRuleTest(t, test, time.Duration(tests.EvaluationInterval)) })
		for _, a := range test.Alerts {
			if len(a.Want) > 0 {
				fires[a.Alert] = true
			} else if len(test.Alerts) == 1 {
				// not an alert that is only pending
				silent[a.Alert] = true
			}
		}
	}
	for _, r := range rules(t) {
		if !fires[r.Alert] || !silent[r.Alert] {
			t.Errorf("%s: fires in a test: %v; is silent at its threshold in one: %v", r.Alert, fires[r.Alert], silent[r.Alert])
		}
	}
}

// TestPromtoolAgrees: Prometheus's own tool accepts the rules, and their tests
// pass with it.
func TestPromtoolAgrees(t *testing.T) {
	promtool := testserver.Promtool(t)
	for command, file := range map[string]string{"check": rulesFile, "test": ruleTestsFile} {
		out, err := exec.CommandContext(t.Context(), promtool, command, "rules", file).CombinedOutput()
		if err != nil || !strings.Contains(string(out), "SUCCESS") {
			t.Errorf("promtool %s rules: %v\n%s", command, err, out)
		}
	}
}

// TestPromtoolConfig: Prometheus's own tool accepts the configuration of
// deploy/compose. The files that it names exist in the container only.
func TestPromtoolConfig(t *testing.T) {
	promtool := testserver.Promtool(t)
	out, err := exec.CommandContext(t.Context(), promtool, "check", "config", "--syntax-only", composeConfig).CombinedOutput()
	if err != nil || !strings.Contains(string(out), "SUCCESS") {
		t.Errorf("promtool check config: %v\n%s", err, out)
	}
}

// runRuleTest evaluates all rules at every interval, like a Prometheus, and
// compares the firing alerts.
func runRuleTest(t *testing.T, test ruleTest, every time.Duration) {
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1e6, Timeout: time.Minute, LookbackDelta: 5 * time.Minute, Parser: parser.NewParser(parser.Options{}),
	})
	defer func() { _ = engine.Close() }()
	data, all := load(t, test), rules(t)
	// start time of each active series of an alert
	states := map[string]map[string]time.Time{}
	end := slices.MaxFunc(test.Alerts, func(a, b alertTest) int { return int(a.EvalTime - b.EvalTime) }).EvalTime
	for at := time.Duration(0); at <= time.Duration(end); at += every {
		now := time.Unix(0, 0).Add(at)
		firing := map[string][]alert{}
		for _, r := range all {
			if states[r.Alert] == nil {
				states[r.Alert] = map[string]time.Time{}
			}
			firing[r.Alert] = evaluate(t, engine, data, r, now, states[r.Alert])
		}
		for _, a := range test.Alerts {
			if time.Duration(a.EvalTime) == at {
				compare(t, a, firing[a.Alert])
			}
		}
	}
}

// evaluate returns the firing alerts of a rule.
func evaluate(t *testing.T, engine *promql.Engine, data storage.Queryable, r rulefmt.Rule, now time.Time, since map[string]time.Time) []alert {
	t.Helper()
	q, err := engine.NewInstantQuery(t.Context(), data, nil, r.Expr, now)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Close()
	vector, err := q.Exec(t.Context()).Vector()
	if err != nil {
		t.Fatalf("%s: %v", r.Alert, err)
	}
	active := map[string]bool{}
	var out []alert
	for _, s := range vector {
		key := s.Metric.String()
		active[key] = true
		if _, was := since[key]; !was {
			since[key] = now
		}
		if now.Sub(since[key]) >= time.Duration(r.For) {
			out = append(out, describe(t, r, s, now))
		}
	}
	maps.DeleteFunc(since, func(key string, _ time.Time) bool { return !active[key] })
	return out
}

// describe expands the texts of an alert.
func describe(t *testing.T, r rulefmt.Rule, s promql.Sample, now time.Time) alert {
	t.Helper()
	a := alert{Labels: s.Metric.Map(), Annotations: map[string]string{}}
	delete(a.Labels, model.MetricNameLabel)
	none := func(context.Context, string, time.Time) (promql.Vector, error) { return nil, nil }
	for name, text := range r.Annotations {
		text = "{{$labels := .Labels}}{{$value := .Value}}" + text
		got, err := template.NewTemplateExpander(t.Context(), text, r.Alert, template.AlertTemplateData(a.Labels, nil, "", s),
			model.TimeFromUnixNano(now.UnixNano()), none, &url.URL{}, nil).Expand()
		if err != nil {
			t.Errorf("%s: %v", r.Alert, err)
		}
		a.Annotations[name] = got
	}
	maps.Copy(a.Labels, r.Labels)
	return a
}

func compare(t *testing.T, want alertTest, got []alert) {
	t.Helper()
	text := func(list []alert) string {
		var lines []string
		for _, a := range list {
			// maps print in order
			lines = append(lines, fmt.Sprintf("%v %v", a.Labels, a.Annotations))
		}
		slices.Sort(lines)
		return strings.Join(lines, "\n")
	}
	if g, w := text(got), text(want.Want); g != w {
		t.Errorf("%s after %v:\n%s\nwant:\n%s", want.Alert, time.Duration(want.EvalTime), g, w)
	}
}

// load loads the input of a test into a storage.
func load(t *testing.T, test ruleTest) storage.Queryable {
	t.Helper()
	var all []storage.Series
	for _, in := range test.InputSeries {
		lset, values, err := parser.NewParser(parser.Options{}).ParseSeriesDesc(in.Series + " " + in.Values)
		if err != nil {
			t.Fatalf("%s: %v", in.Series, err)
		}
		var samples []chunks.Sample
		for i, v := range values {
			if !v.Omitted {
				samples = append(samples, sample{at: int64(i) * time.Duration(test.Interval).Milliseconds(), value: v.Value})
			}
		}
		all = append(all, storage.NewListSeries(lset, samples))
	}
	slices.SortFunc(all, func(a, b storage.Series) int { return labels.Compare(a.Labels(), b.Labels()) })
	return &storage.MockQueryable{MockQuerier: &storage.MockQuerier{
		SelectMockFunction: func(_ bool, _ *storage.SelectHints, matchers ...*labels.Matcher) storage.SeriesSet {
			set := &seriesSet{at: -1}
			for _, s := range all {
				if !slices.ContainsFunc(matchers, func(m *labels.Matcher) bool { return !m.Matches(s.Labels().Get(m.Name)) }) {
					set.list = append(set.list, s)
				}
			}
			return set
		},
	}}
}
