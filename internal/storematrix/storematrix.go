// Package storematrix compares the reports of the stores of this repository
// with a golden matrix: a store that loses a behavior, or gains one, fails its
// tests until the matrix says so.
package storematrix

import (
	_ "embed" // the golden matrix
	"fmt"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/store/drivertest"
)

//go:embed testdata/matrix.txt
var golden string

// Run runs all suites of package drivertest against a store, and compares the
// report with the column of the store, which is the harness's name.
func Run[T any](t *testing.T, h drivertest.Harness[T]) {
	t.Helper()
	report := drivertest.Run(t, h)
	m, err := parse(golden)
	if err != nil {
		t.Fatal(err)
	}
	// With -run some checks did not run, and failures were reported where they
	// happened.
	if !report.Complete() {
		return
	}
	for _, diff := range m.compare(h.Name, report) {
		t.Error(diff)
	}
}

// matrix is a Markdown table: one row per behavior, one column per store.
type matrix struct {
	stores []string
	rows   []row
}

type row struct {
	name, title string
	cells       map[string]string // by store
}

func parse(text string) (matrix, error) {
	var m matrix
	for line := range strings.Lines(text) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") || strings.HasPrefix(line, "|-") {
			continue
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		for i := range cells {
			cells[i] = strings.TrimSpace(cells[i])
		}
		if m.stores == nil {
			if len(cells) < 3 {
				return m, fmt.Errorf("storematrix: the matrix has no stores: %q", line)
			}
			m.stores = cells[2:]
			continue
		}
		if len(cells) != len(m.stores)+2 {
			return m, fmt.Errorf("storematrix: the matrix has a row with %d cells, want %d: %q", len(cells), len(m.stores)+2, line)
		}
		r := row{name: cells[0], title: cells[1], cells: map[string]string{}}
		for i, store := range m.stores {
			r.cells[store] = cells[2+i]
		}
		m.rows = append(m.rows, r)
	}
	return m, nil
}

// compare returns how a report differs from the column of a store.
func (m matrix) compare(store string, report drivertest.Report) []string {
	var diffs []string
	for i := range max(len(m.rows), len(report)) {
		var want row
		var got drivertest.Entry
		if i < len(m.rows) {
			want = m.rows[i]
		}
		if i < len(report) {
			got = report[i]
		}
		switch cell := want.cells[store]; {
		case got.Name != want.name || got.Title != want.title:
			return append(diffs, fmt.Sprintf("row %d of the golden matrix is %q, %q; the report has %q, %q",
				i+1, want.name, want.title, got.Name, got.Title))
		case cell != string(got.Result):
			diffs = append(diffs, fmt.Sprintf("%s, %s (%s): %q, want %q as in the golden matrix", store, got.Name, got.Title, got.Result, cell))
		}
	}
	return diffs
}
