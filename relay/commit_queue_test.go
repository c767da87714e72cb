package relay

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// TestSelfPolling: at high rates the relay reads all its lanes without
// notifications, and writers announce nothing in these lanes. When the rate
// falls, the relay reads every lane once more, and for a while delivers nothing
// straight from memory: the event may have been delivered already.
func TestSelfPolling(t *testing.T) {
	db := &hubOnly{}
	defer db.hub.Listen(func(driver.Commit) {})()
	cfg, err := Config{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{db: database{Relay: db}, cfg: cfg, window: 100, commits: newHotQueue(cfg)}
	e.horizon.next = time.Now()
	for _, n := range []int{21, 9, 30} {
		l := newLane(driver.Lease{Lane: n})
		l.open, l.wake = true, false
		e.lanes.add(l)
	}
	e.prefer()
	e.plan.nextPoll = time.Now().Add(time.Hour)
	var ev waybill.Event
	wants := func() (n int) {
		for _, l := range e.lanes.list {
			if db.hub.NeedsPublish(&ev, l.number) {
				n++
			}
		}
		return n
	}
	e.plan.rate = calmRate
	if e.updateSelfPolling(); wants() != 3 || !e.past.complete() {
		t.Fatalf("low rate: %d of 3 lanes are announced, want 3", wants())
	}
	e.plan.rate = calmRate + 1
	if e.updateSelfPolling(); wants() != 0 {
		t.Fatalf("high rate: %d of 3 lanes are announced, want 0", wants())
	}
	if at := e.whenFast(); at.IsZero() || at.After(time.Now()) {
		t.Errorf("no lane is announced, and the next read is at %v", at)
	}
	if j, ok := e.fastJob(time.Now()); !ok || len(j.lanes) != 3 {
		t.Errorf("the relay reads %d of 3 lanes", len(j.lanes))
	}
	// A writer may announce a commit nevertheless. The event may have been
	// delivered and not remembered: its row has to be read.
	e.takeEntry(&driver.Entry{Lane: 21, Event: waybill.Event{ID: waybill.NewID(), Type: "Tested"}}, &driver.Commit{Checked: true, BeganAt: time.Now()})
	if l := e.lanes.at(21); l.unsettled != 0 || !l.wake {
		t.Error("an event is delivered straight from memory")
	}
	e.drain(e.lanes.at(9), time.Now())
	if wants() != 1 {
		t.Errorf("one lane is handed over: %d of 3 lanes are announced", wants())
	}
	e.plan.rate = 0
	e.updateSelfPolling()
	if wants() != 3 || e.past.complete() {
		t.Errorf("low rate again: %d of 3 lanes are announced, deliveries straight from memory: %v", wants(), e.past.complete())
	}
	for _, l := range e.lanes.list {
		if !l.wake {
			t.Errorf("lane %d is not read once more", l.number)
		}
	}
}

// TestRecentlyDeliveredMisses: an event that was not remembered may be
// announced for as long as others are remembered.
func TestRecentlyDeliveredMisses(t *testing.T) {
	var p recentlyDelivered
	now := time.Now()
	p.miss(now)
	if p.complete() {
		t.Error("complete at once")
	}
	p.turn = now.Add(-time.Second) // the first generation is over
	p.add(waybill.NewID())
	if p.complete() {
		t.Error("complete after one generation, which may have been a short one")
	}
	p.turn = now.Add(-time.Second)
	p.add(waybill.NewID())
	if !p.complete() {
		t.Error("not complete after two generations")
	}
}
