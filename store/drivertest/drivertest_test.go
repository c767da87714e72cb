package drivertest

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"go.uber.org/goleak"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The golden matrix has a cell for every behavior and store, and no other "no"
// than these.
func TestGoldenMatrix(t *testing.T) {
	allowed := []string{"memstore 12", "memstore 13 (SQL text)", "memstore 33", "memstore R10", "sqlitestore 33", "sqlitestore R10"}
	columns, err := parseMatrix(Matrix())
	if err != nil {
		t.Fatal(err)
	}
	stores := []string{"memstore", "mysqlstore", "mysqlstore/mariadb", "pgstore", "pgstore/sql", "sqlitestore"}
	var names []string
	for name := range columns {
		names = append(names, name)
	}
	slices.Sort(names)
	if !slices.Equal(names, stores) {
		t.Errorf("the matrix has the stores %v, want %v", names, stores)
	}
	var nos []string
	for _, name := range names {
		if len(columns[name]) != len(behaviors()) {
			t.Errorf("%s has %d rows, want %d", name, len(columns[name]), len(behaviors()))
		}
		for _, b := range behaviors() {
			switch cell := columns[name][b.id]; cell {
			case yes:
			case no:
				nos = append(nos, name+" "+b.id)
			default:
				t.Errorf("%s, behavior %s: the cell is %q", name, b.id, cell)
			}
		}
	}
	if !slices.Equal(nos, allowed) {
		t.Errorf("the cells with no are %q, want %q", nos, allowed)
	}
	for _, b := range behaviors() { // the titles equal those of the code
		if !strings.Contains(Matrix(), "| "+b.title+" ") {
			t.Errorf("the matrix does not have the title of behavior %s, %q", b.id, b.title)
		}
	}
}

// Every behavior has a check and every check a behavior, under a unique name.
func TestEveryBehaviorIsChecked(t *testing.T) {
	known := map[string]int{}
	for _, b := range behaviors() {
		known[b.id] = 0
	}
	names := map[string]bool{}
	for _, c := range checks[int]() {
		if _, ok := known[c.row]; !ok {
			t.Errorf("check %q is of the behavior %q, which the matrix does not have", c.name, c.row)
		}
		known[c.row]++
		if name := c.testName(); names[name] || strings.ContainsAny(name, " ()/") {
			t.Errorf("the test name %q is not unique or contains invalid characters", name)
		} else {
			names[name] = true
		}
	}
	for id, n := range known {
		if n == 0 {
			t.Errorf("behavior %s has no check", id)
		}
	}
}

func TestCompareColumns(t *testing.T) {
	all := column{}
	for _, b := range behaviors() {
		all[b.id] = yes
	}
	if diffs := compare("x", all, all); len(diffs) > 0 || !all.complete() {
		t.Errorf("a column differs from itself: %v", diffs)
	}
	worse := column{}
	for id := range all {
		worse[id] = yes
	}
	worse["13b"] = no
	if diffs := compare("x", worse, all); len(diffs) != 1 || !strings.Contains(diffs[0], "13b") {
		t.Errorf("the differences are %q, want one about 13b", diffs)
	}
	if diffs := compare("x", all, worse); len(diffs) != 1 {
		// Better than golden is a difference, too.
		t.Errorf("the differences are %q, want one", diffs)
	}
	delete(worse, "13b")
	if worse.complete() {
		t.Errorf("a column with a hole is complete")
	}
	text := column{"1": yes, "12": no}.text("mystore", map[string]string{"12": "no SQL"})
	for _, want := range []string{"mystore", "yes", "no: no SQL", " -\n"} {
		if !strings.Contains(text, want) {
			t.Errorf("the printed column lacks %q:\n%s", want, text)
		}
	}
}

func TestParseMatrix(t *testing.T) {
	columns, err := parseMatrix("words\n| b | title | one | two |\n|---|---|---|---|\n| 1 | t | yes | no |\n")
	if err != nil || columns["one"]["1"] != yes || columns["two"]["1"] != no {
		t.Errorf("parsed as %v, %v", columns, err)
	}
	for _, bad := range []string{"| b |\n", "| b | t | one |\n| 1 | t |\n"} {
		if _, err := parseMatrix(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}

// An enabled feature needs its function, and a disabled one gives the reason
// for a "no".
func TestFeatures(t *testing.T) {
	all := Features{
		PlainSQL: true, SavepointAPI: true, SavepointSQL: true, SecondStore: true, LateCommits: true, ForeignTx: true, StoredHeaders: true,
	}
	err := Instance[int]{}.check(all)
	for _, want := range []string{"DB", "InsertPlain", "Savepoint", "Exec", "Second", "Begin", "SetHeaders"} {
		if err == nil || !strings.Contains(err.Error(), "Instance."+want) {
			t.Errorf("the error %q does not name %s", err, want)
		}
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

func ExampleMatrix() {
	for line := range strings.Lines(Matrix()) {
		if strings.HasPrefix(line, "- ") {
			fmt.Print(line)
		}
	}
	// Output:
	// - memstore, 12 and 13 (SQL text): no SQL.
	// - memstore, 33: an event gets its seq at commit, so no row can appear below an already read seq.
	// - sqlitestore, 33: SQLite has one writer at a time, which commits before the next one can write.
}
