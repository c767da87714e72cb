package ledger

import (
	"fmt"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// memoryWorld is a ledger that owns lane 1 and reads rows of it.
type memoryWorld struct {
	*Ledger
	t   *testing.T
	now time.Time
	seq int64
}

func newMemoryWorld(t *testing.T, cfg Config) *memoryWorld {
	t.Helper()
	cfg.Backoff = func(int) time.Duration { return time.Hour }
	cfg.Destination = func(ev *waybill.Event) string { return ev.Topic }
	w := &memoryWorld{Ledger: New(cfg), t: t, now: time.Now()}
	w.LaneAcquired(driver.Lease{Lane: 1, Epoch: 1}, nil, w.now)
	l := w.lanes.at(1)
	l.open, w.horizon.next = true, w.now.Add(time.Hour)
	return w
}

// read reads new rows of an aggregate for a destination, and returns the page.
func (w *memoryWorld) read(n, size int, aggregate, dest string) []store.Row {
	w.t.Helper()
	rows := make([]store.Row, n)
	for i := range rows {
		w.seq++
		ev := waybill.Event{ID: waybill.NewID(), Type: "Tested", Topic: dest, Payload: make([]byte, size)}
		if aggregate != "" {
			ev.AggregateType, ev.AggregateID = "thing", aggregate
		}
		rows[i] = store.Row{Key: store.Key{Lane: 1, Seq: w.seq, ID: ev.ID}, Event: ev, CreatedAt: w.now}
	}
	l := w.lanes.at(1)
	l.scan.woken = true
	r, ok := w.StartRead(ReadFast, w.now)
	if !ok {
		w.t.Fatal("nothing is read")
	}
	w.RowsRead(r, Answer{Page: driver.Page{Rows: rows, Now: w.now}}, w.now)
	return rows
}

// deliver delivers the next events with one result.
func (w *memoryWorld) deliver(limit int, err error) int {
	w.t.Helper()
	items := w.NextBatch(nil, limit, w.now)
	for _, it := range items {
		d := it.Delivery()
		w.DeliveryEnded(it, &d, err, w.now)
	}
	return len(items)
}

func (w *memoryWorld) settle() {
	w.t.Helper()
	w.pending.since = time.Time{}
	s, ok := w.NextSettlement(w.now)
	if !ok {
		w.t.Fatal("nothing is settled")
	}
	w.Settled(s, driver.Settled{Held: []int{1}}, 0, w.now)
}

// TestPayloadsAreReleased: a page of rows stays in memory as long as one of its
// events does. The payloads of its other rows do not: those that were settled,
// that found no room, or that were in memory already.
func TestPayloadsAreReleased(t *testing.T) {
	w := newMemoryWorld(t, Config{BatchSize: 10, ColdQueue: 3, MaxBytes: 1 << 20})
	rows := w.read(5, 100, "", "")
	held := func() (out string) {
		for i := range rows {
			out += fmt.Sprint(len(rows[i].Event.Payload), " ")
		}
		return out
	}
	if got, want := held(), "100 100 100 0 0 "; got != want {
		t.Errorf("three of five rows were taken: the payloads are %s, want %s", got, want)
	}
	if n := w.deliver(2, nil); n != 2 {
		t.Fatalf("%d events were delivered", n)
	}
	w.settle()
	if got, want := held(), "0 0 100 0 0 "; got != want {
		t.Errorf("two were settled: the payloads are %s, want %s", got, want)
	}
	if _, cold, bytes := w.Depths(); cold != 1 || bytes != 100 {
		t.Errorf("%d events of %d bytes are in memory, want 1 of 100", cold, bytes)
	}
}

// TestAnUnavailableDestinationTakesNoRoom: events that wait for an unavailable
// destination leave the room to the events of other destinations, also those
// behind them in their aggregate. The destination is probed all the same.
func TestAnUnavailableDestinationTakesNoRoom(t *testing.T) {
	w := newMemoryWorld(t, Config{BatchSize: 20, ColdQueue: 20, MaxBytes: 20 << 10})
	w.read(20, 1<<10, "a", "down")
	if n := w.deliver(1, waybill.Unavailable(fmt.Errorf("no answer"))); n != 1 {
		t.Fatalf("%d events were delivered", n)
	}
	if _, cold, bytes := w.Depths(); cold != 0 || bytes != 0 || !w.hasRoom() {
		t.Errorf("%d events of %d bytes are in memory, want none", cold, bytes)
	}
	// Probes take at most an eighth of the room.
	w.read(20, 1<<10, "", "down")
	if parked := w.dests["down"].parked; len(parked) != 3 {
		t.Errorf("%d events of 1 KiB wait as probes, want 3", len(parked))
	}
	w.read(20, 1<<10, "", "up")
	if n := w.deliver(100, nil); n != 20 {
		t.Errorf("%d events of the other destination are delivered, want 20", n)
	}
}

// TestReadsFollowTheSizeOfRows: a read asks for as many rows as fit. Larger
// rows count at once, smaller ones in time.
func TestReadsFollowTheSizeOfRows(t *testing.T) {
	w := newMemoryWorld(t, Config{BatchSize: 1000, ColdQueue: 100_000, MaxBytes: 1 << 30})
	w.window = 100_000
	limit := func() int {
		t.Helper()
		w.lanes.at(1).scan.woken = true
		r, ok := w.StartRead(ReadFast, w.now)
		if !ok {
			t.Fatal("nothing is read")
		}
		w.ReadFailed(r, w.now)
		w.plan.lastFast = w.now
		return r.Limit
	}
	if got := limit(); got != 1000 {
		t.Errorf("rows of unknown size: %d are read, want 1000", got)
	}
	w.read(2, 1<<20, "", "")
	if got := limit(); got != 8 {
		t.Errorf("rows of 1 MiB: %d are read, want 8", got)
	}
	for range 5 {
		w.read(8, 10, "", "")
	}
	if got := limit(); got < 9 || got > 100 {
		t.Errorf("after some small rows %d are read, want 9 to 100", got)
	}
	for range 100 {
		w.read(8, 10, "", "")
	}
	if got := limit(); got < 1000 {
		t.Errorf("after many small rows %d are read, want at least 1000", got)
	}
}

// TestABacklogIsReadWithLittleRoom: a read includes a lane with a backlog
// although there is room for few rows, and other lanes are read as well.
func TestABacklogIsReadWithLittleRoom(t *testing.T) {
	w := newMemoryWorld(t, Config{BatchSize: 50, ColdQueue: 100, MaxBytes: 10})
	w.memory.rowSize = 2
	for n := 2; n <= 7; n++ {
		w.LaneAcquired(driver.Lease{Lane: n, Epoch: 1}, nil, w.now)
		w.lanes.at(n).open = true
	}
	w.lanes.at(3).scan.state, w.lanes.at(4).scan.state = behind, behind
	reads := make(map[int]int)
	for range 14 {
		for _, l := range w.lanes.list {
			l.scan.woken = true
		}
		r, ok := w.StartRead(ReadFast, w.now)
		if !ok {
			t.Fatal("nothing is read")
		}
		w.ReadFailed(r, w.now)
		for _, n := range r.Lanes {
			reads[n]++
		}
	}
	if reads[3]+reads[4] != 14 || reads[3] == 0 || reads[4] == 0 || reads[1] != 14 {
		t.Errorf("in 14 reads, the lanes 3 and 4 with a backlog were read %d and %d times, lane 1 %d times", reads[3], reads[4], reads[1])
	}
}
