package drivertest

import (
	"context"
	"fmt"
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

// Run runs all suites against a store with the roles Outbox, Relay, Inbox,
// Keys, Jobs and OutboxAdmin. A store without one of the roles Finisher,
// SinkGuard, HistoryAudit, Backlogs, Restorer, Audit and Rollups does not
// support the behaviors that need it.
//
// Subtests are named after the behavior and the check. Run logs the report and
// returns it. With -short the large transactions are smaller.
func Run[T any](t *testing.T, h Harness[T]) Report {
	t.Helper()
	return runSuite(t, h, wholeSuite)
}

// RunOutbox runs the suite of the role Outbox. It needs no other role: without
// Relay, it reads the written events with Instance.Pending, and opens the store
// anew for every check.
//
// RunOutbox does not claim that the events can be delivered: checks that read
// with a cursor, settle or replay events are in [RunRelay] and [RunAdmin], also
// those of a dedup key after the delivery of its event.
func RunOutbox[T any](t *testing.T, h Harness[T]) Report {
	t.Helper()
	return runSuite(t, h, outboxSuite)
}

// RunRelay runs the suite of the role Relay. It also needs Outbox, to write
// events. Without OutboxAdmin, it finds delivered and dead events with
// Instance.Find. The roles Finisher and SinkGuard are optional.
func RunRelay[T any](t *testing.T, h Harness[T]) Report {
	t.Helper()
	return runSuite(t, h, relaySuite)
}

// RunInbox runs the suite of the role Inbox. It needs no other role; the roles
// Audit and InboxRecords are checked together.
func RunInbox[T any](t *testing.T, h Harness[T]) Report {
	t.Helper()
	return runSuite(t, h, inboxSuite)
}

// RunKeys runs the suite of the role Keys. It needs no other role; the roles
// Audit and KeyRecords are checked together.
func RunKeys[T any](t *testing.T, h Harness[T]) Report {
	t.Helper()
	return runSuite(t, h, keysSuite)
}

// RunJobs runs the suite of the role Jobs, which includes the methods of
// Outbox. It needs no other role; the optional role HistoryAudit is checked if
// the store also has Outbox, Relay, Inbox and OutboxAdmin.
func RunJobs[T any](t *testing.T, h Harness[T]) Report {
	t.Helper()
	return runSuite(t, h, jobsSuite)
}

// RunAdmin runs the suite of the role OutboxAdmin. It also needs Outbox and
// Relay, to write events and to settle them. The roles Restorer, Audit and
// Rollups are optional. The suites of Inbox, Keys and Jobs include
// InboxRecords, KeyRecords and JobRecords.
func RunAdmin[T any](t *testing.T, h Harness[T]) Report {
	t.Helper()
	return runSuite(t, h, adminSuite)
}

// RunBacklogs runs the suite of the role Backlogs, and that of
// Settlement.Divert. It also needs Outbox, Relay and OutboxAdmin, to write
// events, to divert them and to find them in the history. The role Audit is
// optional.
func RunBacklogs[T any](t *testing.T, h Harness[T]) Report {
	t.Helper()
	return runSuite(t, h, backlogSuite)
}

func runSuite[T any](t *testing.T, h Harness[T], id suiteID) Report {
	t.Helper()
	if h.Open == nil {
		t.Fatal("drivertest: Harness.Open is nil")
	}
	s := &suite[T]{id: id, harness: h, parent: t}
	first := h.Open(t)
	if err := first.check(id, h.Features); err != nil {
		t.Fatal(err)
	}
	env, err := newEnv(t.Context(), first, h.Features, patience)
	if err != nil {
		t.Fatal(err)
	}
	s.shared = env
	all := checksOf[T](id)
	var report Report
	for _, b := range behaviors() {
		var own []check[T]
		for _, c := range all {
			if c.row == b.name {
				own = append(own, c)
			}
		}
		if len(own) > 0 {
			report = append(report, s.behavior(b, own, first))
		}
	}
	t.Logf("%s on %s:\n%s", suites[id].name, h.Name, report)
	return report
}

// suite is one run of a suite.
type suite[T any] struct {
	id      suiteID
	harness Harness[T]
	// parent is the test of the whole suite. It owns the shared instance.
	parent *testing.T
	shared *env[T]
	count  int
}

// behavior runs the checks of one behavior.
func (s *suite[T]) behavior(b behavior, all []check[T], in Instance[T]) Entry {
	entry := Entry{Name: b.name, Title: b.title}
	done := 0
	s.parent.Run(b.name, func(t *testing.T) {
		for _, c := range all {
			s.count++
			tag := fmt.Sprintf("c%d", s.count)
			if reason := c.lacks(s.harness.Features, in.DB); reason != "" {
				entry.Reason = reason
				done++
				// Skip the check visibly instead of omitting it.
				t.Run(c.testName(), func(t *testing.T) { t.Skip(reason) })
				continue
			}
			if s.harness.SkipLarge && c.large {
				t.Run(c.testName(), func(t *testing.T) { t.Skip("large checks are skipped") })
				continue
			}
			ran := false
			passed := t.Run(c.testName(), func(t *testing.T) {
				ran = true
				s.run(t, c, tag)
			})
			if ran && passed { // neither filtered out nor failed
				done++
			}
		}
	})
	switch {
	case done < len(all):
		entry.Result = Incomplete
	case entry.Reason != "":
		entry.Result = Unsupported
	default:
		entry.Result = Passed
	}
	return entry
}

// run runs one check.
func (s *suite[T]) run(t *testing.T, c check[T], tag string) {
	ctx, cancel := context.WithTimeout(t.Context(), checkTimeout)
	defer cancel()
	b := s.shared
	if c.fresh || b == nil {
		owner := s.parent
		if c.fresh {
			owner = t
		}
		in := s.harness.Open(owner)
		if err := in.check(s.id, s.harness.Features); err != nil {
			t.Fatal(err)
		}
		var err error
		if b, err = newEnv(ctx, in, s.harness.Features, patience); err != nil {
			t.Fatal(err)
		}
	}
	b.short = testing.Short()
	if !c.fresh {
		s.shared = nil // until the check has passed and was cleaned up
	}
	defer func() {
		b.end()
		if c.fresh || t.Failed() || b.DB.Relay == nil {
			return
		}
		if err := b.clear(ctx); err != nil {
			t.Logf("the next check gets fresh tables: %v", err)
			return
		}
		s.shared = b
	}()
	b.begin(tag, c.suite)
	c.run(ctx, t, b)
}

// testName returns the name as that of a subtest: "commit_on_the_handle".
func (c check[T]) testName() string {
	return strings.NewReplacer(" ", "_", "(", "", ")", "", ",", "").Replace(c.name)
}
