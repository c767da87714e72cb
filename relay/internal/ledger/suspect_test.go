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

// TestSuspectsAreTriedInGroups: after a crash with many events in flight, the
// groups of suspects double. The attempts of a group are counted, durably,
// before the first of its events is delivered.
func TestSuspectsAreTriedInGroups(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	g := New(Config{BatchSize: 1000, ColdQueue: 1000, MaxAttempts: 3, Backoff: func(int) time.Duration { return time.Second }})
	g.SetLaneCount(1)
	g.LaneAcquired(driver.Lease{Lane: 1, Unclean: true, Window: 500}, nil, now)
	l := g.lanes.at(1)
	l.open = true
	for seq := range int64(600) {
		row := &store.Row{Key: store.Key{Lane: 1, Seq: seq + 1, ID: waybill.NewID()}}
		if !g.take(l, row, now) {
			break // the place of the next row is not decided
		}
	}
	var sizes, counted []int
	for range 100 {
		g.CountSuspects(now)
		s, ok := g.NextSettlement(now.Add(time.Hour))
		if !ok {
			break
		}
		var moved []waybill.ID
		n := 0
		for _, r := range s.Retry {
			moved = append(moved, r.ID)
			n += r.Attempts
		}
		if !s.Durable || len(s.Done) > 0 {
			t.Fatalf("the count of a group is durable: %v; it settles %d events", s.Durable, len(s.Done))
		}
		if g.SuspectsReady() != 0 || len(g.NextSuspects(nil, 1000, now)) != 0 {
			t.Fatal("suspects are delivered before their attempts are on disk")
		}
		g.Settled(s, driver.Settled{Held: []int{1}, Moved: moved}, 0, now)
		if g.CountSuspects(now); g.SuspectsReady() != len(s.Retry) {
			t.Fatalf("%d of %d suspects can be delivered", g.SuspectsReady(), len(s.Retry))
		}
		sizes, counted = append(sizes, len(s.Retry)), append(counted, n)
		for _, it := range g.NextSuspects(nil, 1000, now) {
			d := it.Delivery()
			if d.Attempt != 1 {
				t.Fatalf("a suspect is delivered as attempt %d", d.Attempt)
			}
			g.DeliveryEnded(it, &d, nil, now)
		}
		s, _ = g.NextSettlement(now.Add(time.Hour))
		g.Settled(s, driver.Settled{Held: []int{1}}, 0, now)
	}
	if want := []int{1, 2, 4, 8, 16, 32, 64, 128, 245}; !slices.Equal(sizes, want) {
		t.Errorf("the groups have %v events, want %v", sizes, want)
	}
	if !slices.Equal(counted, sizes) {
		t.Errorf("the groups count %v attempts, want %v", counted, sizes)
	}
	g.LaneAcquired(driver.Lease{Lane: 2, Unclean: true, Window: 5}, nil, now)
	if g.suspects.size != 0 {
		t.Error("the groups of another crashed owner do not begin with one event")
	}
}

// TestSuspectsThatAreTriedAlone: an event that was counted together with
// others, and an event whose last attempt this is, are tried alone.
func TestSuspectsThatAreTriedAlone(t *testing.T) {
	for _, c := range []struct {
		what        string
		maxAttempts int
		attempts    int
		late        bool
		want        []int
	}{
		{"ready rows", 3, 0, false, []int{1, 2, 4}},
		{"ready rows without a limit", -1, 50, false, []int{1, 2, 4}},
		{"deferred rows", 3, 0, true, []int{1, 1, 1, 1, 1, 1, 1}},
		{"rows with their last attempt", 1, 0, false, []int{1, 1, 1, 1, 1, 1, 1}},
		{"rows with their last but one attempt", 2, 0, false, []int{1, 2, 4}},
	} {
		g := New(Config{BatchSize: 100, ColdQueue: 100, MaxAttempts: c.maxAttempts})
		g.LaneAcquired(driver.Lease{Lane: 1, Unclean: true, Window: 50}, nil, time.Time{})
		l := g.lanes.at(1)
		for i := range 7 {
			it := g.add(l, &store.Row{Key: store.Key{Lane: 1, Seq: int64(i), ID: waybill.NewID()}, Attempts: c.attempts}, false)
			it.suspect, it.late = true, c.late
			g.suspects.push(it)
		}
		var sizes []int
		for len(g.suspects.list) > 0 {
			g.CountSuspects(time.Time{})
			sizes = append(sizes, len(g.suspects.group))
			g.suspects.group = nil
		}
		if !slices.Equal(sizes, c.want) {
			t.Errorf("%s: groups of %v, want %v", c.what, sizes, c.want)
		}
	}
}

