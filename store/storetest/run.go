package storetest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

const (
	// patience is how long a condition may take to come true: long enough for a loaded machine.
	patience = 30 * time.Second
	// checkTimeout bounds one check, so that one that hangs fails with its own name.
	checkTimeout = 2 * time.Minute
)

// Run runs the suite against a store, as subtests of t that are named after the behaviours, prints the store's column of
// the matrix, and compares it with the golden one ([Matrix]) if that knows the store. With -short the large transactions
// of behaviour 13c are smaller.
func Run[T any](t *testing.T, h Harness[T]) {
	t.Helper()
	s := &suite[T]{harness: h, column: column{}, reasons: map[string]string{}}
	all := checks[T]()
	for i, c := range all {
		if reason := h.Features.lacks(c.needs); reason != "" {
			s.column[c.row], s.reasons[c.row] = no, reason
			t.Run(c.testName(), func(st *testing.T) { st.Skip(reason) }) // it is seen that it did not run
			continue
		}
		if h.SkipLarge && c.large {
			s.incomplete = append(s.incomplete, c.row)
			t.Run(c.testName(), func(st *testing.T) { st.Skip("large checks are left out") })
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
	// With -run some did not run at all, and a failure has been reported where it happened.
	if want, known := columns[h.Name]; known && s.column.complete() {
		for _, diff := range compare(h.Name, s.column, want) {
			t.Error(diff)
		}
	}
}

// suite is one run of the suite.
type suite[T any] struct {
	harness    Harness[T]
	shared     *bench[T]
	column     column
	reasons    map[string]string
	incomplete []string
}

// run runs one check; t is the test of the whole suite, and owns what checks share.
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
		b, err = newBench(ctx, s.harness.Open(owner), s.harness.Features, patience)
		if err != nil {
			st.Fatal(err)
		}
		b.short = testing.Short()
	}
	if !c.fresh {
		s.shared = nil // until the check has passed and its traces are gone
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

// testName returns "commit_on_the_handle", or "R1_fetch_in_order".
func (c check[T]) testName() string {
	name := c.row + " " + c.name
	if c.row[0] >= '0' && c.row[0] <= '9' {
		name = "behaviour " + name
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
		statsChecks[T](), browseChecks[T](), replayChecks[T](), replayKeyChecks[T](), mendChecks[T](),
		purgeChecks[T](), purgeWrittenChecks[T](), tidyChecks[T](), setLanesChecks[T](),
	)
}
