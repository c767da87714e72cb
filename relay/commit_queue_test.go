package relay

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// TestSparesWriters: while many events come the relay reads all its lanes without being told, and writers say nothing about those. When that ends it looks
// everywhere once more, and for a while delivers nothing straight from memory: it may have been delivered already.
func TestSparesWriters(t *testing.T) {
	db := &hubOnly{}
	defer db.hub.Listen(func(store.Commit) {})()
	cfg, err := Config{}.complete()
	if err != nil {
		t.Fatal(err)
	}
	e := &engine{db: db, cfg: cfg, window: 100, commits: newHotQueue(cfg)}
	e.horizon.next = time.Now()
	for _, n := range []int{21, 9, 30} {
		l := newLane(store.Lease{Lane: n})
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
	if e.spare(); wants() != 3 || !e.past.complete() {
		t.Fatalf("little is coming: %d of 3 lanes are told of", wants())
	}
	e.plan.rate = calmRate + 1
	if e.spare(); wants() != 0 {
		t.Fatalf("much is coming: %d of 3 lanes are told of", wants())
	}
	if at := e.whenFast(); at.IsZero() || at.After(time.Now()) {
		t.Errorf("nobody is told of anything, and the next read is at %v", at)
	}
	if j, ok := e.fastJob(time.Now()); !ok || len(j.lanes) != 3 {
		t.Errorf("it reads %d of 3 lanes", len(j.lanes))
	}
	// Somebody may speak all the same. It may be about an event that was delivered and not remembered: its row has to be seen.
	e.takeEntry(&store.Entry{Lane: 21, Event: waybill.Event{ID: waybill.NewID(), Type: "Tested"}}, &store.Commit{Checked: true, BeganAt: time.Now()})
	if l := e.lanes.at(21); l.unsettled != 0 || !l.wake {
		t.Error("an event is delivered straight from memory")
	}
	e.drain(e.lanes.at(9), time.Now())
	if wants() != 1 {
		t.Errorf("one lane is handed over: %d of 3 are told of", wants())
	}
	e.plan.rate = 0
	e.spare()
	if wants() != 3 || e.past.complete() {
		t.Errorf("it is over: %d of 3 lanes are told of, and straight from memory: %v", wants(), e.past.complete())
	}
	for _, l := range e.lanes.list {
		if !l.wake {
			t.Errorf("lane %d is not looked at once more", l.number)
		}
	}
}

// TestPastMisses: what was not remembered may be announced for as long as others are remembered.
func TestPastMisses(t *testing.T) {
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