// TestSuspectIsNotBesideItsAggregate: a deferred suspect is read, then an
// earlier event of its aggregate. Only the earlier event is delivered: before
// the suspect is counted, and after that as well, when its attempt is taken
// back.
func TestSuspectIsNotBesideItsAggregate(t *testing.T) {
	now := time.Unix(1_700_000_000, 0)
	row := func(seq int64) *store.Row {
		id := waybill.NewID()
		return &store.Row{Key: store.Key{Lane: 1, Seq: seq, ID: id}, Event: waybill.Event{ID: id, AggregateType: "thing", AggregateID: "a"}}
	}
	for _, counted := range []bool{false, true} {
		g := New(Config{BatchSize: 10, ColdQueue: 10, MaxAttempts: 3})
		g.LaneAcquired(driver.Lease{Lane: 1, Unclean: true, Window: 5}, nil, now)
		l := g.lanes.at(1)
		l.open, l.suspicion.ready = true, places{}
		suspect, earlier := row(10), row(9)
		g.takeDue(l, suspect)
		if counted {
			g.CountSuspects(now)
			s, ok := g.NextSettlement(now)
			if !ok || len(s.Retry) != 1 || s.Retry[0].Attempts != 1 {
				t.Fatalf("the suspect is not counted: %+v", s.Retry)
			}
			g.Settled(s, driver.Settled{Held: []int{1}, Moved: []waybill.ID{suspect.ID}}, 0, now)
		}
		g.take(l, earlier, now)
		g.CountSuspects(now)
		if got := g.NextSuspects(nil, 10, now); len(got) != 0 {
			t.Errorf("counted %v: the suspect is delivered before the earlier event", counted)
		}
		batch := g.NextBatch(nil, 10, now)
		if len(batch) != 1 || batch[0].row != earlier {
			t.Fatalf("counted %v: %d events are delivered, want the earlier one", counted, len(batch))
		}
		s, ok := g.NextSettlement(now)
		if ok != counted || counted && (len(s.Retry) != 1 || s.Retry[0].Attempts != 0) {
			t.Errorf("counted %v: the attempt of the suspect is not taken back: %+v", counted, s.Retry)
		}
	}
}

// TestSkimmedRowsStaySuspect: rows of a held aggregate that a large page only
// lists may have been in flight with the row that holds the aggregate. The
// suspicion outlasts the end of the lane's ready rows.
func TestSkimmedRowsStaySuspect(t *testing.T) {
	g := New(Config{})
	g.LaneAcquired(driver.Lease{Lane: 1, Unclean: true, Window: 4}, nil, time.Time{})
	l := g.lanes.at(1)
	g.now = time.Now()
	key := store.Aggregate{Type: "thing", ID: "a"}
	ref := driver.RowRef{Key: store.Key{Lane: 1, Seq: 7, ID: waybill.NewID()}, Aggregate: key}
	g.takeSkimmed(l, &Read{Skip: map[store.Aggregate]struct{}{key: {}}}, &Answer{Refs: []driver.RowRef{ref}})
	l.suspicion.seenReady()
	it := &Item{lane: l, row: &store.Row{Key: ref.Key}}
	if l.suspicion.mark(it, &l.suspicion.ready); !it.suspect {
		t.Error("a row that was listed is not suspect")
	}
}

// TestSuspectsBehindARowAreBounded: an aggregate has as many ready suspects
// behind a row as an owner has of its events in memory, twice: others may have
// been committed among them since. Deferred rows do not count.
func TestSuspectsBehindARowAreBounded(t *testing.T) {
	l := newLane(driver.Lease{Lane: 1, Unclean: true, Window: 1000}, nil, time.Time{})
	a := l.aggregate(store.Aggregate{Type: "thing", ID: "a"})
	for range 500 {
		id := waybill.NewID()
		l.suspicion.passBehind(a, id, &l.suspicion.ready)
		l.suspicion.passBehind(a, id, &l.suspicion.ready)
	}
	if got := len(l.suspicion.wary); got != 128 {
		t.Errorf("%d rows are suspect, want 128", got)
	}
	for range 200 {
		l.suspicion.passBehind(a, waybill.NewID(), &l.suspicion.late)
	}
	if got := len(l.suspicion.wary); got != 128+200 {
		t.Errorf("%d rows are suspect, want 128 and the 200 that are deferred", got)
	}
	l.suspicion.seenReady()
	l.suspicion.passBehind(l.aggregate(store.Aggregate{Type: "thing", ID: "b"}), waybill.NewID(), &l.suspicion.ready)
	if got := len(l.suspicion.wary); got != 128+200 {
		t.Error("a row is suspect although all rows of the crashed owner were seen")
	}
}

// TestAWideWindowRemembersMoreSuspects: a lane remembers four windows of
// suspects that are not in memory, and never fewer than 10,000: half of them
// ready rows behind other rows, and room for another quarter of deferred ones.
func TestAWideWindowRemembersMoreSuspects(t *testing.T) {
	for _, tc := range []struct{ window, want int }{{window: 100, want: 10_000}, {window: 9_000, want: 36_000}} {
		l := newLane(driver.Lease{Lane: 1, Unclean: true, Window: tc.window}, nil, time.Time{})
		s := &l.suspicion
		for range 2 * tc.want {
			s.passBehind(l.aggregate(store.Aggregate{Type: "thing", ID: waybill.NewID().String()}), waybill.NewID(), &s.ready)
		}
		if got := len(s.wary); got != tc.want/2 {
			t.Errorf("window %d: %d rows behind others are suspect, want %d", tc.window, got, tc.want/2)
		}
		for range 2 * tc.want {
			s.passBehind(l.aggregate(store.Aggregate{Type: "thing", ID: "late"}), waybill.NewID(), &s.late)
		}
		if got := len(s.wary); got != tc.want/4*3 {
			t.Errorf("window %d: %d rows behind others are suspect with the deferred ones, want %d", tc.window, got, tc.want/4*3)
		}
		for range 2 * tc.want {
			s.remember(&Item{lane: l, suspect: true, row: &store.Row{Key: store.Key{ID: waybill.NewID()}}})
		}
		if got := len(s.wary); got != tc.want {
			t.Errorf("window %d: %d suspects are remembered, want %d", tc.window, got, tc.want)
		}
	}
}
