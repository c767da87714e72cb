package storematrix

import (
	"slices"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/store/drivertest"
)

// The golden matrix has a cell for every behavior and store, and no other "no"
// than these.
func TestGoldenMatrix(t *testing.T) {
	allowed := []string{
		"memstore plain_sql_is_enough", "memstore savepoints_in_sql_are_respected", "memstore late_commits_are_found", "memstore open_writers",
		"sqlitestore late_commits_are_found", "sqlitestore open_writers",
	}
	m, err := parse(golden)
	if err != nil {
		t.Fatal(err)
	}
	stores := []string{"memstore", "sqlitestore", "mysqlstore", "mysqlstore/mariadb", "pgstore", "pgstore/sql"}
	if !slices.Equal(m.stores, stores) {
		t.Errorf("the matrix has the stores %v, want %v", m.stores, stores)
	}
	var nos []string
	for _, store := range m.stores {
		for _, r := range m.rows {
			switch cell := r.cells[store]; cell {
			case "yes":
			case "no":
				nos = append(nos, store+" "+r.name)
			default:
				t.Errorf("%s, %s: the cell is %q", store, r.name, cell)
			}
		}
	}
	if !slices.Equal(nos, allowed) {
		t.Errorf("the cells with no are %q, want %q", nos, allowed)
	}
	// Each "no" has its reason below the table.
	_, reasons, _ := strings.Cut(golden, "The reason for each no:")
	for _, no := range nos {
		store, name, _ := strings.Cut(no, " ")
		found := false
		for line := range strings.Lines(reasons) {
			found = found || strings.HasPrefix(line, "- "+store+", ") && strings.Contains(line, name)
		}
		if !found {
			t.Errorf("the matrix gives no reason for %s", no)
		}
	}
}

func TestCompare(t *testing.T) {
	m, err := parse("words\n| behavior | | one | two |\n|---|---|---|---|\n| a | first | yes | no |\n| b | second | yes | yes |\n")
	if err != nil {
		t.Fatal(err)
	}
	report := drivertest.Report{{Name: "a", Title: "first", Result: drivertest.Passed}, {Name: "b", Title: "second", Result: drivertest.Passed}}
	worse, renamed, retitled := slices.Clone(report), slices.Clone(report), slices.Clone(report)
	worse[1].Result = drivertest.Unsupported
	renamed[1].Name = "c"
	retitled[0].Title = "another"
	for _, c := range []struct {
		store  string
		report drivertest.Report
		want   string // part of the only difference
	}{
		{"one", report, ""},
		{"two", report, `two, a (first): "yes", want "no"`}, // better is a difference, too
		{"one", worse, `one, b (second): "no", want "yes"`},
		{"one", renamed, `row 2`},
		{"one", retitled, `row 1`},
		{"one", report[:1], `row 2`},
		{"one", append(slices.Clone(report), drivertest.Entry{Name: "c"}), `row 3`},
		{"three", report[:1], `want ""`},
	} {
		diffs := m.compare(c.store, c.report)
		if c.want == "" && len(diffs) > 0 || c.want != "" && (len(diffs) == 0 || !strings.Contains(strings.Join(diffs, "\n"), c.want)) {
			t.Errorf("%s: the differences are %q, want %q", c.store, diffs, c.want)
		}
	}
	for _, bad := range []string{"| b |\n", "| b | t | one |\n| 1 | t |\n"} {
		if _, err := parse(bad); err == nil {
			t.Errorf("%q was accepted", bad)
		}
	}
}
