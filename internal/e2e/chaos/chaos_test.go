//go:build linux || darwin

package chaos

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/internal/e2e/process/journal"
	"github.com/waybillhq/waybill/internal/e2e/process/server"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/store/pgstore"
)

var (
	chaosTime = flag.Duration("chaos.time", time.Minute, "how long TestChaos does harm; unless it is set, 15s with -short and 2m in full")
	chaosSeed = flag.Uint64("chaos.seed", 0, "the seed of TestChaos's schedule; 0: a new one")
	chaosDir  = flag.String("chaos.dir", "", "where TestChaos keeps its journal and its logs; a temporary folder if it is not set")
)

// TestChaos: under any faults of processes, destinations and the server, no
// event is lost, no rolled back event is delivered, the order holds, no stale
// owner settles, and no more events are delivered twice than the faults
// explain.
func TestChaos(t *testing.T) {
	total, seed, folder := *chaosTime, *chaosSeed, *chaosDir
	switch {
	case isSet("chaos.time"):
	case testing.Short():
		total = 15 * time.Second
	case testserver.Full():
		total = 2 * time.Minute
	}
	if seed == 0 {
		seed = rand.Uint64()
	}
	if folder == "" {
		folder = t.TempDir()
	}
	t.Logf("-chaos.seed=%d -chaos.time=%v", seed, total)

	pg := server.Start(t)
	if err := noteCommits(t.Context(), pg); err != nil {
		t.Fatal(err)
	}
	pool, err := connect(t.Context(), pg.DSN, "operator")
	if err != nil {
		t.Fatal(err)
	}
	defer pool.Close()
	db, err := pgstore.New(pool, pgstore.Config{Lanes: lanes})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := db.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := pool.Exec(t.Context(), serviceTables); err != nil {
		t.Fatal(err)
	}
	ops, err := admin.NewOutbox(db, admin.Config{})
	if err != nil {
		t.Fatal(err)
	}
	d := &workload{
		t: t, seed: seed, server: pg, ops: ops, tally: make(map[string]int),
		role: role{Source: pg.DSN, Folder: folder, Seed: seed},
	}
	t.Cleanup(func() {
		d.kill()
		if t.Failed() {
			tell(t, folder)
			// repeated at the end: the logs are long
			t.Logf("-chaos.seed=%d: %s", seed, strings.Join(d.wrong, "\n"))
		}
	})
	d.run(t.Context(), schedule(seed, total), total)
	d.heal(t.Context())

	e, err := gather(t.Context(), pool, folder)
	if err != nil {
		t.Fatal(err)
	}
	e.limits = limits{maxAttempts: maxAttempts, window: window, lanes: lanes, flush: time.Second, late: 1800 * time.Millisecond}
	e.crashes = d.crashes
	e.faults = faults{
		kills: d.tally["kill relay"], suicides: d.tally["relay killed itself"], longStops: d.tally["stop relay for long"],
		shortStops: d.tally["stop relay"], terms: d.tally["terminate relay"], crashes: len(d.crashes),
	}
	sum, bad := check(e)
	for i, v := range sorted(bad) {
		if i == 40 {
			d.errorf("and so on: %v", byRule(bad))
			break
		}
		d.errorf("%v", v)
	}
	for _, line := range refused(folder) {
		d.errorf("the server refused a statement: %s", line)
	}
	t.Log(d.report(e, sum))
	if sum.events < int(total/time.Second) {
		d.errorf("only %d events were written: this shows nothing", sum.events)
	}
}

// noteCommits makes the server record the commit times of transactions.
func noteCommits(ctx context.Context, pg *server.Postgres) error {
	conn, err := pgx.Connect(ctx, pg.DSN)
	if err != nil {
		return err
	}
	_, err = conn.Exec(ctx, `ALTER SYSTEM SET track_commit_timestamp = on`)
	return errors.Join(err, conn.Close(ctx), pg.Crash(ctx), pg.Restart(ctx))
}

func isSet(name string) bool {
	found := false
	flag.Visit(func(f *flag.Flag) { found = found || f.Name == name })
	return found
}

// report describes a run.
func (d *workload) report(e evidence, s summary) string {
	var b strings.Builder
	fmt.Fprintf(&b, "seed %d, %v\n", d.seed, time.Since(d.begun).Round(time.Second))
	for _, what := range slices.Sorted(maps.Keys(d.tally)) {
		fmt.Fprintf(&b, "  %s: %d\n", what, d.tally[what])
	}
	ends := make(map[string]int)
	for _, r := range e.journal {
		ends[r.What]++
	}
	fmt.Fprintf(&b, "  results of sinks:")
	for _, what := range []string{journal.OK, journal.Failed, journal.Refused, journal.Down, journal.Later, journal.Ended, journal.Kill} {
		fmt.Fprintf(&b, " %d %s", ends[what], what)
	}
	outcomes := make(map[string]int)
	for _, c := range e.claims {
		outcomes[c.Outcome]++
	}
	fmt.Fprintf(&b, "\n  transactions: %d committed, %d rolled back, %d uncertain", outcomes[committed], outcomes[rolledBack], outcomes[uncertain])
	fmt.Fprintf(&b, "\n  lanes acquired %d times, %d dead letters, %d replayed", len(e.lanes), s.died, d.replayed)
	fmt.Fprintf(&b, "\n  %d passed one whose transaction was open for long", s.late)
	fmt.Fprintf(&b, "\n  %d events, %d deliveries, %d successful, %d duplicates, at most %d are allowed", s.events, s.deliveries, s.successes, s.duplicates, s.bound)
	return b.String()
}

// sqlState is in the text of every error that the server has returned.
var sqlState = regexp.MustCompile(`\(SQLSTATE (\w{2})\w{3}\)`)

// refused returns the lines of the relays' logs with an error that an
// unavailable server does not explain: a wrong statement fails at every retry,
// and nothing is settled meanwhile.
func refused(folder string) (lines []string) {
	// the pattern is well formed
	logs, _ := filepath.Glob(filepath.Join(folder, "*.log"))
	for _, path := range logs {
		text, _ := os.ReadFile(path) // an unreadable log shows nothing
		for line := range strings.Lines(string(text)) {
			switch m := sqlState.FindStringSubmatch(line); {
			case m == nil:
			case m[1] == "57", m[1] == "08":
				// an operator intervenes; the connection
			default:
				lines = append(lines, filepath.Base(path)+": "+strings.TrimSpace(line))
			}
		}
	}
	return lines
}

// tell logs the ends of the relays' logs.
func tell(t *testing.T, folder string) {
	// the pattern is well formed
	logs, _ := filepath.Glob(filepath.Join(folder, "*.log"))
	for _, path := range logs {
		text, _ := os.ReadFile(path) // an unreadable log is not shown
		lines := strings.Split(string(text), "\n")
		t.Logf("%s:\n%s", filepath.Base(path), strings.Join(lines[max(0, len(lines)-30):], "\n"))
	}
}
