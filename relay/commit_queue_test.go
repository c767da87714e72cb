package relay

import (
	"log/slog"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store/driver"
)

// hubOnly is a store that has only a hub.
type hubOnly struct {
	driver.Relay
	hub driver.Hub
}

func (h *hubOnly) Local() *driver.Hub { return &h.hub }

// testEngine returns an engine that owns lanes and has started nothing.
func testEngine(t *testing.T, db driver.Relay, lanes ...int) *engine {
	t.Helper()
	cfg, err := Config{Logger: slog.New(slog.DiscardHandler)}.complete()
	if err != nil {
		t.Fatal(err)
	}
	e := newEngine(database{Relay: db}, answers{nil}, cfg)
	t.Cleanup(func() { e.timer.Stop() })
	for _, n := range lanes {
		e.main.ledger.LaneAcquired(driver.Lease{Lane: n}, nil, time.Now())
	}
	e.report(time.Now())
	return e
}

// TestPrefersItsLanes: writers of this process learn which lanes the relay
// owns, by their numbers, without those that are being handed over.
func TestPrefersItsLanes(t *testing.T) {
	db := &hubOnly{}
	e := testEngine(t, db, 21, 9, 30)
	e.main.ledger.DrainLane(9, time.Now(), time.Now())
	e.report(time.Now())
	seen := make(map[int]bool)
	for range 200 {
		seen[db.hub.AnyLane(32)] = true
	}
	if len(seen) != 2 || !seen[21] || !seen[30] {
		t.Errorf("writers choose %v, want 21 and 30", seen)
	}
}

// TestSelfPollingIsReported: while the relay polls its lanes continuously,
// writers announce nothing in these lanes, and in lanes that are handed over
// they do.
func TestSelfPollingIsReported(t *testing.T) {
	db := &hubOnly{}
	defer db.hub.Listen(func(driver.Commit) {})()
	e := testEngine(t, db, 21, 9, 30)
	var ev waybill.Event
	announced := func() (n int) {
		e.report(time.Now())
		for _, lane := range []int{21, 9, 30} {
			if db.hub.NeedsPublish(&ev, lane) {
				n++
			}
		}
		return n
	}
	if n := announced(); n != 3 {
		t.Fatalf("low rate: %d of 3 lanes are announced, want 3", n)
	}
	e.selfPolling = true
	db.hub.SetSelfPolling(true)
	if n := announced(); n != 3 {
		t.Errorf("low rate again: %d of 3 lanes are announced, want 3", n)
	}
	db.hub.SetSelfPolling(true)
	e.main.ledger.DrainLane(9, time.Now(), time.Now())
	if n := announced(); n != 1 {
		t.Errorf("one lane is handed over: %d of 3 lanes are announced, want 1", n)
	}
}

// TestSlotsAreFreed: an announced event that the relay does not take frees its
// slot of the commit queue. Otherwise the queue fills up for good.
func TestSlotsAreFreed(t *testing.T) {
	e := testEngine(t, &hubOnly{}, 1)
	e.commits.offer(driver.Commit{Entries: []driver.Entry{{Lane: 9, Event: waybill.Event{ID: waybill.NewID()}}}})
	if n := e.commits.depth.Load(); n != 1 {
		t.Fatalf("%d slots are taken, want 1", n)
	}
	e.takeCommits()
	e.report(time.Now())
	if n := e.commits.depth.Load(); n != 0 {
		t.Errorf("%d slots are taken after the event went to another node", n)
	}
}

// TestHotQueueIsBoundedInBytes: events that find no room in MaxBytes are read
// from the table, and the reads are woken. What the engine has taken leaves
// room.
func TestHotQueueIsBoundedInBytes(t *testing.T) {
	var dropped int
	q := newHotQueue(Config{
		HotQueue: 100, MaxBytes: 1000, Logger: slog.New(slog.DiscardHandler),
		Observe: observe.Hooks{HotDropped: func(info observe.HotDroppedInfo) { dropped += info.Events }},
	})
	commit := func(n int) driver.Commit {
		var c driver.Commit
		for range n {
			c.Entries = append(c.Entries, driver.Entry{Event: waybill.Event{Payload: make([]byte, 600)}})
		}
		return c
	}
	for range 2 {
		q.offer(commit(3))
		q.offer(commit(1))
		var entries, wakes int
		q.take(func(commits []driver.Commit) {
			for _, c := range commits {
				entries += len(c.Entries)
				if len(c.Entries) == 0 {
					wakes++
				}
			}
		})
		if entries != 2 || wakes == 0 || dropped != 2 || q.depth.Load() != 2 {
			t.Errorf("%d events are queued, %d dropped, %d count as queued, %d wake-ups; want 2, 2, 2 and some", entries, dropped, q.depth.Load(), wakes)
		}
		dropped = 0
		q.done(2)
	}
}
