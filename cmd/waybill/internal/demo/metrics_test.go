package demo

import (
	"bufio"
	"maps"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// inTables are the metrics that a table can tell, and how.
var inTables = []struct{ metric, labels, sql string }{
	// What was rolled back has left the tables; the journal of faults knows it.
	{"waybill_written_total", "", `SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM faults WHERE kind = 'rollbacks')`},
	{"waybill_dispatch_success_total", "", `SELECT count(*) FROM waybill_history`},
	{"waybill_dispatch_failure_total", `class="counted"`, `SELECT sum(attempts) FROM waybill_history`},
	{"waybill_dispatch_dead_total", "", `SELECT count(*) FROM waybill_dead`},
	{"waybill_dead_replayed_total", "", `SELECT sum(replay) FROM waybill_history`},
	{"waybill_consume_success_total", `group="INVENTORY"`, `SELECT count(*) FROM waybill_inbox WHERE consumer_group = 'INVENTORY' AND status = 1`},
	{"waybill_consume_dead_total", `group="INVENTORY"`, `SELECT count(*) FROM waybill_inbox WHERE status = 3`},
	{"waybill_key_ran_total", `outcome="success"`, `SELECT count(*) FROM waybill_idempotency WHERE status = 1`},
	{"waybill_key_ran_total", `outcome="failure"`, `SELECT count(*) FROM faults WHERE kind = 'rollbacks'`},
	{"waybill_key_repeated_total", "", `SELECT count(*) FROM answers WHERE replayed`},
	{"waybill_key_refused_total", `reason="in_progress"`, `SELECT count(*) FROM answers WHERE status = 409`},
	{"waybill_key_refused_total", "", `SELECT count(*) FROM answers WHERE status IN (409, 422)`},
	{"waybill_key_unkept_total", "", `SELECT count(*) FROM waybill_idempotency WHERE lost`},
	{"waybill_reconcile_runs_total", `outcome="success"`, `SELECT fence FROM waybill_job WHERE last_error IS NULL`},
	{"waybill_reconcile_found_total", "", `SELECT found FROM waybill_job`},
	{"waybill_reconcile_fixed_total", "", `SELECT sent FROM waybill_job`},
	{"waybill_reconcile_failed_total", "", `SELECT failed FROM waybill_job`},
	{"waybill_reconcile_skipped_total", "", `SELECT skipped FROM waybill_job`},

	{"waybill_backlog", "", `SELECT count(*) FROM waybill_outbox`},
	{"waybill_failed", "", `SELECT count(*) FROM waybill_delayed WHERE attempts > 0`},
	{"waybill_scheduled", "", `SELECT count(*) FROM waybill_delayed WHERE attempts = 0`},
	{"waybill_dead", "", `SELECT count(*) FROM waybill_dead`},
	{"waybill_lanes", "", `SELECT value FROM waybill_setting WHERE name = 'lanes'`},
	{"waybill_lanes_owned", "", `SELECT count(*) FROM waybill_lane WHERE owner IS NOT NULL`},
	{"waybill_group_failed", `group="INVENTORY"`, `SELECT count(*) FROM waybill_inbox WHERE status = 2`},
	{"waybill_group_dead", `group="INVENTORY"`, `SELECT count(*) FROM waybill_inbox WHERE status = 3`},
	{"waybill_keys_failed", "", `SELECT count(*) FROM waybill_idempotency WHERE status = 2`},
	{"waybill_keys_uncertain", "", `SELECT count(*) FROM waybill_idempotency WHERE status = 3`},
}

// inNoTable are the counters that no table can tell, and why.
var inNoTable = map[string]string{
	"waybill_enqueue_hot_total":         "which way an event took to the relay is not stored",
	"waybill_enqueue_hot_dropped_total": "which way an event took to the relay is not stored",
	"waybill_enqueue_cold_total":        "an event that is read twice is one row",
	"waybill_read_rows_total":           "reading leaves nothing behind",
	"waybill_read_failure_total":        "a read that failed leaves nothing behind",
	"waybill_settled_total":             "being put off without spending an attempt is settled too, and changes no number of a row",
	"waybill_settle_failure_total":      "a settlement that failed was rolled back",
	"waybill_purged_total":              "what was removed is not there any more",
	"waybill_dead_discarded_total":      "what was thrown away is not there any more",
	"waybill_consume_replayed_total":    "a repeat that changes nothing leaves nothing behind",
	"waybill_consume_failure_total":     "attempts that were cut off before they were recorded leave nothing behind",
	"waybill_received_total":            "messages are the broker's",
	"waybill_receive_dead_total":        "dead messages are in a stream of the broker",
}

// TestOnceMetrics: after the fixed scenario every metric of docs/metrics.md is on /metrics, and what a table can tell is what it tells.
func TestOnceMetrics(t *testing.T) {
	t.Parallel()
	var out buffer
	cfg := Config{Out: &out, Once: true}
	if err := cfg.complete(); err != nil {
		t.Fatal(err)
	}
	w, err := open(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	}()
	if err := w.play(t.Context()); err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
	shown := scrape(t, w)
	listed := documented(t)
	for name := range listed {
		if _, ok := shown[name]; !ok {
			t.Errorf("%s is in docs/metrics.md and not on /metrics", name)
		}
	}
	told := map[string]bool{}
	for _, c := range inTables {
		told[c.metric] = true
		var want float64
		if err := w.store.DB().QueryRowContext(t.Context(), c.sql).Scan(&want); err != nil {
			t.Errorf("%s: %s: %v", c.metric, c.sql, err)
		}
		if got := shown.sum(c.metric, c.labels); got != want {
			t.Errorf("%s{%s} is %g, and %s is %g", c.metric, c.labels, got, c.sql, want)
		}
	}
	for name, kind := range listed {
		if kind == "counter" && !told[name] && inNoTable[name] == "" {
			t.Errorf("%s is a counter: say what it is in the tables, or why no table knows", name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(inNoTable)) {
		if listed[name] == "" {
			t.Errorf("%s is no metric of docs/metrics.md", name)
		}
		t.Logf("%s: %s", name, inNoTable[name])
	}
}

// documented returns the names and types of the tables of docs/metrics.md.
func documented(t *testing.T) map[string]string {
	t.Helper()
	text, err := os.ReadFile(filepath.Join(docblock.Root(t), "docs", "metrics.md"))
	if err != nil {
		t.Fatal(err)
	}
	listed := map[string]string{}
	for _, row := range regexp.MustCompile("(?m)^\\| `(waybill_[a-z_]+)` \\| (counter|gauge|histogram) \\|").FindAllStringSubmatch(string(text), -1) {
		listed[row[1]] = row[2]
	}
	if len(listed) < 50 {
		t.Fatalf("docs/metrics.md has only %d metrics", len(listed))
	}
	return listed
}

// samples are the values of a page of metrics, by name and labels. A histogram counts as its number of measurements.
type samples map[string]map[string]float64

// sum adds up the series that have some labels.
func (s samples) sum(name, labels string) float64 {
	total := 0.0
	for series, value := range s[name] {
		if strings.Contains(series, labels) {
			total += value
		}
	}
	return total
}

func scrape(t *testing.T, w *world) samples {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, w.url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := w.customers.client.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = res.Body.Close() }()
	all := samples{}
	pattern := regexp.MustCompile(`^(waybill_[a-z_]+?)(_count)?(?:\{(.*)\})? (\S+)$`)
	lines := bufio.NewScanner(res.Body)
	for lines.Scan() {
		m := pattern.FindStringSubmatch(lines.Text())
		if m == nil {
			continue
		}
		value, err := strconv.ParseFloat(m[4], 64)
		if err != nil {
			t.Fatalf("%s: %v", lines.Text(), err)
		}
		if all[m[1]] == nil {
			all[m[1]] = map[string]float64{}
		}
		all[m[1]][m[3]] = value
	}
	if err := lines.Err(); err != nil {
		t.Fatal(err)
	}
	return all
}
