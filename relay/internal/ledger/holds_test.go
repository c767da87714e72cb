package ledger

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// holdingLedger returns a ledger with lanes 0 to n-1, each with a held
// aggregate.
func holdingLedger(n int) (*Ledger, []driver.Hold, time.Time) {
	g := New(Config{SweepInterval: time.Second})
	now := time.Unix(1_000_000, 0)
	var holds []driver.Hold
	for i := range n {
		g.LaneAcquired(driver.Lease{Lane: i}, nil, now)
		holds = append(holds, driver.Hold{Key: store.Key{Lane: i, Seq: 1, ID: waybill.NewID()}, Aggregate: store.Aggregate{Type: "thing", ID: fmt.Sprint(i)}, Dead: true})
	}
	return g, holds, now
}

// readHolds runs the next read of holds, which takes a time, and returns its
// lanes.
func readHolds(t *testing.T, g *Ledger, holds []driver.Hold, took time.Duration, now time.Time) []int {
	t.Helper()
	r, ok := g.StartRead(ReadHolds, now)
	if !ok {
		t.Fatal("no holds are read")
	}
	holds = slices.DeleteFunc(slices.Clone(holds), func(h driver.Hold) bool { return !slices.Contains(r.Lanes, h.Lane) })
	g.RowsRead(r, Answer{Holds: holds, Took: took}, now)
	return r.Lanes
}

// TestManyHoldsAreReadInParts: a read of holds that takes long makes the next
// reads cover fewer lanes, with pauses of 200 times their duration. A round
// covers every lane, and a hold that is gone is released when its lane is read.
func TestManyHoldsAreReadInParts(t *testing.T) {
	g, holds, now := holdingLedger(8)
	if got := readHolds(t, g, holds, 20*time.Millisecond, now); len(got) != 8 {
		t.Fatalf("lanes %v are opened, want 8", got)
	}
	now = now.Add(4 * time.Second)
	if w := g.wish(ReadHolds); !w.wanted || !w.at.Equal(now) {
		t.Fatalf("the next read is wanted at %s, want 200 times the last one, %s", w.at, now)
	}
	holds = holds[:7] // an operator discards the last one
	var got []int
	for len(got) < 8 {
		lanes := readHolds(t, g, holds, 5*time.Millisecond, now)
		if len(lanes) != 2 { // a quarter of what took four times too long
			t.Fatalf("lanes %v are read at a time, want 2", lanes)
		}
		got = append(got, lanes...)
		if held := g.lanes.at(7).held > 0; held == slices.Contains(got, 7) {
			t.Errorf("after lanes %v, lane 7 is held: %v", got, held)
		}
		pause := time.Second
		if len(got) == 8 && pause < g.cfg.SweepInterval {
			pause = g.cfg.SweepInterval
		}
		if w := g.wish(ReadHolds); !w.at.Equal(now.Add(pause)) {
			t.Fatalf("the next read is wanted after %s, want %s", w.at.Sub(now), pause)
		}
		now = now.Add(pause)
	}
	slices.Sort(got)
	if want := []int{0, 1, 2, 3, 4, 5, 6, 7}; !slices.Equal(got, want) {
		t.Errorf("a round covers the lanes %v", got)
	}
}

// TestReadsOfHoldsFollowTheirCost: the lanes of a read follow its duration.
func TestReadsOfHoldsFollowTheirCost(t *testing.T) {
	var h holdReads
	now := time.Unix(0, 0)
	for i, step := range []struct {
		took, fast time.Duration
		lanes      int
		want       int
		pause      time.Duration
	}{
		{time.Millisecond, 0, 32, 0, 20 * time.Millisecond},
		{5 * time.Millisecond, 0, 32, 0, time.Second},
		{10 * time.Millisecond, 0, 32, 16, 2 * time.Second},
		{9 * time.Millisecond, time.Millisecond, 16, 16, 1800 * time.Millisecond},
		{18 * time.Millisecond, time.Millisecond, 16, 8, 3600 * time.Millisecond},
		{time.Second, 0, 8, 1, 200 * time.Second},
		{2 * time.Millisecond, 0, 1, 1, 400 * time.Millisecond},
		{2*time.Millisecond - 1, 0, 1, 4, 40*time.Millisecond - 20},
	} {
		h.took(step.took, step.fast, step.lanes, now)
		if pause := h.after.Sub(now); h.width != step.want || pause != step.pause {
			t.Errorf("step %d: %d lanes after %s, want %d after %s", i, h.width, pause, step.want, step.pause)
		}
	}
}

// TestAcquiredLanesAreOpenedAtOnce: the holds of an acquired lane are read
// without a pause, and without those of the other lanes.
func TestAcquiredLanesAreOpenedAtOnce(t *testing.T) {
	g, holds, now := holdingLedger(2)
	readHolds(t, g, holds, time.Minute, now)
	g.LaneAcquired(driver.Lease{Lane: 9}, nil, now)
	if w := g.wish(ReadHolds); !w.wanted || w.at.After(now) {
		t.Errorf("the holds are read at %s, want at once", w.at)
	}
	if got := readHolds(t, g, holds, time.Millisecond, now); !slices.Equal(got, []int{9}) {
		t.Errorf("the holds of lanes %v are read, want 9", got)
	}
	if !g.lanes.at(9).open {
		t.Error("the lane is not open")
	}
}

// TestAFailedReadOfHoldsIsFollowedByAPause: while the database fails, a round
// does not read its next lanes at once.
func TestAFailedReadOfHoldsIsFollowedByAPause(t *testing.T) {
	g, holds, now := holdingLedger(8)
	readHolds(t, g, holds, 20*time.Millisecond, now)
	now = now.Add(time.Hour)
	r, ok := g.StartRead(ReadHolds, now)
	if !ok || len(g.plan.holds.left) == 0 {
		t.Fatal("the round has one read, want several")
	}
	g.ReadFailed(r, now)
	if w := g.wish(ReadHolds); !w.at.Equal(now.Add(250 * time.Millisecond)) {
		t.Errorf("the next read comes after %s, want 250 ms", w.at.Sub(now))
	}
}
