package relay

import (
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestReleaseInGoodOrder: a lane is released in good order when no delivery is
// in flight, and no suspect of a crashed owner is left.
func TestReleaseInGoodOrder(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		what         string
		change       func(*lane)
		clean, dirty bool
	}{
		{"no delivery is in flight", func(*lane) {}, true, false},
		{"a delivery is in flight", func(l *lane) { l.busy = 1 }, false, false},
		{"the drain has timed out", func(l *lane) { l.busy, l.drainBy = 1, now }, false, true},
		{"ready rows are suspect", func(l *lane) { l.suspects = 1 }, false, true},
		{"deferred rows are suspect", func(l *lane) { l.lateSuspects = 1 }, false, true},
		{"ready rows are suspect, and a delivery is in flight", func(l *lane) { l.busy, l.suspects = 1, 1 }, false, false},
	} {
		e := &engine{db: database{Relay: &hubOnly{}}}
		l := newLane(driver.Lease{Lane: 3})
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

// TestDueWhileDraining: deferred rows that a read returns for a lane that is
// being handed over are not taken, and stay suspect.
func TestDueWhileDraining(t *testing.T) {
	e := &engine{db: database{Relay: &hubOnly{}}}
	var lanes []*lane
	for n := range 2 {
		l := newLane(driver.Lease{Lane: n, Unclean: true, Window: 5})
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

// TestPassAllDuringACount: an aggregate whose destination is unavailable leaves
// memory, except for the event whose attempt is being counted.
func TestPassAllDuringACount(t *testing.T) {
	e := &engine{db: database{Relay: &hubOnly{}}}
	l := newLane(driver.Lease{Lane: 1, Unclean: true, Window: 5})
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
		t.Errorf("%d are left, the first is %v, passed from %d on, %d in memory", len(a.queue), counted.state, a.passed, l.unsettled)
	}
}

// TestSuspectsTakeTurns: a suspect that was counted, and perhaps never
// delivered, comes behind those that were not.
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

// TestSuspectsGiveTheirPlaceBack: in a lane of a crashed owner, as many rows
// are suspect as that owner can have had in flight. A row that waits for an
// unavailable destination gives its place to the next row, which is not taken
// before that is decided; and the row stays suspect itself.
func TestSuspectsGiveTheirPlaceBack(t *testing.T) {
	l := newLane(driver.Lease{Lane: 1, Unclean: true, Window: 2})
	row := func() *item {
		it := &item{lane: l, row: &store.Row{Key: store.Key{Lane: 1, ID: waybill.NewID()}}}
		l.suspect(it, &l.suspects)
		return it
	}
	first, second, next := row(), row(), waybill.NewID()
	if !first.suspect || !second.suspect || !l.undecided(next, l.suspects, l.unsure) {
		t.Fatal("the first two are not suspect, or the third is taken before they are decided")
	}
	l.remember(first)
	l.giveBack(first)
	l.giveBack(first)
	if l.suspects != 1 || l.undecided(next, l.suspects, l.unsure) {
		t.Errorf("%d places are left, want the one that was given back", l.suspects)
	}
	third := row()
	l.cleared(second)
	l.cleared(third)
	if !third.suspect || row().suspect {
		t.Error("the third is not suspect, or the fourth is")
	}
	again := &item{lane: l, row: first.row}
	l.suspect(again, &l.suspects)
	if !again.suspect || len(l.wary) != 0 {
		t.Error("the first is not suspect any more")
	}
	last := newLane(driver.Lease{Lane: 1, Unclean: true, Window: 1})
	it := &item{lane: last, row: &store.Row{Key: store.Key{ID: waybill.NewID()}}}
	last.suspect(it, &last.suspects)
	last.seenAll()
	last.giveBack(it)
	if last.suspects != 0 || last.undecided(next, last.suspects, last.unsure) {
		t.Error("a place is given back although nothing is left to read")
	}
}
