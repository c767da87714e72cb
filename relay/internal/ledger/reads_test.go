package ledger

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestUrgentReadBeginsAtTheHorizon: a transaction drew seq 41 early and commits
// after the relay has read up to 100. An urgent event of the same aggregate
// behind the backlog must not be taken before the event with seq 41, so the
// read of urgent events begins where the fast read does.
func TestUrgentReadBeginsAtTheHorizon(t *testing.T) {
	l := newLane(driver.Lease{Lane: 3}, nil, time.Time{})
	l.open, l.scan = true, scan{state: behind, position: 100, floor: 40}
	var g Ledger
	g.lanes.list = []*lane{l}
	r, ok := g.StartRead(ReadUrgent, time.Now())
	if !ok || len(r.Cursors) != 1 || r.Cursors[0] != (driver.Cursor{Lane: 3, After: 40}) {
		t.Errorf("the read begins at %+v, want lane 3 after 40", r.Cursors)
	}
}

// TestDueRowsAreNotReadInALoop: a full page of deferred rows is followed by a
// pause, also without a linger.
func TestDueRowsAreNotReadInALoop(t *testing.T) {
	now := time.Now()
	for linger, want := range map[time.Duration]time.Duration{-1: time.Millisecond, 0: time.Millisecond, 5 * time.Millisecond: 5 * time.Millisecond} {
		g := New(Config{Linger: linger, PollInterval: time.Second})
		g.LaneAcquired(driver.Lease{Lane: 1}, nil, now)
		g.dueTimes.next = now.Add(time.Hour)
		row := store.Row{Key: store.Key{Lane: 1, Seq: 1, ID: waybill.NewID()}}
		g.RowsRead(Read{Kind: ReadDue, lanes: g.lanes.list, Limit: 1}, Answer{Page: driver.Page{Rows: []store.Row{row}, Now: now}}, now)
		if got := g.dueTimes.next.Sub(now); got != want {
			t.Errorf("linger %v: the next read is due in %v, want %v", linger, got, want)
		}
	}
}
