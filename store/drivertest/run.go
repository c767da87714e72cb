package drivertest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// patience is the maximum time for a condition to become true on a loaded
	// machine.
	patience = 30 * time.Second
	// checkTimeout bounds one check, so that a hanging check fails with its own
	// name.
	checkTimeout = 2 * time.Minute
)

// Run runs the suite against a store, as subtests of t that are named after the
// rows of the matrix, logs the store's column, and compares it with the golden
// one ([Matrix]) if the matrix contains the store. With -short the large
// transactions are smaller.
func Run[T any](t *testing.T, h Harness[T]) {
	t.Helper()
	s := &suite[T]{harness: h, column: column{}, reasons: map[string]string{}}
	all := checks[T]()
	for i, c := range all {
		if reason := h.Features.lacks(c.needs); reason != "" {
			s.column[c.row], s.reasons[c.row] = no, reason
			// Skip the check visibly instead of omitting it.
			t.Run(c.testName(), func(st *testing.T) { st.Skip(reason) })
			continue
		}
		if h.SkipLarge && c.large {
			s.incomplete = append(s.incomplete, c.row)
			t.Run(c.testName(), func(st *testing.T) { st.Skip("large checks are skipped") })
			continue
		}
		ran := false
		passed := t.Run(c.testName(), func(st *testing.T) {
			ran = true
			s.run(t, st, c, fmt.Sprintf("c%d", i))
		})
		switch {
		case !ran || !passed: // filtered out, or failed
			s.column[c.row] = ""
			s.incomplete = append(s.incomplete, c.row)
		case s.column[c.row] == "" && !slices.Contains(s.incomplete, c.row):
			s.column[c.row] = yes
		}
	}
	t.Log(s.column.text(h.Name, s.reasons))
	columns, err := parseMatrix(golden)
	if err != nil {
		t.Fatal(err)
	}
	// With -run some checks did not run, and failures were reported where they
	// happened.
	if want, known := columns[h.Name]; known && s.column.complete() {
		for _, diff := range compare(h.Name, s.column, want) {
			t.Error(diff)
		}
	}
}

// suite is one run of the suite.
type suite[T any] struct {
	harness    Harness[T]
	shared     *env[T]
	column     column
	reasons    map[string]string
	incomplete []string
}

// run runs one check; t is the test of the whole suite, and owns the shared
// instance.
func (s *suite[T]) run(t, st *testing.T, c check[T], tag string) {
	ctx, cancel := context.WithTimeout(st.Context(), checkTimeout)
	defer cancel()
	b := s.shared
	if c.fresh || b == nil {
		owner := t
		if c.fresh {
			owner = st
		}
		var err error
		b, err = newEnv(ctx, s.harness.Open(owner), s.harness.Features, patience)
		if err != nil {
			st.Fatal(err)
		}
		b.short = testing.Short()
	}
	if !c.fresh {
		s.shared = nil // until the check has passed and was cleaned up
	}
	defer func() {
		b.end()
		if c.fresh || st.Failed() {
			return
		}
		if err := b.clear(ctx); err != nil {
			st.Logf("the next check gets fresh tables: %v", err)
			return
		}
		s.shared = b
	}()
	b.begin(tag)
	c.run(ctx, st, b)
}

// testName returns "behavior_13b_commit_on_the_handle" or "R1_fetch_in_order".
func (c check[T]) testName() string {
	name := c.row + " " + c.name
	if c.row[0] >= '0' && c.row[0] <= '9' {
		name = "behavior " + name
	}
	return strings.NewReplacer(" ", "_", "(", "", ")", "", ",", "").Replace(name)
}

// checks returns the whole suite.
func checks[T any]() []check[T] {
	return slices.Concat(
		commitChecks[T](), noTxChecks[T](), hookChecks[T](), limitChecks[T](),
		dedupChecks[T](), dedupRaceChecks[T](), plainChecks[T](),
		savepointChecks[T](), trackChecks[T](), ownedChecks[T](), largeChecks[T](), lateChecks[T](),
		contextChecks[T](), refusedChecks[T](), foreignChecks[T](), hubChecks[T](),
		fieldChecks[T](), headerChecks[T](), delayChecks[T](), committedChecks[T](), modelChecks[T](),
		readChecks[T](), dueChecks[T](), seekChecks[T](), writersChecks[T](), inboxChecks[T](), keyChecks[T](), jobChecks[T](),
		laneChecks[T](), takeOverChecks[T](),
		doneChecks[T](), retryChecks[T](), fenceChecks[T](), raceChecks[T](), finishChecks[T](), finishFenceChecks[T](),
		statsChecks[T](), inspectChecks[T](), replayChecks[T](), replayKeyChecks[T](), deadLetterChecks[T](),
		purgeChecks[T](), purgeWrittenChecks[T](), tidyChecks[T](), setLanesChecks[T](),
	)
}
