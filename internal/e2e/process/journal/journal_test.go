package journal_test

import (
	"fmt"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/e2e/process/journal"
)

func delivery(aggregate string, n int) waybill.Delivery {
	ev := waybill.NewEvent("Noted", n)
	ev.ID, ev.AggregateID = waybill.NewID(), aggregate
	return waybill.Delivery{Event: ev, Attempt: 2, Position: waybill.Position{Lane: 3, Epoch: 4, Seq: 5}}
}

func Example() {
	path := filepath.Join(os.TempDir(), fmt.Sprintf("journal-%d", os.Getpid()))
	defer os.Remove(path) //nolint:errcheck // a leftover in the temporary folder is harmless
	w, err := journal.Open(path, "A")
	if err != nil {
		panic(err)
	}
	w.Note(journal.Begin, delivery("order-1", 7))
	records, err := journal.Read(path)
	fmt.Println(records[0].Node, records[0].What, records[0].Name(), err)
	// Output: A begin order-1/7 <nil>
}

// TestTornRecord: a partial record of a killed process does not hide other
// records.
func TestTornRecord(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	if records, err := journal.Read(path); err != nil || len(records) != 0 {
		t.Errorf("a journal that is not there: %v, %v", records, err)
	}
	w, err := journal.Open(path, "A")
	if err != nil {
		t.Fatal(err)
	}
	w.Note(journal.Begin, delivery("a", 0))
	whole, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, append(whole, whole[:len(whole)/2]...), 0o600); err != nil {
		t.Fatal(err)
	}
	w.Note(journal.OK, delivery("b", 1))
	records, err := journal.Read(path)
	if err != nil || len(records) != 2 || records[0].Name() != "a/0" || records[1].Name() != "b/1" {
		t.Errorf("%v, %v", records, err)
	}
	if r := records[1]; r.What != journal.OK || r.Attempt != 2 || r.Lane != 3 || r.Epoch != 4 || r.Seq != 5 || r.PID != os.Getpid() {
		t.Errorf("%+v", r)
	}
	if err := w.Close(); err != nil {
		t.Error(err)
	}
}

// TestConcurrent: several writers lose no record.
func TestConcurrent(t *testing.T) {
	path := filepath.Join(t.TempDir(), "journal")
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			w, err := journal.Open(path, fmt.Sprint(i))
			if err != nil {
				t.Error(err)
				return
			}
			for n := range 200 {
				w.Note(journal.Begin, delivery(fmt.Sprint(i), n))
			}
		})
	}
	wg.Wait()
	records, err := journal.Read(path)
	if err != nil || len(records) != 800 {
		t.Fatalf("%d records, %v", len(records), err)
	}
	next := map[string]int{}
	for _, r := range records {
		if r.Number != fmt.Sprint(next[r.Aggregate]) {
			t.Errorf("%s comes where %d should", r.Name(), next[r.Aggregate])
		}
		next[r.Aggregate]++
	}
}
