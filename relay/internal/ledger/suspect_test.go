package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestSuspectsAreHandedOn: a lane reports the suspects of a crashed owner that
// are left, of every kind.
func TestSuspectsAreHandedOn(t *testing.T) {
	for what, change := range map[string]func(*suspicion){
		"ready rows":    func(s *suspicion) { s.ready.free = 1 },
		"deferred rows": func(s *suspicion) { s.late.free = 1 },
		"urgent rows":   func(s *suspicion) { s.urgent.free = 1 },
		"known rows":    func(s *suspicion) { s.wary = map[waybill.ID]struct{}{waybill.NewID(): {}} },
	} {
		g := New(Config{})
		g.LaneAcquired(driver.Lease{Lane: 3}, nil, time.Now())
		if l := g.Lanes()[0]; l.Suspects || l.Busy {
			t.Errorf("%s: a new lane has suspects", what)
		}
		change(&g.lanes.at(3).suspicion)
		if !g.Lanes()[0].Suspects {
			t.Errorf("%s are suspect, and the lane does not say so", what)
		}
	}
}

// TestDueWhileDraining: deferred rows that a read returns for a lane that is
// being handed over are not taken, and stay suspect.
func TestDueWhileDraining(t *testing.T) {
	g := New(Config{})
	var lanes []*lane
	for n := range 2 {
		l := newLane(driver.Lease{Lane: n, Unclean: true, Window: 5}, nil, time.Time{})
		l.open = true
		g.lanes.add(l)
		lanes = append(lanes, l)
	}
	lanes[1].draining = true
	g.RowsRead(Read{Kind: ReadDue, lanes: lanes, Limit: 10}, Answer{}, time.Now())
	if lanes[0].suspicion.late.free != 0 || lanes[1].suspicion.late.free != 5 {
		t.Errorf("%d and %d rows are suspect, want 0, and the 5 that were not taken", lanes[0].suspicion.late.free, lanes[1].suspicion.late.free)
	}
}

// TestPassAllDuringACount: an aggregate whose destination is unavailable leaves
// memory, except for the event whose attempt is being counted.
func TestPassAllDuringACount(t *testing.T) {
	g := New(Config{})
	l := newLane(driver.Lease{Lane: 1, Unclean: true, Window: 5}, nil, time.Time{})
	a := l.aggregate(store.Aggregate{Type: "thing", ID: "a"})
	for seq := range int64(2) {
		it := g.add(l, &store.Row{Key: store.Key{Lane: 1, Seq: seq + 1, ID: waybill.NewID()}}, false)
		it.agg, it.suspect = a, true
		a.enqueue(it)
	}
	counted := a.queue[0]
	g.move(counted, finished)
	g.passAll(a)
	if !slices.Equal(a.queue, []*Item{counted}) || counted.state != finished || a.passed != 2 || l.unsettled != 1 {
		t.Errorf("%d are left, the first is %v, passed from %d on, %d in memory", len(a.queue), counted.state, a.passed, l.unsettled)
	}
}

// TestSuspectsTakeTurns: a suspect that was counted, and perhaps never
// delivered, comes behind those that were not.
func TestSuspectsTakeTurns(t *testing.T) {
	var s suspects
	for i, attempts := range []int{2, 0, 1, 0, 2} {
		s.push(&Item{row: &store.Row{Key: store.Key{Seq: int64(i)}, Attempts: attempts}})
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
	l := newLane(driver.Lease{Lane: 1, Unclean: true, Window: 2}, nil, time.Time{})
	row := func() *Item {
		it := &Item{lane: l, row: &store.Row{Key: store.Key{Lane: 1, ID: waybill.NewID()}}}
		l.suspicion.mark(it, &l.suspicion.ready)
		return it
	}
	first, second, next := row(), row(), waybill.NewID()
	if !first.suspect || !second.suspect || !l.suspicion.undecided(next, &l.suspicion.ready) {
		t.Fatal("the first two are not suspect, or the third is taken before they are decided")
	}
	l.suspicion.remember(first)
	l.suspicion.giveBack(first)
	l.suspicion.giveBack(first)
	if l.suspicion.ready.free != 1 || l.suspicion.undecided(next, &l.suspicion.ready) {
		t.Errorf("%d places are left, want the one that was given back", l.suspicion.ready.free)
	}
	third := row()
	l.suspicion.cleared(second)
	l.suspicion.cleared(third)
	if !third.suspect || row().suspect {
		t.Error("the third is not suspect, or the fourth is")
	}
	again := &Item{lane: l, row: first.row}
	l.suspicion.mark(again, &l.suspicion.ready)
	if !again.suspect || len(l.suspicion.wary) != 0 {
		t.Error("the first is not suspect any more")
	}
	last := newLane(driver.Lease{Lane: 1, Unclean: true, Window: 1}, nil, time.Time{})
	it := &Item{lane: last, row: &store.Row{Key: store.Key{ID: waybill.NewID()}}}
	last.suspicion.mark(it, &last.suspicion.ready)
	last.suspicion.seenReady()
	last.suspicion.giveBack(it)
	if last.suspicion.ready.free != 0 || last.suspicion.undecided(next, &last.suspicion.ready) {
		t.Error("a place is given back although nothing is left to read")
	}
}
