package demo

import (
	"bufio"
	"bytes"
	"context"
	"database/sql"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill/demo/shop"
	"github.com/waybillhq/waybill/internal/docblock"
)

// inTables are the metrics that queries of the tables can verify.
var inTables = []struct{ metric, labels, sql string }{
	// The tables lack rolled-back rows; the journal has the faults.
	{"waybill_written_total", "", `SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM faults WHERE kind = 'rollbacks')`},
	{"waybill_dispatch_success_total", `destination="jetstream"`, `SELECT count(*) FROM waybill_history`},
	{"waybill_dispatch_success_total", `destination="courier"`, `SELECT count(*) FROM waybill_history`},
	{"waybill_dispatch_dead_total", "", `SELECT (SELECT count(*) FROM waybill_dead) + (SELECT count(*) FROM waybill_backlog_dead)`},
	{"waybill_dead_replayed_total", "", `SELECT sum(replay) FROM waybill_history`},
	{"waybill_consume_success_total", `group="INVENTORY"`, `SELECT count(*) FROM waybill_inbox WHERE consumer_group = 'INVENTORY' AND status = 1`},
	{"waybill_consume_dead_total", `group="INVENTORY"`, `SELECT count(*) FROM waybill_inbox WHERE status = 3`},
	{"waybill_consume_success_total", `group="COURIER"`, `SELECT count(*) FROM parcels`},
	// Messages at the consumers, and the number of new ones.
	{"waybill_consume_replayed_total", "", `SELECT (SELECT total(n) FROM seen WHERE place IN ('inbox', 'courier') AND class = 'done') -
		(SELECT count(*) FROM waybill_inbox WHERE status = 1)`},
	{"waybill_received_total", "", `SELECT total(n) FROM seen WHERE place = 'source'`},
	{"waybill_received_total", `class="done",redelivered="false"`, `SELECT total(n) FROM seen WHERE place = 'source' AND class = 'done' AND NOT again`},
	{"waybill_received_total", `class="done",redelivered="true"`, `SELECT total(n) FROM seen WHERE place = 'source' AND class = 'done' AND again`},
	{"waybill_received_total", `class="retry"`, `SELECT total(n) FROM seen WHERE place = 'source' AND class = 'retry'`},
	{"waybill_received_total", `class="defer"`, `SELECT total(n) FROM seen WHERE place = 'source' AND class = 'defer'`},
	{"waybill_dispatch_failure_total", `class="retry"`, `SELECT total(n) FROM seen WHERE place IN ('sink', 'courier') AND class = 'retry'`},
	// Counters that only the parts know; the tables bound them (bounded).
	{"waybill_enqueue_hot_total", "", `SELECT total(n) FROM seen WHERE place = 'told' AND class = 'hot'`},
	{"waybill_enqueue_hot_dropped_total", "", `SELECT total(n) FROM seen WHERE place = 'told' AND class = 'dropped'`},
	{"waybill_enqueue_cold_total", "", `SELECT total(n) FROM seen WHERE place = 'told' AND class = 'cold'`},
	{"waybill_consume_failure_total", "", `SELECT total(n) FROM seen WHERE place = 'told' AND class = 'unconsumed'`},
	// Calls of the store by the relay.
	{"waybill_settled_total", "", `SELECT total(n) FROM seen WHERE place = 'settle' AND class = 'done'`},
	{"waybill_settle_failure_total", "", `SELECT total(n) FROM seen WHERE place = 'settle' AND class = 'failed'`},
	{"waybill_read_rows_total", "", `SELECT total(n) FROM seen WHERE place = 'read' AND class = 'done'`},
	{"waybill_read_failure_total", "", `SELECT total(n) FROM seen WHERE place = 'read' AND class = 'failed'`},
	{"waybill_receive_dead_total", "", `SELECT total(n) FROM seen WHERE place = 'source' AND class = 'permanent'`},
	// Missing rows: an order without an event, and a sale without a record.
	{"waybill_dead_discarded_total", "", `SELECT (SELECT count(*) FROM orders) - (SELECT count(*) FROM waybill_outbox) -
		(SELECT count(*) FROM waybill_delayed) - (SELECT count(*) FROM waybill_dead) - (SELECT count(*) FROM waybill_history)`},
	{"waybill_purged_total", "", `SELECT (SELECT count(*) FROM orders) + (SELECT count(*) FROM sales) + (SELECT count(*) FROM parcels) - (SELECT count(*) FROM waybill_outbox) -
		(SELECT count(*) FROM waybill_delayed) - (SELECT count(*) FROM waybill_dead) - (SELECT count(*) FROM waybill_history) - (SELECT count(*) FROM waybill_inbox)`},

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
	{"waybill_destination_backlog", "", `SELECT (SELECT count(*) FROM waybill_backlog) + (SELECT count(*) FROM waybill_backlog_delayed)`},
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

// bounded are the bounds from the tables for counters whose exact value only
// the parts know.
var bounded = []struct {
	metrics          []string
	labels, min, max string
	why              string
}{
	{
		metrics: []string{"waybill_enqueue_hot_total", "waybill_enqueue_cold_total"},
		min: `SELECT (SELECT total(n) FROM seen WHERE place = 'settle' AND class = 'done') -
			(SELECT total(n) FROM seen WHERE place = 'settle' AND class = 'suspect')`,
		why: "a settled event had been enqueued, and a suspect is settled twice; an event that is put back, or read again after a restart, is enqueued again",
	},
	{
		metrics: []string{"waybill_enqueue_hot_total", "waybill_enqueue_hot_dropped_total"}, max: `SELECT count(*) FROM orders`,
		why: "a commit announces its event once, and while a relay is replaced no relay receives it",
	},
	{
		metrics: []string{"waybill_enqueue_cold_total"}, max: `SELECT total(n) FROM seen WHERE place = 'read' AND class = 'done'`,
		why: "the event was read; rows of events in memory are read, too",
	},
	{
		metrics: []string{"waybill_consume_failure_total"}, max: `SELECT total(n) FROM seen WHERE place IN ('inbox', 'courier') AND class NOT IN ('done', 'permanent')`,
		why: "a message that a crashed consumer had not started is returned as not done, and counts as no attempt",
	},
}

// TestOnceMetrics checks that after the fixed scenario every metric of
// docs/metrics.md is on /metrics, and every counter equals its query.
func TestOnceMetrics(t *testing.T) {
	t.Parallel()
	var out bytes.Buffer
	err := Run(t.Context(), shop.Config{Out: &out, Once: true, Inspect: func(_ context.Context, url string, db *sql.DB, count func() error) error {
		page{t, url, db, count}.check()
		return nil
	}})
	if err != nil {
		t.Fatalf("%v\n%s", err, out.String())
	}
}

// page is the shop's page of metrics, and its tables.
type page struct {
	*testing.T
	url   string
	db    *sql.DB
	count func() error
}

// check waits until the page agrees with the tables.
func (t page) check() {
	listed, counted := documented(t.T), map[string]bool{}
	// Only an outbox that change data capture reads has these; the demo has a
	// relay. TestServeReportsNoBacklogOfACapturedOutbox scrapes them.
	delete(listed, "waybill_captured")
	delete(listed, "waybill_captured_oldest_seconds")
	// Both destinations of the demo receive every event.
	delete(listed, "waybill_unrouted_total")
	for _, c := range inTables {
		counted[c.metric] = true
	}
	for name, kind := range listed {
		if kind == "counter" && !counted[name] {
			t.Errorf("%s is a counter without a query in inTables", name)
		}
	}
	// A relay counts after the commit is visible and reports its lag with its
	// heartbeat, so the last values may arrive late.
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for deadline := time.Now().Add(20 * time.Second); ; <-tick.C {
		wrong := append(t.missing(listed), t.differences()...)
		if len(wrong) == 0 {
			return
		}
		if time.Now().After(deadline) {
			t.Fatal(strings.Join(wrong, "\n"))
		}
		t.Logf("not yet: %s", strings.Join(wrong, "\n"))
	}
}

// missing returns the documented metrics that are not on /metrics.
func (t page) missing(listed map[string]string) (wrong []string) {
	t.Helper()
	shown := t.scrape()
	for name := range listed {
		if _, ok := shown[name]; !ok {
			wrong = append(wrong, name+" is in docs/metrics.md and not on /metrics")
		}
	}
	return wrong
}

// differences returns the metrics that differ from the tables.
func (t page) differences() (wrong []string) {
	t.Helper()
	if err := t.count(); err != nil {
		t.Fatal(err)
	}
	shown := t.scrape()
	query := func(sql string) (n float64) {
		if err := t.db.QueryRowContext(t.Context(), sql).Scan(&n); err != nil {
			t.Fatalf("%s: %v", sql, err)
		}
		return n
	}
	for _, c := range inTables {
		if got, want := shown.sum(c.metric, c.labels), query(c.sql); got != want {
			wrong = append(wrong, fmt.Sprintf("%s{%s} is %g, and %s is %g", c.metric, c.labels, got, c.sql, want))
		}
	}
	for _, c := range bounded {
		sum := 0.0
		for _, name := range c.metrics {
			sum += shown.sum(name, c.labels)
		}
		if c.min != "" && sum < query(c.min) || c.max != "" && sum > query(c.max) {
			wrong = append(wrong, fmt.Sprintf("%v: %g, and the tables say at least (%s), at most (%s): %s", c.metrics, sum, c.min, c.max, c.why))
		}
	}
	return wrong
}

// documented returns the names and types in the tables of docs/metrics.md.
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

// samples are the values of a page of metrics, by name and labels. A histogram
// counts as its number of measurements.
type samples map[string]map[string]float64

// sum adds the series with the given labels.
func (s samples) sum(name, labels string) float64 {
	total := 0.0
	for series, value := range s[name] {
		if strings.Contains(series, labels) {
			total += value
		}
	}
	return total
}

func (t page) scrape() samples {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, t.url+"/metrics", nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		_ = res.Body.Close()
		http.DefaultClient.CloseIdleConnections() // the shop waits for none of its clients
	}()
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
