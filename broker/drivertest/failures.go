package drivertest

import (
	"os"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/driver"
)

// Failures checks a broker's failure table: every row has a sample, which
// matches that row and no earlier one, and which gets the row's class. If doc
// is not empty, it names a file that must contain the table.
func Failures(t *testing.T, table driver.Failures, samples map[string]error, doc string) {
	t.Helper()
	for _, row := range table {
		sample, ok := samples[row.Name]
		if !ok {
			t.Errorf("no sample of %q", row.Name)
			continue
		}
		found, _ := table.Row(sample)
		if found.Name != row.Name {
			t.Errorf("%v is found in row %q, want %q", sample, found.Name, row.Name)
		}
		if class, _ := waybill.Classify(table.Classify(sample)); class != row.Class {
			t.Errorf("%v is %v, want %v", sample, class, row.Class)
		}
	}
	if len(samples) != len(table) {
		t.Errorf("%d samples for %d rows", len(samples), len(table))
	}
	if doc == "" {
		return
	}
	text, err := os.ReadFile(doc) //nolint:gosec // the test names it
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(string(text), table.Table()) {
		t.Errorf("%s does not have the table:\n%s", doc, table.Table())
	}
}
