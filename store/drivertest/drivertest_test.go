package drivertest

import (
	"context"
	"reflect"
	"regexp"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// Every behavior has a check and every check a behavior, under a unique name.
func TestEveryBehaviorIsChecked(t *testing.T) {
	known := map[string]int{}
	for _, b := range behaviors() {
		known[b.name] = 0
	}
	names := map[string]bool{}
	for _, c := range checks[int]() {
		if _, ok := known[c.row]; !ok {
			t.Errorf("check %q is of the behavior %q, which does not exist", c.name, c.row)
		}
		known[c.row]++
		if name := c.row + "." + c.testName(); names[name] || strings.ContainsAny(name, " ()/") {
			t.Errorf("the test name %q is not unique or contains invalid characters", name)
		} else {
			names[name] = true
		}
	}
	readable := regexp.MustCompile(`^[a-z]+(_[a-z]+)*$`)
	for name, n := range known {
		if n == 0 {
			t.Errorf("behavior %s has no check", name)
		}
		if !readable.MatchString(name) {
			t.Errorf("the name of behavior %q is not words in lower case", name)
		}
	}
}

// A missing role or function is one message that names what the suite needs.
func TestMissing(t *testing.T) {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	roles := db.Driver()
	find := func(context.Context, waybill.ID) ([]store.Record, error) { return nil, nil }
	pending := func(context.Context) ([]store.Row, error) { return nil, nil }
	type has = driver.Roles[memTx]
	for _, c := range []struct {
		suite suiteID
		in    Instance[memTx]
		want  string // "": nothing is missing
	}{
		{outboxSuite, Instance[memTx]{}, "RunOutbox needs the roles Outbox; the store has no roles. Missing:\n" +
			"\tthe role Outbox\n\tInstance.Pending, with which the suite reads events if the store has no role Relay"},
		{outboxSuite, Instance[memTx]{DB: has{Outbox: roles.Outbox}, Pending: pending}, ""},
		{outboxSuite, Instance[memTx]{DB: has{Outbox: roles.Outbox, Relay: roles.Relay}}, ""},
		{relaySuite, Instance[memTx]{DB: has{Outbox: roles.Outbox}}, "RunRelay needs the roles Outbox, Relay; the store has the roles Outbox. Missing:\n" +
			"\tthe role Relay\n\tInstance.Find, with which the suite finds events if the store has no role OutboxAdmin"},
		{relaySuite, Instance[memTx]{DB: has{Outbox: roles.Outbox, Relay: roles.Relay}, Find: find}, ""},
		{relaySuite, Instance[memTx]{DB: has{Outbox: roles.Outbox, Relay: roles.Relay, OutboxAdmin: roles.OutboxAdmin}}, ""},
		{inboxSuite, Instance[memTx]{DB: has{InboxRecords: roles.Inbox}}, "RunInbox needs the roles Inbox; the store has the roles InboxRecords. Missing:\n\tthe role Inbox"},
		{keysSuite, Instance[memTx]{DB: has{Outbox: roles.Outbox}}, "RunKeys needs the roles Keys; the store has the roles Outbox. Missing:\n\tthe role Keys"},
		{jobsSuite, Instance[memTx]{DB: has{Outbox: roles.Outbox}}, "RunJobs needs the roles Jobs; the store has the roles Outbox. Missing:\n\tthe role Jobs"},
		{adminSuite, Instance[memTx]{DB: has{Outbox: roles.Outbox}}, "RunAdmin needs the roles Outbox, Relay, OutboxAdmin; the store has the roles Outbox. Missing:\n" +
			"\tthe role Relay\n\tthe role OutboxAdmin"},
		{
			wholeSuite,
			Instance[memTx]{DB: has{Outbox: roles.Outbox, Relay: roles.Relay, OutboxAdmin: roles.OutboxAdmin}},
			"Run needs the roles Outbox, Relay, Inbox, Keys, Jobs, OutboxAdmin; the store has the roles Outbox, Relay, OutboxAdmin. Missing:\n" +
				"\tthe role Inbox\n\tthe role Keys\n\tthe role Jobs",
		},
		{wholeSuite, Instance[memTx]{DB: roles}, ""},
	} {
		err := c.in.check(c.suite, Features{})
		if (err == nil) != (c.want == "") || err != nil && err.Error() != "drivertest: "+c.want {
			t.Errorf("%s, with %q:\n%v\nwant:\n%s", suites[c.suite].name, c.in.DB.Names(), err, c.want)
		}
	}
	err = Instance[memTx]{DB: has{Outbox: driver.Unimplemented[memTx]{}}, Pending: pending}.check(outboxSuite, Features{})
	if err == nil || !strings.Contains(err.Error(), "Local returned nil") {
		t.Errorf("a store without a hub: %v", err)
	}
}

// An enabled feature needs its function, and a disabled one gives the reason
// why a behavior is unsupported.
func TestFeatures(t *testing.T) {
	all := Features{
		PlainSQL: true, SavepointAPI: true, SavepointSQL: true, SecondStore: true, LateCommits: true, ForeignTx: true, StoredHeaders: true,
	}
	err := Instance[int]{}.check(outboxSuite, all)
	for _, want := range []string{"InsertPlain", "Savepoint", "Exec", "Second", "Begin", "SetHeaders"} {
		if err == nil || !strings.Contains(err.Error(), "Instance."+want+", because Features.") {
			t.Errorf("the error %q does not name %s", err, want)
		}
	}
	err = Instance[int]{Count: func(context.Context, string) (int, error) { return 0, nil }}.check(outboxSuite, Features{})
	if err == nil || !strings.Contains(err.Error(), "Instance.Insert, because Instance.Count is set") {
		t.Errorf("the error %q does not name Insert", err)
	}
	for need := anyStore; need <= storedHeaders; need++ {
		if reason := all.lacks(need); reason != "" {
			t.Errorf("feature %d is on, and lacks because %q", need, reason)
		}
		if reason := (Features{}).lacks(need); (reason == "") != (need == anyStore) {
			t.Errorf("feature %d is off, and lacks because %q", need, reason)
		}
	}
}

// reduced returns a memstore with some of its roles.
func reduced(t *testing.T, names ...string) Instance[memTx] {
	t.Helper()
	db, err := memstore.New(memstore.Config{Lanes: 4})
	if err != nil {
		t.Fatal(err)
	}
	in := instance(db, db.Driver())
	all := reflect.ValueOf(&in.DB).Elem()
	for i := range all.NumField() {
		if !slices.Contains(names, all.Type().Field(i).Name) {
			all.Field(i).SetZero()
		}
	}
	full := db.Driver()
	in.Lanes = 4
	in.Find = full.OutboxAdmin.Find
	in.Pending = func(ctx context.Context) ([]store.Row, error) {
		var rows []store.Row
		for _, state := range []store.State{store.Ready, store.Delayed} {
			records, err := full.OutboxAdmin.List(ctx, state, store.Filter{}, 0, 100_000)
			if err != nil {
				return nil, err
			}
			for _, r := range records {
				rows = append(rows, r.Row)
			}
		}
		return rows, nil
	}
	return in
}

// Each suite passes on a store that has only the roles that the suite names: a
// check that calls another role would dereference nil.
func TestSuitesNeedOnlyTheirRoles(t *testing.T) {
	features := Features{SavepointAPI: true, ForeignTx: true}
	for id, run := range map[suiteID]func(*testing.T, Harness[memTx]) Report{
		outboxSuite: RunOutbox[memTx], relaySuite: RunRelay[memTx], inboxSuite: RunInbox[memTx], keysSuite: RunKeys[memTx],
		jobsSuite: RunJobs[memTx], adminSuite: RunAdmin[memTx], backlogSuite: RunBacklogs[memTx],
	} {
		t.Run(suites[id].name, func(t *testing.T) {
			open := func(t *testing.T) Instance[memTx] {
				t.Helper()
				return reduced(t, suites[id].roles...)
			}
			report := run(t, Harness[memTx]{Name: "memstore", Features: features, Open: open})
			if len(report) == 0 || !testing.Short() && !report.Complete() {
				t.Errorf("the report is incomplete:\n%s", report)
			}
			for _, e := range report {
				if e.Reason == "no role Audit" {
					continue // optional in every suite
				}
				if strings.HasPrefix(e.Reason, "no role") && id != relaySuite && id != jobsSuite && id != adminSuite {
					t.Errorf("%s needs a role that the suite does not name: %s", e.Name, e.Reason)
				}
			}
		})
	}
}

// Every check belongs to one suite, so that the suites together are Run.
func TestEveryCheckHasASuite(t *testing.T) {
	total := 0
	for id := outboxSuite; id <= backlogSuite; id++ {
		total += len(checksOf[int](id))
	}
	if all := len(checksOf[int](wholeSuite)); all != total || all < 150 {
		t.Errorf("the suites have %d checks, Run has %d", total, all)
	}
}

func TestReport(t *testing.T) {
	r := Report{{Name: "a", Title: "one", Result: Passed}, {Name: "b", Title: "two", Result: Unsupported, Reason: "no SQL"}}
	if !r.Complete() || append(r, Entry{Name: "c", Result: Incomplete}).Complete() {
		t.Errorf("Complete does not tell whether every check ran")
	}
	lines := strings.Split(r.String(), "\n")
	if len(lines) != 3 || !strings.HasSuffix(lines[0], " yes") || !strings.HasSuffix(lines[1], " no: no SQL") {
		t.Errorf("the report is %q", lines)
	}
}
