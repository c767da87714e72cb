package relay

import (
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// TestReleaseInGoodOrder: a lane is left in good order when nothing is under way, and nothing is left that an owner who died may have had in hand.
func TestReleaseInGoodOrder(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		what         string
		change       func(*lane)
		clean, dirty bool
	}{
		{"nothing is under way", func(*lane) {}, true, false},
		{"something is under way", func(l *lane) { l.busy = 1 }, false, false},
		{"something has been under way for too long", func(l *lane) { l.busy, l.drainBy = 1, now }, false, true},
		{"rows may be what the last owner died of", func(l *lane) { l.suspects = 1 }, false, true},
		{"rows that were put off may be", func(l *lane) { l.lateSuspects = 1 }, false, true},
		{"they may be, and something is under way", func(l *lane) { l.busy, l.suspects = 1, 1 }, false, false},
	} {
		e := &engine{db: &hubOnly{}}
		l := newLane(store.Lease{Lane: 3})
		e.lanes.add(l)
		if clean, dirty := e.toRelease(now); len(clean)+len(dirty) > 0 {
			t.Errorf("%s: a lane that is not handed over is released", c.what)
		}
		l.draining, l.drainBy = true, now.Add(time.Second)
		c.change(l)
		clean, dirty := e.toRelease(now)
		if slices.Contains(clean, l) != c.clean || slices.Contains(dirty, l) != c.dirty {
			t.Errorf("%s: in good order %v, otherwise %v", c.what, clean, dirty)
		}
	}
}

// TestDueWhileDraining: what a read of rows put off brings for a lane that is being handed over is not taken, and stays suspect.
func TestDueWhileDraining(t *testing.T) {
	e := &engine{db: &hubOnly{}}
	var lanes []*lane
	for n := range 2 {
		l := newLane(store.Lease{Lane: n, Unclean: true, Window: 5})
		l.open = true
		e.lanes.add(l)
		lanes = append(lanes, l)
	}
	lanes[1].draining = true
	e.finishDue(readReply{readJob: readJob{kind: readDue, lanes: lanes, limit: 10}})
	if lanes[0].lateSuspects != 0 || lanes[1].lateSuspects != 5 {
		t.Errorf("%d and %d rows are suspect, want 0, and the 5 that were not taken", lanes[0].lateSuspects, lanes[1].lateSuspects)
	}
}

// TestPassAllDuringACount: an aggregate whose destination is down leaves memory, but for the event whose attempt is being counted.
func TestPassAllDuringACount(t *testing.T) {
	e := &engine{db: &hubOnly{}}
	l := newLane(store.Lease{Lane: 1, Unclean: true, Window: 5})
	a := l.aggregate(store.Aggregate{Type: "thing", ID: "a"})
	for seq := range int64(2) {
		it := e.add(l, &store.Row{Key: store.Key{Lane: 1, Seq: seq + 1, ID: waybill.NewID()}}, false)
		it.agg, it.suspect = a, true
		a.enqueue(it)
	}
	counted := a.queue[0]
	counted.state = finished
	e.passAll(a)
	if !slices.Equal(a.queue, []*item{counted}) || counted.state != finished || a.passed != 2 || l.unsettled != 1 {
		t.Errorf("%d are left, the first is %v, passed from %d on, %d in hand", len(a.queue), counted.state, a.passed, l.unsettled)
	}
}

// TestSuspectsTakeTurns: whoever was counted, and perhaps never delivered, comes behind those that were not.
func TestSuspectsTakeTurns(t *testing.T) {
	var s suspects
	for i, attempts := range []int{2, 0, 1, 0, 2} {
		s.push(&item{row: &store.Row{Key: store.Key{Seq: int64(i)}, Attempts: attempts}})
	}
	var order []int64
	for len(s.list) > 0 {
		order = append(order, s.next().row.Seq)
	}
	if want := []int64{1, 3, 2, 0, 4}; !slices.Equal(order, want) {
		t.Errorf("they go in this order: %v, want %v", order, want)
	}
}
