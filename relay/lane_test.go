package relay

import (
	"slices"
	"testing"

	"github.com/waybillhq/waybill/store"
)

// Whoever goes through the lanes may lose some of them on the way, and sees each once, beginning with any.
func TestOwned(t *testing.T) {
	var o owned
	for range o.inTurn {
		t.Error("there is a lane where there is none")
	}
	for n := range 5 {
		o.add(newLane(store.Lease{Lane: n}))
	}
	again := newLane(store.Lease{Lane: 3, Epoch: 2})
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
			t.Fatalf("went through %v", seen)
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
		t.Errorf("went through %v, and %d are left", seen, len(o.list))
	}
}
