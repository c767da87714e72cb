//go:build unix

package clusters_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/soak"
)

// The environment of make test-clusters.
const (
	// envFailures is the number of failures of each test.
	envFailures = "WAYBILL_TEST_FAILURES"
	// envReports names a folder for the reports. Without it there are none.
	envReports = "WAYBILL_TEST_REPORTS"
)

func TestMain(m *testing.M) {
	if soak.IsChild(os.Environ()) {
		if err := soak.Child(context.Background(), os.Stdin, os.Stdout, os.Stderr); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// failures returns the number of failures to make. Without it the test is
// skipped: a failover takes seconds.
func failures(t *testing.T) int {
	t.Helper()
	n, err := strconv.Atoi(os.Getenv(envFailures))
	if err != nil || n < 1 {
		t.Skipf("%s has no number of failures: make test-clusters runs this", envFailures)
	}
	return n
}

// cluster is a cluster of servers of which some serve a soak.
type cluster interface {
	// fail makes one failure, and returns when the cluster is whole again. It
	// calls served when the clients can work again.
	fail(ctx context.Context, n int, served func(ctx context.Context) error) error
	// served returns when a client that begins now has done a piece of work.
	served(ctx context.Context) error
	// progress returns a number that grows while the soak's events arrive.
	progress(ctx context.Context) (int, error)
}

// configurer is a cluster that needs more settings than addresses.
type configurer interface {
	configure(cfg *soak.Config)
}

// run soaks on a store and a sink while the cluster fails n times, and requires
// that no promises were broken but the allowed ones.
func run(t *testing.T, c cluster, store, sink string, allowed ...soak.Promise) *soak.Report {
	t.Helper()
	n := failures(t)
	program, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	var out bytes.Buffer
	cfg := soak.Config{
		// The failures are those of the cluster, and now and then of a process.
		For: 24 * time.Hour, Rate: 50, FaultEvery: 10 * time.Second, Lease: 3 * time.Second,
		Out: &out, Command: []string{program}, Report: "none",
	}
	cfg.Store.URL, cfg.Sink.URL = settings.NewSecret(store), settings.NewSecret(sink)
	if more, ok := c.(configurer); ok {
		more.configure(&cfg)
	}
	if dir := os.Getenv(envReports); dir != "" {
		cfg.Report = filepath.Join(dir, t.Name())
	}
	ctx, stop := context.WithCancel(t.Context())
	var without []time.Duration
	var failed error
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer stop()
		without, failed = failTimes(ctx, t, c, n)
	}()
	report, err := soak.Run(ctx, cfg)
	stop()
	<-done
	if failed != nil {
		t.Fatalf("after %d failures: %v\nthe soak: %v\n%s", len(without), failed, err, &out)
	}
	var broken *soak.BrokenError
	if err != nil && !errors.As(err, &broken) {
		t.Fatalf("%v\n%s", err, &out)
	}
	judge(t, report, without, allowed)
	return report
}

// failTimes makes n failures, each after the soak has made progress since the
// failure before. It returns how long each took until a client could work.
func failTimes(ctx context.Context, t *testing.T, c cluster, n int) ([]time.Duration, error) {
	var without []time.Duration
	for i := range n {
		if err := arrive(ctx, c); err != nil {
			return without, fmt.Errorf("before failure %d: %w", i+1, err)
		}
		begun := time.Now()
		err := c.fail(ctx, i, func(ctx context.Context) error {
			err := c.served(ctx)
			without = append(without, time.Since(begun))
			return err
		})
		if err != nil {
			return without, fmt.Errorf("failure %d: %w", i+1, err)
		}
		t.Logf("failure %d: %v without service", i+1, without[len(without)-1].Round(time.Millisecond))
	}
	return without, arrive(ctx, c)
}

// arrive waits until a number of events have arrived.
func arrive(ctx context.Context, c cluster) error {
	ctx, cancel := context.WithTimeoutCause(ctx, 3*time.Minute, errors.New("no events arrive"))
	defer cancel()
	first := -1
	return until(ctx, func(ctx context.Context) bool {
		n, err := c.progress(ctx)
		if err != nil {
			return false
		}
		if first < 0 {
			first = n
		}
		return n >= first+100
	})
}

// until asks again and again, with a limit for each time.
func until(ctx context.Context, ok func(ctx context.Context) bool) error {
	tick := time.NewTicker(50 * time.Millisecond)
	defer tick.Stop()
	for {
		limited, cancel := context.WithTimeout(ctx, 5*time.Second)
		done := ok(limited)
		cancel()
		if done {
			return nil
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
}

// judge compares the verdict with what the cluster may take away, and logs what
// docs/clusters.md shows.
func judge(t *testing.T, r *soak.Report, without []time.Duration, allowed []soak.Promise) {
	t.Helper()
	for _, p := range r.Promises {
		if p.Broken > 0 && !slices.Contains(allowed, p.Promise) {
			t.Errorf("%s is broken %d times of %d", p.Promise, p.Broken, p.Checked)
		}
	}
	if t.Failed() {
		for _, f := range r.Findings {
			t.Logf("%s: %s", f.Promise, f.Text)
		}
	}
	slices.Sort(without)
	row := map[string]any{
		"failures": len(without), "events": r.Counts.Events, "applied": r.Counts.Applied, "again": r.Duplicates,
		"without_p50_ms": without[len(without)/2].Milliseconds(), "without_max_ms": without[len(without)-1].Milliseconds(),
		"take_over_ms": r.TakeOver, "seed": r.Seed, "store": r.Store.Version, "broker": r.Broker.Version,
	}
	for _, p := range r.Promises {
		if p.Broken > 0 {
			row["broken "+string(p.Promise)] = p.Broken
		}
	}
	text, err := json.Marshal(row)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%s", text)
}
