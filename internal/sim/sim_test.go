package sim

import (
	"bufio"
	"encoding/json"
	"flag"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"runtime/debug"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

var (
	forFlag    = flag.Duration("sim.for", 0, "run worlds on all cores for this time")
	seedFlag   = flag.Uint64("sim.seed", 0, "run the world of one seed; with -sim.for, the first seed (a new one)")
	replayFlag = flag.String("sim.replay", "", "run one shrunk case, as a failure printed it")
	tallyFlag  = flag.String("sim.tally", "", "add the tally to this file")
	shrinkFlag = flag.Duration("sim.shrink", time.Minute, "time for shrinking a failure")
	ignoreFlag = flag.String("sim.ignore", "", "rules that do not count, separated by commas: to look behind a known failure")
	verbose    = flag.Bool("sim.v", false, "print every seed with its time and result")
)

// defaultWorlds is how many seeds run without flags. They are always the same,
// so that a change is judged by itself; make sim draws others.
const defaultWorlds = 30

// raceWorlds is how many of them run with the race detector. make sim runs
// worlds without it.
const raceWorlds = 8

// gcPercent is the garbage collector's setting for long runs: worlds are small
// and short, and the default spends a third of the time on collections.
const gcPercent = 800

// replays is how often a replayed case runs until it fails.
const replays = 10

// TestSim runs the worlds that the flags name, or a few.
func TestSim(t *testing.T) {
	sum := new(tally)
	defer func() {
		t.Log(sum.totals())
		if *tallyFlag != "" {
			if err := sum.totals().addTo(*tallyFlag); err != nil {
				t.Error(err)
			}
		}
	}()
	switch {
	case *replayFlag != "":
		replay(t, *replayFlag, sum)
	case *seedFlag != 0 && *forFlag == 0:
		c := cut{seed: *seedFlag}
		if p := newPlan(c); *verbose {
			fmt.Println(p.describe())
		}
		report(t, c, runBubble(t, c, sum))
	case *forFlag != 0:
		defer debug.SetGCPercent(debug.SetGCPercent(gcPercent))
		first := *seedFlag
		if first == 0 {
			first = uint64(time.Now().Unix()) << 20 // seeds that no run has had
		}
		t.Log("the first seed is ", first)
		until := time.Now().Add(*forFlag)
		runWhile(t, first, func(uint64) bool { return time.Now().Before(until) }, sum)
	default:
		worlds := uint64(defaultWorlds)
		if raceDetector {
			worlds = raceWorlds
		}
		runWhile(t, 1, func(seed uint64) bool { return seed <= worlds }, sum)
	}
}

// TestCases runs the kept cases: each was a bug.
func TestCases(t *testing.T) {
	if *forFlag != 0 || *seedFlag != 0 || *replayFlag != "" {
		t.Skip("the flags name other worlds")
	}
	if raceDetector {
		t.Skip("the same cases run without the race detector")
	}
	f, err := os.Open("testdata/cases.txt")
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close() //nolint:errcheck // only read
	for lines := bufio.NewScanner(f); lines.Scan(); {
		line := lines.Text()
		if line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		c, err := parseCut(line)
		if err != nil {
			t.Fatal(err)
		}
		report(t, c, runBubble(t, c, new(tally)))
	}
}

// TestCutText: a replay line is read as it was written.
func TestCutText(t *testing.T) {
	want := cut{seed: 7, nodes: 2, events: 30, off: []fault{answerLost, sinkPanic}}
	got, err := parseCut(want.String())
	if err != nil || got.String() != want.String() {
		t.Errorf("got %v, %v, want %v", got, err, want)
	}
	for _, text := range []string{"seed=x", "off=nothing", "what=1"} {
		if _, err := parseCut(text); err == nil {
			t.Errorf("%s: no error", text)
		}
	}
}

// TestTallyAddsUp: runs add up in a file whose folder need not exist.
func TestTallyAddsUp(t *testing.T) {
	name := filepath.Join(t.TempDir(), "new", "tally.json")
	for range 2 {
		if err := (totals{Events: 21, Faults: map[string]int64{"outage": 2}}).addTo(name); err != nil {
			t.Fatal(err)
		}
	}
	data, err := os.ReadFile(name)
	if err != nil {
		t.Fatal(err)
	}
	var got totals
	if err := json.Unmarshal(data, &got); err != nil || got.Events != 42 || got.Faults["outage"] != 4 {
		t.Errorf("got %+v, %v", got, err)
	}
}

// runBubble runs a cut in a bubble of its own.
func runBubble(t *testing.T, c cut, sum *tally) (f *failure) {
	defer func() {
		if v := recover(); v != nil {
			f = &failure{rule: "panic", text: fmt.Sprint(v)}
		}
	}()
	ignored := make(map[string]bool)
	for rule := range strings.SplitSeq(*ignoreFlag, ",") {
		ignored[rule] = true
	}
	synctest.Test(t, func(*testing.T) { f = run(c, sum, ignored) })
	return f
}

// replay runs a case until it fails, a few times.
func replay(t *testing.T, text string, sum *tally) {
	c, err := parseCut(text)
	if err != nil {
		t.Fatal(err)
	}
	for range replays {
		if f := runBubble(t, c, sum); f != nil {
			report(t, c, f)
			return
		}
	}
}

// runWhile runs worlds on all cores while more are wanted and none fails.
func runWhile(t *testing.T, first uint64, more func(seed uint64) bool, sum *tally) {
	var next atomic.Uint64
	next.Store(first)
	var once sync.Once
	var failed atomic.Bool
	var all sync.WaitGroup
	for range runtime.GOMAXPROCS(0) {
		all.Go(func() {
			for !failed.Load() {
				c := cut{seed: next.Add(1) - 1}
				if !more(c.seed) {
					return
				}
				began := time.Now()
				f := runBubble(t, c, sum)
				if *verbose {
					fmt.Printf("seed %d took %v: %v\n", c.seed, time.Since(began).Round(time.Millisecond), f)
				}
				if f != nil {
					failed.Store(true)
					once.Do(func() { shrinkAndReport(t, c, f) })
				}
			}
		})
	}
	all.Wait()
}

// shrinkAndReport prints a failure and the smallest case that shows it.
func shrinkAndReport(t *testing.T, c cut, f *failure) {
	t.Helper()
	fmt.Printf("seed %d fails: %v\n", c.seed, f) // now: shrinking takes a while
	until := time.Now().Add(*shrinkFlag)
	c, f = shrink(c, f, func(c cut) *failure { return runBubble(t, c, new(tally)) }, func() bool { return time.Now().Before(until) })
	report(t, c, f)
}

// report prints a failure.
func report(t *testing.T, c cut, f *failure) {
	t.Helper()
	if f == nil {
		return
	}
	p := newPlan(c)
	t.Errorf("%v\n-sim.replay=%v\n%s\n%s", f, c, p.describe(), strings.Join(f.lines, "\n"))
}
