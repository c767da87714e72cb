//go:build linux || darwin

package brokers_test

import (
	"context"
	"flag"
	"fmt"
	"math/rand/v2"
	"os"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/testserver"
)

// patience is the maximum time without progress while a condition is awaited:
// long enough for a loaded machine.
const patience = 90 * time.Second

func TestMain(m *testing.M) {
	if text := os.Getenv(natsVariable); text != "" {
		if err := serveNATS(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	if text := os.Getenv(mortalVariable); text != "" {
		if err := runMortal(text); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	long := flag.Bool("long", false, "100,000 events instead of 10,000, and more faults")
	seed := flag.Uint64("seed", 0, "repeats a schedule; 0: a new one")
	flag.Parse()
	settings = plan{events: 10_000, aggregates: 200, faults: 4, restarts: 2, seed: *seed}
	if *long {
		settings.events, settings.faults, settings.restarts = 100_000, 16, 8
	}
	os.Exit(m.Run())
}

// plan is the size of a run.
type plan struct {
	events, aggregates int
	faults             int // of the server
	restarts           int // of relay and source each
	seed               uint64
}

var settings plan //nolint:gochecknoglobals // what the flags say

// begin runs the test only if all brokers are available: make test has only the
// quick ones, and leaves these tests to make test-brokers. It returns the plan
// and its random source.
func begin(t *testing.T) (plan, *rand.Rand) {
	t.Helper()
	testserver.Kafka(t)
	t.Parallel()
	p := settings
	if p.seed == 0 {
		p.seed = rand.Uint64()
	}
	t.Logf("%d events, -seed %d", p.events, p.seed)
	return p, rand.New(rand.NewPCG(p.seed, 1))
}

// between draws a duration.
func between(rng *rand.Rand, shortest, longest time.Duration) time.Duration {
	return shortest + time.Duration(rng.Int64N(int64(longest-shortest)+1))
}

// await waits for a condition.
func await(t *testing.T, what string, ok func() bool) {
	t.Helper()
	awaitAll(t, what, func() (int64, bool) { return 0, ok() })
}

// awaitAll waits for a condition as long as there is progress.
func awaitAll(t *testing.T, what string, progress func() (n int64, done bool)) {
	t.Helper()
	deadline, last := time.Now().Add(patience), int64(0)
	for {
		n, done := progress()
		switch {
		case done:
			return
		case n != last:
			deadline, last = time.Now().Add(patience), n
		case time.Now().After(deadline):
			t.Fatalf("no %s: nothing has happened for %v", what, patience)
		}
		must(t, pause(t.Context(), 5*time.Millisecond))
	}
}

// pause waits, which is part of some faults.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}
