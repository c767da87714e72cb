package drivertest

import (
	"errors"
	"fmt"
	"slices"
	"strings"

	"github.com/waybillhq/waybill/store/driver"
)

// suiteID is the suite of a check.
type suiteID int

const (
	wholeSuite suiteID = iota
	outboxSuite
	relaySuite
	inboxSuite
	keysSuite
	jobsSuite
	adminSuite
	backlogSuite
)

// suites are the names of the suites, and the roles without which they do not
// run.
var suites = map[suiteID]struct {
	name  string
	roles []string
}{
	wholeSuite:  {"Run", []string{"Outbox", "Relay", "Inbox", "Keys", "Jobs", "OutboxAdmin"}},
	outboxSuite: {"RunOutbox", []string{"Outbox"}},
	relaySuite:  {"RunRelay", []string{"Outbox", "Relay"}},
	inboxSuite:  {"RunInbox", []string{"Inbox"}},
	keysSuite:   {"RunKeys", []string{"Keys"}},
	jobsSuite:   {"RunJobs", []string{"Jobs"}},
	adminSuite:  {"RunAdmin", []string{"Outbox", "Relay", "OutboxAdmin"}},

	backlogSuite: {"RunBacklogs", []string{"Outbox", "Relay", "OutboxAdmin", "Backlogs"}},
}

// check returns one error that names everything that the suite needs and the
// instance lacks.
func (in Instance[T]) check(id suiteID, f Features) error {
	suite := suites[id]
	var lacks []string
	has := in.DB.Names()
	for _, role := range suite.roles {
		if !slices.Contains(has, role) {
			lacks = append(lacks, "the role "+role)
		}
	}
	want := func(function string, missing bool, reason string) {
		if missing {
			lacks = append(lacks, fmt.Sprintf("Instance.%s, %s", function, reason))
		}
	}
	if in.DB.Relay == nil {
		want("Pending", id == outboxSuite && in.Pending == nil, "with which the suite reads events if the store has no role Relay")
	}
	if in.DB.OutboxAdmin == nil {
		want("Find", id == relaySuite && in.Find == nil, "with which the suite finds events if the store has no role OutboxAdmin")
	}
	want("Count", in.Insert != nil && in.Count == nil, "because Instance.Insert is set")
	want("Insert", in.Insert == nil && in.Count != nil, "because Instance.Count is set")
	want("InsertPlain", f.PlainSQL && in.InsertPlain == nil, "because Features.PlainSQL is on")
	want("Savepoint", f.SavepointAPI && in.Savepoint == nil, "because Features.SavepointAPI is on")
	want("Exec", f.SavepointSQL && in.Exec == nil, "because Features.SavepointSQL is on")
	want("Second", f.SecondStore && in.Second == nil, "because Features.SecondStore is on")
	want("Begin", f.ForeignTx && in.Begin == nil, "because Features.ForeignTx is on")
	want("Begin", f.LateCommits && in.Begin == nil, "because Features.LateCommits is on")
	want("SetHeaders", f.StoredHeaders && in.SetHeaders == nil, "because Features.StoredHeaders is on")
	if lacks == nil {
		return in.DB.Check("drivertest") // every hub
	}
	roles := "no roles"
	if len(has) > 0 {
		roles = "the roles " + strings.Join(has, ", ")
	}
	text := fmt.Sprintf("drivertest: %s needs the roles %s; the store has %s. Missing:", suite.name, strings.Join(suite.roles, ", "), roles)
	return errors.New(text + "\n\t" + strings.Join(lacks, "\n\t"))
}

// in sets the suite of the checks that do not name one.
func in[T any](id suiteID, groups ...[]check[T]) []check[T] {
	all := slices.Concat(groups...)
	for i := range all {
		if all[i].suite == wholeSuite {
			all[i].suite = id
		}
	}
	return all
}

// with sets the optional roles that checks need.
func with[T any](roles []string, all []check[T]) []check[T] {
	for i := range all {
		all[i].roles = roles
	}
	return all
}

// checks returns all checks, in the order of their behaviors.
func checks[T any]() []check[T] {
	all := slices.Concat(
		in(outboxSuite,
			commitChecks[T](), noTxChecks[T](), hookChecks[T](), limitChecks[T](), dedupChecks[T](), dedupRaceChecks[T](), plainChecks[T](),
			savepointChecks[T](), trackChecks[T](), ownedChecks[T](), largeChecks[T](), contextChecks[T](), refusedChecks[T](),
			foreignChecks[T](), hubChecks[T](), fieldChecks[T](), headerChecks[T](), delayChecks[T](), committedChecks[T]()),
		in(relaySuite,
			lateChecks[T](), modelChecks[T](), readChecks[T](), pageChecks[T](), dueChecks[T](), seekChecks[T](), writersChecks[T](), laneChecks[T](), takeOverChecks[T](),
			doneChecks[T](), retryChecks[T](), fenceChecks[T](), raceChecks[T](),
			with([]string{"Finisher"}, slices.Concat(finishChecks[T](), finishFenceChecks[T]()))),
		in(inboxSuite, slices.Concat(inboxChecks[T](), recordChecks[T]()), with([]string{"Audit", "InboxRecords"}, inboxAuditChecks[T]())),
		in(keysSuite, keyChecks[T](), with([]string{"Audit", "KeyRecords"}, keyAuditChecks[T]())), in(jobsSuite, jobChecks[T]()),
		in(adminSuite,
			statsChecks[T](), inspectChecks[T](), replayChecks[T](), replayKeyChecks[T](), deadLetterChecks[T](),
			reportChecks[T](), purgeChecks[T](), purgeWrittenChecks[T](), tidyChecks[T](), setLanesChecks[T](),
			with([]string{"Restorer"}, restoredChecks[T]()), with([]string{"Audit"}, auditChecks[T]()), with([]string{"Rollups"}, rollupChecks[T]()), causesChecks[T]()),
		in(backlogSuite, with([]string{"Backlogs"}, ownDestinations(slices.Concat(
			destinationChecks[T](), divertChecks[T](), divertFenceChecks[T](), backlogReadChecks[T](), backlogInspectChecks[T](),
			backlogSettleChecks[T](), backlogDeadChecks[T](), refillChecks[T](), refillRaceChecks[T]())))),
		in(backlogSuite, with([]string{"Audit", "Backlogs"}, ownDestinations(backlogAuditChecks[T]()))),
		in(backlogSuite, with([]string{"Backlogs"}, ownDestinations(backlogCausesChecks[T]()))),
	)
	order := map[string]int{}
	for i, b := range behaviors() {
		order[b.name] = i
	}
	slices.SortStableFunc(all, func(a, b check[T]) int { return order[a.row] - order[b.row] })
	return all
}

// checksOf returns the checks of a suite.
func checksOf[T any](id suiteID) []check[T] {
	return slices.DeleteFunc(checks[T](), func(c check[T]) bool { return id != wholeSuite && c.suite != id })
}

// lacks returns the reason why a check cannot run on a store, or "" if it can.
func (c check[T]) lacks(f Features, db driver.Roles[T]) string {
	has := db.Names()
	for _, role := range c.roles {
		if !slices.Contains(has, role) {
			return "no role " + role
		}
	}
	return f.lacks(c.needs)
}
