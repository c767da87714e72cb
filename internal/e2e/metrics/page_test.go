package metrics_test

import (
	"maps"
	"os"
	"regexp"
	"slices"
	"strings"
	"testing"
)

const page = "../../../docs/metrics.md"

// row is a line of the page's tables of metrics.
type row struct {
	kind, unit    string
	labels, hooks []string
	others        string
}

var quoted = regexp.MustCompile("`([^`]+)`")

func names(cell string) []string {
	var out []string
	for _, m := range quoted.FindAllStringSubmatch(cell, -1) {
		out = append(out, m[1])
	}
	slices.Sort(out)
	return out
}

// tables returns the rows of the page's tables whose first column is head.
func tables(t *testing.T, head string) [][]string {
	t.Helper()
	text, err := os.ReadFile(page)
	if err != nil {
		t.Fatal(err)
	}
	var out [][]string
	inside := false
	for line := range strings.Lines(string(text)) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			inside = false
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		switch {
		case cells[0] == head:
			inside = true
		case inside && !strings.HasPrefix(cells[0], "---"):
			out = append(out, cells)
		}
	}
	if len(out) == 0 {
		t.Fatalf("%s has no table of %ss", page, head)
	}
	return out
}

func documented(t *testing.T) map[string]row {
	t.Helper()
	rows := map[string]row{}
	for _, c := range tables(t, "metric") {
		name := strings.Trim(c[0], "`")
		if _, twice := rows[name]; twice {
			t.Errorf("%s is on the page twice", name)
		}
		if len(c) != 6 {
			t.Fatalf("%s: %d columns", name, len(c))
		}
		rows[name] = row{kind: c[1], unit: c[2], labels: names(c[3]), hooks: names(c[4]), others: c[5]}
	}
	return rows
}

// TestPageIsWhatIsExported: docs/metrics.md and the exporter name the same
// metrics, with the same types, units, labels and hooks.
func TestPageIsWhatIsExported(t *testing.T) {
	rows, all := documented(t), exportedMetrics(t)
	for name, e := range all {
		r, ok := rows[name]
		if !ok {
			t.Errorf("%s is exported and not on the page", name)
			continue
		}
		if r.kind != e.kind {
			t.Errorf("%s is a %s, the page says %s", name, e.kind, r.kind)
		}
		if unit := strings.Trim(e.unit, "{}"); r.unit != unit {
			t.Errorf("%s is in %q, the page says %q", name, unit, r.unit)
		}
		if labels := slices.Sorted(maps.Keys(e.labels)); !slices.Equal(labels, r.labels) {
			t.Errorf("%s has the labels %v, the page says %v", name, labels, r.labels)
		}
		if hooks := slices.Sorted(maps.Keys(e.hooks)); !slices.Equal(hooks, r.hooks) {
			t.Errorf("%s is counted by %v, the page says %v", name, hooks, r.hooks)
		}
	}
	for name := range rows {
		if all[name] == nil {
			t.Errorf("%s is on the page and not exported", name)
		}
	}
}

// TestOtherNamesHaveARow: the metric names of other outboxes are on the page.
func TestOtherNamesHaveARow(t *testing.T) {
	var others strings.Builder
	for _, r := range documented(t) {
		others.WriteString(r.others + "\n")
	}
	for _, name := range []string{
		"`{p}.enqueue.hot`", "`{p}.enqueue.hot.dropped`", "`{p}.enqueue.cold`", "`{p}.dispatch.success`", "`{p}.dispatch.failure`", "`{p}.dispatch.dead`",
		"`incrementHotEnqueued`", "`incrementHotDropped`", "`incrementColdEnqueued`", "`incrementDispatchSuccess`", "`incrementDispatchFailure`",
		"`incrementDispatchDead`", "`recordQueueDepths`", "`recordOldestLagMs`",
		"`{p}.queue.hot.depth`", "`{p}.queue.cold.depth`", "`{p}.lag.oldest.ms`",
		"`events_enqueued_total`", "`events_dispatched_total`", "`events_retry_total`", "`events_failed_total`", "`events_in_memory_queue_gauge`",
		"`reconcile_fixed_total{job}`",
		"`outbox_backlog`", "`outbox_failed`", "`outbox_dead`", "`outbox_publish_latency`",
		"FAILED count", "max `retry_count`", "`exceeded max attempts`",
	} {
		if !strings.Contains(others.String(), name) {
			t.Errorf("no row has %s", name)
		}
	}
}
