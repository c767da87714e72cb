package ledger

import (
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store/driver"
)

// TestSelfPolling: at high rates the relay reads all its lanes without
// notifications. When the rate falls, the relay reads every lane once more, and
// for a while delivers nothing straight from memory: the event may have been
// delivered already.
func TestSelfPolling(t *testing.T) {
	now := time.Now()
	g := New(Config{BatchSize: 500, HotQueue: 1000, ColdQueue: 1000, PollInterval: 2 * time.Second})
	g.now, g.horizon.next = now, now
	for _, n := range []int{21, 9, 30} {
		g.LaneAcquired(driver.Lease{Lane: n}, nil, now)
		l := g.lanes.at(n)
		l.open, l.scan.woken = true, false
	}
	g.plan.nextPoll = now.Add(time.Hour)
	g.plan.rate = calmRate
	if g.updateSelfPolling(); g.SelfPolling() || !g.past.complete(now) {
		t.Fatal("low rate: lanes are not announced")
	}
	g.plan.rate = calmRate + 1
	if g.updateSelfPolling(); !g.SelfPolling() {
		t.Fatal("high rate: lanes are announced")
	}
	if w := g.wish(ReadFast); !w.wanted || w.at.After(now) {
		t.Errorf("no lane is announced, and the next read is at %v", w.at)
	}
	if r, ok := g.StartRead(ReadFast, now); !ok || len(r.Lanes) != 3 {
		t.Errorf("the relay reads %d of 3 lanes", len(r.Lanes))
	}
	// A writer may announce a commit nevertheless. The event may have been
	// delivered and not remembered: its row has to be read.
	g.Announced([]driver.Commit{{
		Checked: true, BeganAt: now, Entries: []driver.Entry{{Lane: 21, Event: waybill.Event{ID: waybill.NewID(), Type: "Tested"}}},
	}}, now)
	if l := g.lanes.at(21); l.unsettled != 0 || !l.scan.woken {
		t.Error("an event is delivered straight from memory")
	}
	g.plan.rate = 0
	g.updateSelfPolling()
	if g.SelfPolling() || g.past.complete(now) {
		t.Errorf("low rate again: announced: %v, deliveries straight from memory: %v", !g.SelfPolling(), g.past.complete(now))
	}
	for _, l := range g.lanes.list {
		if !l.scan.woken {
			t.Errorf("lane %d is not read once more", l.number)
		}
	}
}

// TestRecentlyDelivered: an event that was settled before its writer announced
// it is remembered for at least half a minute, and the relay knows when there
// are too many events to remember.
func TestRecentlyDelivered(t *testing.T) {
	var p recentlyDelivered
	first := waybill.NewID()
	p.add(first, time.Now())
	if !p.has(first) || !p.complete(time.Now()) {
		t.Error("the event is not remembered")
	}
	p.turn = time.Now().Add(-time.Second) // the generation is over
	p.add(waybill.NewID(), time.Now())
	if !p.has(first) {
		t.Error("the event is forgotten after one generation")
	}
	p.turn = time.Now().Add(-time.Second)
	p.add(waybill.NewID(), time.Now())
	if p.has(first) {
		t.Error("the event is never forgotten")
	}
	for range maxPast + 1 {
		p.add(waybill.NewID(), time.Now())
	}
	if p.complete(time.Now()) {
		t.Error("it reports complete although it is full")
	}
}

// TestRecentlyDeliveredMisses: an event that was not remembered may be
// announced for as long as others are remembered.
func TestRecentlyDeliveredMisses(t *testing.T) {
	var p recentlyDelivered
	now := time.Now()
	p.miss(now)
	if p.complete(now) {
		t.Error("complete at once")
	}
	p.turn = now.Add(-time.Second) // the first generation is over
	p.add(waybill.NewID(), now)
	if p.complete(now) {
		t.Error("complete after one generation, which may have been a short one")
	}
	p.turn = now.Add(-time.Second)
	p.add(waybill.NewID(), now)
	if !p.complete(now) {
		t.Error("not complete after two generations")
	}
}

// TestEveryAnnouncementIsCounted: an event that a commit announced is taken or
// dropped, once, and its slot of the commit queue is freed.
func TestEveryAnnouncementIsCounted(t *testing.T) {
	for _, c := range []struct {
		what   string
		script []string
		taken  int
		why    observe.Drop // unless it is taken
	}{
		{"delivered from memory", []string{"read fast", "announce 1:n1", "deliver"}, 1, 0},
		{"read and delivered", []string{"read fast", "announce 1:e1/a", "read fast e1", "deliver"}, 1, 0},
		{"read first", []string{"read fast 1:n1", "announce n1"}, 0, observe.DropAlreadyRead},
		{"behind a hold", []string{"read due 1:e1/a,holds", "announce 2:e2/a", "read fast e2"}, 0, observe.DropBlocked},
		{"of a destination that is unavailable", []string{
			"read fast 1:n1", "deliver", "result n1 unavailable", "announce 2:e1/a", "read due 1:e2/a,holds", "read fast e1",
		}, 0, observe.DropBlocked},
		{"delayed", []string{"read fast", "announce 1:n1,delay=5s"}, 0, observe.DropNotDue},
		{"read before it is due", []string{"read fast", "announce 1:e1/a", "read fast e1,due=1h"}, 0, observe.DropNotDue},
		{"too many", []string{"config hot=-1", "announce 1:e1/a"}, 0, observe.DropQueueFull},
		{"of another node", []string{"announce 1:n1,lane=7"}, 0, observe.DropNotOwned},
		{"of a lane that is lost", []string{"announce 1:e1/a", "lose 1"}, 0, observe.DropNotOwned},
		{"while the relay stops", []string{"announce 1:e1/a", "stop"}, 0, observe.DropStopped},
		{"rolled back", append([]string{"announce 1:e1/a"}, slices.Repeat([]string{"wake", "read fast"}, maxMissed+1)...), 0, observe.DropRowMissing},
	} {
		s := newScript(t)
		for _, line := range append([]string{"begin 1"}, c.script...) {
			if err := s.run(strings.Fields(line)); err != nil {
				t.Fatalf("%s: %s: %v", c.what, line, err)
			}
		}
		want := Counts{HotTaken: c.taken, ColdTaken: s.counts.ColdTaken, Freed: 1}
		if c.taken == 0 {
			want.Dropped[c.why] = 1
		}
		if s.counts != want {
			t.Errorf("%s: the counts are %+v, want %+v", c.what, s.counts, want)
		}
	}
}
