package ledger

import (
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// sweptLedger returns a ledger whose lane 1 has been read up to a seq.
func sweptLedger(position int64) (*Ledger, time.Time) {
	g := New(Config{ColdQueue: 3, SweepInterval: time.Second})
	now := time.Unix(1_000_000, 0)
	g.LaneAcquired(driver.Lease{Lane: 1}, nil, now)
	l := g.lanes.at(1)
	l.open, l.scan.position = true, position
	g.horizon.next = now
	return g, now
}

// sweepOnce runs a sweep whose reads take a time each, and returns its ranges
// and the times between its reads.
func sweepOnce(g *Ledger, now time.Time, took func(c driver.Cursor) time.Duration) (ranges []driver.Cursor, pauses []time.Duration) {
	for {
		r, ok := g.StartRead(ReadSweep, now)
		if !ok {
			return ranges, pauses
		}
		c := r.Cursors[0]
		ranges = append(ranges, c)
		d := took(c)
		g.RowsRead(r, Answer{Took: d}, now)
		if !g.plan.sweep.running {
			return ranges, pauses
		}
		pauses = append(pauses, g.wish(ReadSweep).at.Sub(now))
		now = now.Add(pauses[len(pauses)-1])
	}
}

// TestASweepCoversEverySeq: the ranges of a sweep follow each other without a
// gap, from the position down to 0, for quick and for slow reads.
func TestASweepCoversEverySeq(t *testing.T) {
	for name, took := range map[string]time.Duration{"quick": time.Millisecond, "slow": time.Second, "neither": 3 * time.Millisecond} {
		const position = 1_000_000
		g, now := sweptLedger(position)
		ranges, pauses := sweepOnce(g, now, func(driver.Cursor) time.Duration { return took })
		want := int64(position)
		for _, c := range ranges {
			if c.UpTo != want {
				t.Fatalf("%s: a range ends at %d, want %d", name, c.UpTo, want)
			}
			want = c.After
		}
		if want != 0 {
			t.Errorf("%s: the sweep ends at %d, want 0", name, want)
		}
		if i := slices.IndexFunc(pauses, func(d time.Duration) bool { return d != 200*took }); i >= 0 {
			t.Errorf("%s: a pause of %s after a read of %s, want 200 times as long", name, pauses[i], took)
		}
	}
}

// TestRangesOfASweepFollowItsCost: ranges grow four times after a quick read,
// shrink four times after a slow one, and are never smaller than 4,096 seqs.
func TestRangesOfASweepFollowItsCost(t *testing.T) {
	var s sweep
	now := time.Unix(0, 0)
	for i, step := range []struct {
		took, fast time.Duration
		want       int64
	}{
		{2*time.Millisecond - 1, 0, 16_384},
		{2 * time.Millisecond, 0, 16_384},
		{5 * time.Millisecond, 0, 16_384},
		{4*time.Millisecond - 1, time.Millisecond, 65_536},
		{9 * time.Millisecond, time.Millisecond, 65_536},
		{9*time.Millisecond + 1, time.Millisecond, 16_384},
		{5*time.Millisecond + 1, 0, 4_096},
		{time.Minute, 0, 4_096},
	} {
		if s.took(step.took, step.fast, now); s.width != step.want {
			t.Errorf("step %d: width %d, want %d", i, s.width, step.want)
		}
		if want := now.Add(200 * step.took); !s.after.Equal(want) {
			t.Errorf("step %d: the next read at %s, want %s", i, s.after, want)
		}
	}
	for range 100 {
		s.took(0, 0, now)
	}
	if s.width != 1<<60 {
		t.Errorf("width %d, want a limit of %d", s.width, int64(1)<<60)
	}
}

// TestAPollReadsFromTheBeginningWhileThatIsCheap: an idle relay reads a lane
// from its beginning only if the last reads of all seqs were quick. After slow
// reads a poll begins at the horizon.
func TestAPollReadsFromTheBeginningWhileThatIsCheap(t *testing.T) {
	for _, tc := range []struct {
		position, width, want int64
	}{
		{position: 4_096, want: 0},
		{position: 4_097, want: 4_097},
		{position: 50_000, width: 50_000, want: 0},
		{position: 50_001, width: 50_000, want: 50_001},
	} {
		g, now := sweptLedger(tc.position)
		l := g.lanes.at(1)
		l.scan.floor, g.plan.sweep.width = tc.position, tc.width
		r, ok := g.StartRead(ReadFast, now)
		if !ok || r.Cursors[0].After != tc.want {
			t.Errorf("position %d, width %d: the read begins at %d (%v), want %d", tc.position, tc.width, r.Cursors[0].After, ok, tc.want)
		}
		if cheap := tc.want == 0; r.whole != cheap {
			t.Errorf("position %d, width %d: the read replaces a sweep: %v, want %v", tc.position, tc.width, r.whole, cheap)
		}
	}
}

// TestASlowPollEndsPollsFromTheBeginning: a poll that walks over many deleted
// rows is the last one that begins at 0.
func TestASlowPollEndsPollsFromTheBeginning(t *testing.T) {
	g, now := sweptLedger(50_000)
	g.plan.sweep.width = 50_000
	g.lanes.at(1).scan.floor = 50_000
	g.horizon.seq = 50_000
	r, _ := g.StartRead(ReadFast, now)
	g.RowsRead(r, Answer{Took: time.Second}, now)
	now = g.plan.nextPoll
	if r, ok := g.StartRead(ReadFast, now); !ok || r.Cursors[0].After != 50_000 {
		t.Errorf("the next poll begins at %d, want at the horizon", r.Cursors[0].After)
	}
}

// TestRowsOfSeveralRangesAreLoadedInOrder: a sweep finds rows of one aggregate
// in several ranges, the later ones first. They are loaded after the last range
// in their order, and the last ones of too many are left to the next sweep.
func TestRowsOfSeveralRangesAreLoadedInOrder(t *testing.T) {
	g, now := sweptLedger(40_000)
	seqs := []int64{39_000, 38_000, 30_000, 20_000, 20_001, 7, 8, 9}
	for {
		r, ok := g.StartRead(ReadSweep, now)
		if !ok {
			t.Fatal("the sweep ended without a last read")
		}
		if len(g.plan.load) > 0 {
			t.Fatalf("rows are loaded before the last range: %v", g.plan.load)
		}
		var a Answer
		c := r.Cursors[0]
		for _, seq := range slices.Sorted(slices.Values(seqs)) {
			if seq > c.After && seq <= c.UpTo {
				a.Refs = append(a.Refs, driver.RowRef{Key: store.Key{Lane: 1, Seq: seq, ID: waybill.NewID()}, Aggregate: store.Aggregate{Type: "thing", ID: "a"}})
			}
		}
		a.Took = 3 * time.Millisecond
		if g.RowsRead(r, a, now); !g.plan.sweep.running {
			break
		}
	}
	var got []int64
	for _, k := range g.plan.load {
		got = append(got, k.Seq)
	}
	if want := []int64{7, 8, 9}; !slices.Equal(got, want) {
		t.Errorf("loaded %v, want %v", got, want)
	}
}

// TestAFullPageOfASweepIsContinued: a range with more rows than a page is read
// to its end before the next range begins.
func TestAFullPageOfASweepIsContinued(t *testing.T) {
	g, now := sweptLedger(20_000)
	r, _ := g.StartRead(ReadSweep, now)
	first := r.Cursors[0]
	if want := (driver.Cursor{Lane: 1, After: 20_000 - 4_096, UpTo: 20_000}); first != want {
		t.Fatalf("the first read covers %+v, want %+v", first, want)
	}
	var a Answer
	for i := range int64(sweepLimit) {
		a.Refs = append(a.Refs, driver.RowRef{Key: store.Key{Lane: 1, Seq: first.After + 1 + i, ID: waybill.NewID()}})
	}
	g.RowsRead(r, a, now)
	r, _ = g.StartRead(ReadSweep, now)
	if want := (driver.Cursor{Lane: 1, After: first.After + sweepLimit, UpTo: 20_000}); r.Cursors[0] != want {
		t.Errorf("the next read covers %+v, want %+v", r.Cursors[0], want)
	}
	g.RowsRead(r, Answer{}, now)
	if r, ok := g.StartRead(ReadSweep, now); !ok || r.Cursors[0].UpTo != first.After {
		t.Errorf("the next range is %+v, want the one below %d", r.Cursors, first.After)
	}
}
