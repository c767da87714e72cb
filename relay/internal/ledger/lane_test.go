package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// TestOwned: a loop over the lanes may remove lanes, and visits each once,
// beginning at any of them.
func TestOwned(t *testing.T) {
	var o owned
	for range o.inTurn() {
		t.Error("at returned a lane of an empty set")
	}
	for n := range 5 {
		o.add(newLane(driver.Lease{Lane: n}, nil, time.Time{}))
	}
	again := newLane(driver.Lease{Lane: 3, Epoch: 2}, nil, time.Time{})
	o.add(again)
	if o.at(3) != again || o.at(7) != nil || len(o.list) != 5 {
		t.Fatalf("%d lanes, and lane 3 is %v", len(o.list), o.at(3))
	}
	firsts := make(map[int]bool)
	for range 200 {
		var seen []int
		for _, l := range o.inTurn() {
			seen = append(seen, l.number)
		}
		firsts[seen[0]] = true
		slices.Sort(seen)
		if !slices.Equal(seen, []int{0, 1, 2, 3, 4}) {
			t.Fatalf("visited %v", seen)
		}
	}
	if len(firsts) != 5 {
		t.Errorf("began with %v only", firsts)
	}
	var seen []int
	for _, l := range o.list {
		seen = append(seen, l.number)
		o.remove(l)
	}
	slices.Sort(seen)
	if !slices.Equal(seen, []int{0, 1, 2, 3, 4}) || len(o.list) != 0 || o.at(3) != nil {
		t.Errorf("visited %v, and %d are left", seen, len(o.list))
	}
}

// TestForbiddenChange: outside of tests, the ledger reports a forbidden change
// of an item's state as a fact.
func TestForbiddenChange(t *testing.T) {
	Strict = false
	defer func() { Strict = true }()
	g := New(Config{})
	it := &Item{lane: newLane(driver.Lease{Lane: 3}, nil, time.Time{}), state: settled}
	g.move(it, queued)
	facts := g.Facts()
	if want := (Violation{Lane: 3, From: "settled", To: "queued"}); len(facts) != 1 || facts[0] != want {
		t.Errorf("the facts are %+v, want %+v", facts, want)
	}
}
