package relay

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store/driver"
)

// TestReleaseInGoodOrder: a lane is released in good order when no delivery is
// in flight, and no suspect of a crashed owner is left.
func TestReleaseInGoodOrder(t *testing.T) {
	now := time.Now()
	for _, c := range []struct {
		what         string
		lane         ledger.Lane
		stopping     bool
		clean, dirty bool
	}{
		{"no delivery is in flight", ledger.Lane{DrainBy: now.Add(time.Second)}, false, true, false},
		{"a delivery is in flight", ledger.Lane{DrainBy: now.Add(time.Second), Busy: true}, false, false, false},
		{"the drain has timed out", ledger.Lane{DrainBy: now, Busy: true}, false, false, true},
		{"the drain has timed out at a stop", ledger.Lane{DrainBy: now, Busy: true}, true, false, false},
		{"the sink has not returned after a stop", ledger.Lane{DrainBy: now.Add(-workerTime), Busy: true}, true, false, true},
		{"rows are suspect", ledger.Lane{DrainBy: now.Add(time.Second), Suspects: true}, false, false, true},
		{"rows are suspect, and a delivery is in flight", ledger.Lane{DrainBy: now.Add(time.Second), Busy: true, Suspects: true}, false, false, false},
	} {
		e := engine{stopping: c.stopping}
		c.lane.Draining, c.lane.Lease = true, driver.Lease{Lane: 3}
		clean, dirty := e.toRelease([]ledger.Lane{c.lane}, now)
		if len(clean) == 1 != c.clean || len(dirty) == 1 != c.dirty {
			t.Errorf("%s: in good order %v, otherwise %v", c.what, clean, dirty)
		}
	}
}

// TestViolationDropsTheLane: a forbidden change of an event's state costs the
// lane, and nothing else: the next owner begins with what the tables say.
func TestViolationDropsTheLane(t *testing.T) {
	e := testEngine(t, &hubOnly{}, 3, 4)
	e.main.fact(ledger.Violation{Lane: 3, From: "settled", To: "queued"}, time.Now())
	if lanes := e.main.ledger.Lanes(); len(lanes) != 1 || lanes[0].Lease.Lane != 4 {
		t.Errorf("the relay has the lanes %+v, want lane 4", lanes)
	}
}
