package relay

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func anItem(hot bool, priority int, seq int64) *item {
	return &item{hot: hot, row: &store.Row{Key: store.Key{Seq: seq}, Event: waybill.Event{Priority: priority}}}
}

// TestQueuesPullTwoToOne: while both wait, two hot items are delivered for each
// cold one; otherwise items are delivered as they come.
func TestQueuesPullTwoToOne(t *testing.T) {
	var q queues
	for i := range 9 {
		q.push(anItem(true, 0, int64(i)))
	}
	for i := range 6 {
		q.push(anItem(false, 0, int64(i)))
	}
	got := ""
	for it := q.pop(); it != nil; it = q.pop() {
		it.state = inFlight
		if it.hot {
			got += "h"
		} else {
			got += "c"
		}
	}
	if want := "hhchhchhchhchcc"; got != want {
		t.Errorf("pulled %s, want %s", got, want)
	}
	if q.depth() != 0 {
		t.Errorf("depth %d at the end", q.depth())
	}
}

// TestPriority: at most three of four deliveries are urgent while others wait;
// urgent items go by priority, then by seq.
func TestPriority(t *testing.T) {
	var q queue
	for i := range 4 {
		q.push(anItem(false, 0, int64(100+i)))
	}
	for i, p := range []int{1, 9, 5, 9, 2, 7, 3} {
		q.push(anItem(false, p, int64(i)))
	}
	var got []int64
	for it := q.pop(); it != nil; it = q.pop() {
		it.state = inFlight
		got = append(got, it.row.Seq)
	}
	want := []int64{1, 3, 5, 100, 2, 6, 4, 101, 0, 102, 103}
	for i := range want {
		if i >= len(got) || got[i] != want[i] {
			t.Fatalf("order %v, want %v", got, want)
		}
	}
}

// TestDroppedItemsArePassedOver: items that were dropped while they waited are
// not delivered, and do not count.
func TestDroppedItemsArePassedOver(t *testing.T) {
	var q queues
	first, second := anItem(true, 0, 1), anItem(false, 3, 2)
	q.push(first)
	q.push(second)
	q.push(anItem(false, 0, 3))
	for _, it := range []*item{first, second} {
		q.forget(it)
		it.state = dropped
	}
	if q.depth() != 1 {
		t.Errorf("depth %d, want 1", q.depth())
	}
	if it := q.pop(); it == nil || it.row.Seq != 3 {
		t.Errorf("pulled %+v, want the third", it)
	}
	if it := q.pop(); it != nil {
		t.Errorf("pulled %+v from empty queues", it)
	}
}

// TestRecentFloor: the fast read begins before the first row of the last two
// seconds, or where reading stopped if no row is that recent.
func TestRecentFloor(t *testing.T) {
	var r recent
	base := time.Unix(1_700_000_000, 0)
	if got := r.floor(base, 50); got != 50 {
		t.Errorf("with nothing recent: %d, want 50", got)
	}
	add := func(seq int64, after time.Duration) { r.add(seq, base.Add(after), base.Add(1500*time.Millisecond)) }
	add(10, 0)
	add(12, time.Second)
	add(11, 1100*time.Millisecond) // committed out of order
	add(20, 1500*time.Millisecond)
	for after, want := range map[time.Duration]int64{
		1500 * time.Millisecond: 9, 1900 * time.Millisecond: 9, 2500 * time.Millisecond: 10, 3300 * time.Millisecond: 19, 4 * time.Second: 20,
	} {
		if got := r.floor(base.Add(after), 20); got != want {
			t.Errorf("%v later: %d, want %d", after, got, want)
		}
	}
	// An old row that maps to the same bucket does not change the bucket.
	add(1, -time.Hour)
	if got := r.floor(base.Add(1900*time.Millisecond), 20); got != 9 {
		t.Errorf("after an old row: %d, want 9", got)
	}
}

// TestRecentOfAnyTime: a producer with plain SQL writes any creation time. A
// row from long ago is not recent, and a row from the future is recent for two
// seconds.
func TestRecentOfAnyTime(t *testing.T) {
	var r recent
	now := time.Unix(1_700_000_000, 0)
	for _, year := range []int{1000, 1677, 1969} {
		r.add(5, time.Date(year, 12, 31, 23, 59, 59, 900_000_000, time.UTC), now)
	}
	if got := r.floor(now, 50); got != 50 {
		t.Errorf("after rows from long ago: %d, want 50", got)
	}
	for _, year := range []int{2262, 2263, 9999} {
		r.add(30, time.Date(year, 12, 31, 23, 59, 59, 900_000_000, time.UTC), now)
	}
	if got := r.floor(now, 50); got != 29 {
		t.Errorf("after rows from the future: %d, want 29", got)
	}
	if got := r.floor(now.Add(time.Minute), 50); got != 50 {
		t.Errorf("a minute later: %d, want 50", got)
	}
}

// TestRecentlyDelivered: an event that was settled before its writer announced
// it is remembered for at least half a minute, and the relay knows when there
// are too many events to remember.
func TestRecentlyDelivered(t *testing.T) {
	var p recentlyDelivered
	first := waybill.NewID()
	p.add(first)
	if !p.has(first) || !p.complete() {
		t.Error("the event is not remembered")
	}
	p.turn = time.Now().Add(-time.Second) // the generation is over
	p.add(waybill.NewID())
	if !p.has(first) {
		t.Error("the event is forgotten after one generation")
	}
	p.turn = time.Now().Add(-time.Second)
	p.add(waybill.NewID())
	if p.has(first) {
		t.Error("the event is never forgotten")
	}
	for range pastMost + 1 {
		p.add(waybill.NewID())
	}
	if p.complete() {
		t.Error("it reports complete although it is full")
	}
}

// TestPassedOver: once a row of an aggregate was passed over, all rows behind
// it are, until they are read again in their order.
func TestPassedOver(t *testing.T) {
	l := newLane(driver.Lease{})
	a := l.aggregate(store.Aggregate{ID: "a"})
	if a.passes(10) {
		t.Error("a row of an unknown aggregate was passed over")
	}
	a.pass(10)
	a.pass(12)
	if a.passes(9) || !a.passes(10) || !a.passes(11) || !a.passes(13) {
		t.Error("exactly the rows behind a row that was passed over must be passed over")
	}
	if a.passed != 10 || a.passedTo != 12 {
		t.Errorf("passed over: %d to %d, want 10 to 12", a.passed, a.passedTo)
	}
	a.passed, a.passedTo = 0, 0
	a.hold(holder{seq: 5, id: waybill.NewID()})
	if a.passes(4) || !a.passes(6) {
		t.Error("a hold must hold exactly the rows behind it")
	}
}

// TestChunks: calls of a serial sink take about the same time, whatever one
// event takes.
func TestChunks(t *testing.T) {
	for each, want := range map[time.Duration]int{time.Millisecond: 1, 10 * time.Microsecond: 20, 100 * time.Nanosecond: maxChunk} {
		var c chunker
		if c.size() != 1 {
			t.Errorf("the first call has %d events", c.size())
		}
		for range 50 {
			n := c.size()
			c.add(n, time.Duration(n)*each)
		}
		if got := c.size(); got != want {
			t.Errorf("at %v each: %d events, want %d", each, got, want)
		}
	}
}
