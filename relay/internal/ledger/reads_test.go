package ledger

import (
	"testing"
	"time"

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
