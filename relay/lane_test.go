package relay

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
	for range o.inTurn {
		t.Error("at returned a lane of an empty set")
	}
	for n := range 5 {
		o.add(newLane(driver.Lease{Lane: n}))
	}
	again := newLane(driver.Lease{Lane: 3, Epoch: 2})
	o.add(again)
	if o.at(3) != again || o.at(7) != nil || len(o.list) != 5 {
		t.Fatalf("%d lanes, and lane 3 is %v", len(o.list), o.at(3))
	}
	firsts := make(map[int]bool)
	for range 200 {
		var seen []int
		for l := range o.inTurn {
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

// hubOnly is a store that has only a hub.
type hubOnly struct {
	driver.Relay
	hub driver.Hub
}

func (h *hubOnly) Local() *driver.Hub { return &h.hub }

// TestPrefersItsLanes: writers of this process learn which lanes the relay
// owns, by their numbers, without those that are being handed over.
func TestPrefersItsLanes(t *testing.T) {
	db := &hubOnly{}
	e := &engine{db: database{Relay: db}}
	for _, n := range []int{21, 9, 30} {
		e.lanes.add(newLane(driver.Lease{Lane: n}))
	}
	e.drain(e.lanes.at(9), time.Now())
	seen := make(map[int]bool)
	for range 200 {
		seen[db.hub.AnyLane(32)] = true
	}
	if len(seen) != 2 || !seen[21] || !seen[30] {
		t.Errorf("writers choose %v, want 21 and 30", seen)
	}
}
