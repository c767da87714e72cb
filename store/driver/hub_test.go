package driver_test

import (
	"context"
	"fmt"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/memstore"
)

func TestHubCallsEveryListenerUntilItStops(t *testing.T) {
	var hub driver.Hub
	hub.Wake() // no listener: no effect
	var one, two []int
	stopOne := hub.Listen(func(c driver.Commit) { one = append(one, len(c.Entries)) })
	stopTwo := hub.Listen(func(c driver.Commit) { two = append(two, len(c.Entries)) })
	hub.Publish(driver.Commit{Entries: make([]driver.Entry, 2), Checked: true})
	hub.Wake()
	stopOne()
	stopOne() // a second call has no effect
	hub.Publish(driver.Commit{Entries: make([]driver.Entry, 1)})
	stopTwo()
	hub.Wake()
	if !slices.Equal(one, []int{2, 0}) || !slices.Equal(two, []int{2, 0, 1}) {
		t.Errorf("the listeners received %v and %v", one, two)
	}
}

// After stop has returned, the listener is not called, even if a commit is
// published at that moment.
func TestHubStopIsFinal(t *testing.T) {
	var hub driver.Hub
	var wg sync.WaitGroup
	done := make(chan struct{})
	for range 4 {
		wg.Go(func() {
			for {
				select {
				case <-done:
					return
				default:
					hub.Wake()
				}
			}
		})
	}
	for range 200 {
		var stopped atomic.Bool
		stop := hub.Listen(func(driver.Commit) {
			if stopped.Load() {
				t.Error("a listener was called after it was stopped")
			}
		})
		stop()
		stopped.Store(true)
	}
	close(done)
	wg.Wait()
}

func TestHubAnyLane(t *testing.T) {
	var hub driver.Hub
	lanes := func(n int) map[int]bool {
		seen := map[int]bool{}
		for range 500 {
			seen[hub.AnyLane(n)] = true
		}
		return seen
	}
	if seen := lanes(4); len(seen) != 4 || seen[4] || seen[-1] {
		t.Errorf("of 4 lanes it chose %v", seen)
	}
	if seen := lanes(1); len(seen) != 1 || !seen[0] {
		t.Errorf("of one lane it chose %v", seen)
	}
	if seen := lanes(0); len(seen) != 1 || !seen[0] {
		t.Errorf("of no lanes it chose %v", seen)
	}
	mine := []int{2, 3}
	hub.SetLocalLanes(mine)
	mine[0] = 0 // the hub has copied the slice
	if seen := lanes(4); len(seen) != 2 || !seen[2] || !seen[3] {
		t.Errorf("it prefers 2 and 3 and chose %v", seen)
	}
	hub.SetLocalLanes([]int{99}) // not a lane of this outbox
	if seen := lanes(4); len(seen) != 4 || seen[99] {
		t.Errorf("it chose %v of 4 lanes", seen)
	}
	hub.SetLocalLanes(nil)
	if seen := lanes(4); len(seen) != 4 {
		t.Errorf("without a preference it chose %v", seen)
	}
}

// A relay listens at the hub of its store and is notified of commits at once.
func ExampleHub_Listen() {
	db, err := memstore.New(memstore.Config{Lanes: 4})
	if err != nil {
		panic(err)
	}
	stop := db.Driver().Outbox.Local().Listen(func(c driver.Commit) {
		for _, e := range c.Entries {
			fmt.Println("committed:", e.Event.Type, "in lane", e.Lane)
		}
	})
	defer stop()
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		panic(err)
	}
	ev := waybill.NewEvent("OrderPlaced", nil)
	ev.AggregateType, ev.AggregateID = "order", "o-1"
	err = box.InTx(context.Background(), func(ctx context.Context, _ *memstore.Tx) error { return box.Emit(ctx, ev) })
	fmt.Println(err)
	// Output:
	// committed: OrderPlaced in lane 3
	// <nil>
}

func ExampleLaneOf() {
	for _, id := range []string{"o-1", "o-2", "o-3", "o-1"} {
		fmt.Print(driver.LaneOf("", "order", id, 32), " ")
	}
	// Output: 3 25 14 3
}

func ExampleCutError() {
	fmt.Println(driver.CutError("broken \xff pipe\x00"))
	// Output: broken ? pipe?
}

// Other processes are woken for lanes that no relay of this process owns and
// for bare wake-ups, and for nothing else.
func TestOnRemoteCommit(t *testing.T) {
	var h driver.Hub
	woken := 0
	h.OnRemoteCommit(func() { woken++ })
	if !h.HasListeners() {
		t.Error("a hub with OnRemoteCommit has no listeners")
	}
	h.SetLocalLanes([]int{1, 2})
	entry := func(lane int) driver.Entry { return driver.Entry{Lane: lane} }
	for _, step := range []struct {
		c    driver.Commit
		want int
	}{
		{driver.Commit{Entries: []driver.Entry{entry(1), entry(2)}}, 0},
		{driver.Commit{Entries: []driver.Entry{entry(1), entry(3)}}, 1},
		{driver.Commit{}, 2},
	} {
		h.Publish(step.c)
		if woken != step.want {
			t.Errorf("after %+v other processes were woken %d times, want %d", step.c, woken, step.want)
		}
	}
}

// With self-polling, commits in the lanes of the only listener need no
// notification, unless the event is not due yet.
func TestSelfPolling(t *testing.T) {
	var h driver.Hub
	var now, later, someday waybill.Event
	later.Delay = time.Second
	someday.AvailableAt = time.Now().Add(time.Hour)
	stop := h.Listen(func(driver.Commit) {})
	h.SetLocalLanes([]int{5, 2})
	if !h.NeedsPublish(&now, 2) {
		t.Error("no self-polling, and an event needs no publish")
	}
	h.SetSelfPolling(true)
	for lane, wants := range map[int]bool{-1: true, 0: true, 2: false, 3: true, 5: false, 6: true} {
		if h.NeedsPublish(&now, lane) != wants {
			t.Errorf("lane %d: needs a publish: %v", lane, !wants)
		}
	}
	if !h.NeedsPublish(&later, 2) || !h.NeedsPublish(&someday, 2) {
		t.Error("an event that is not due needs no publish")
	}
	h.SetLocalLanes([]int{3})
	if !h.NeedsPublish(&now, 2) || h.NeedsPublish(&now, 3) {
		t.Error("the local lanes have changed, but NeedsPublish has not")
	}
	h.SetSelfPolling(false)
	if !h.NeedsPublish(&now, 3) {
		t.Error("self-polling has ended, and an event needs no publish")
	}
	h.SetSelfPolling(true)
	other := h.Listen(func(driver.Commit) {})
	if !h.NeedsPublish(&now, 3) {
		t.Error("another listener misses an event")
	}
	stop() // also ends self-polling
	if !h.NeedsPublish(&now, 3) {
		t.Error("the listener has stopped, and an event needs no publish")
	}
	other()
}
