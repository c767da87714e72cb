package ledger

import (
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// TestRecentFloor: the fast read begins behind the last row that was written
// more than two seconds ago. A transaction that drew a lower seq since then,
// and has not committed yet, is not passed.
func TestRecentFloor(t *testing.T) {
	var r recent
	base := time.Unix(1_700_000_000, 0)
	if got := r.floor(base, 50); got != 0 {
		t.Errorf("with nothing read: %d, want 0", got)
	}
	add := func(seq int64, after time.Duration) { r.add(seq, base.Add(after), base.Add(1500*time.Millisecond)) }
	add(5, -time.Hour)
	add(10, 0)
	add(12, time.Second)
	add(11, 1100*time.Millisecond) // committed out of order
	add(20, 1500*time.Millisecond)
	for after, want := range map[time.Duration]int64{
		1500 * time.Millisecond: 5, 1900 * time.Millisecond: 5, 2500 * time.Millisecond: 10, 3300 * time.Millisecond: 12, 4 * time.Second: 20,
	} {
		if got := r.floor(base.Add(after), 20); got != want {
			t.Errorf("%v later: %d, want %d", after, got, want)
		}
	}
	if got := r.floor(base.Add(4*time.Second), 15); got != 15 {
		t.Errorf("the floor is %d behind the position 15", got)
	}
	r.add(30, base.Add(3500*time.Millisecond), base.Add(3500*time.Millisecond)) // the period of row 20 is used again
	if got := r.floor(base.Add(3500*time.Millisecond), 30); got != 20 {
		t.Errorf("after a later row: %d, want 20", got)
	}
}

// TestRecentOfAnyTime: a producer with plain SQL writes any creation time. A
// row from long ago is old, and a row from the future is recent for two
// seconds.
func TestRecentOfAnyTime(t *testing.T) {
	var r recent
	now := time.Unix(1_700_000_000, 0)
	for i, year := range []int{1000, 1677, 1969} {
		r.add(int64(5+i), time.Date(year, 12, 31, 23, 59, 51, 300_000_000, time.UTC), now)
	}
	if got := r.floor(now, 50); got != 7 {
		t.Errorf("after rows from long ago: %d, want 7", got)
	}
	for _, year := range []int{2262, 2263, 9999} {
		r.add(30, time.Date(year, 12, 31, 23, 59, 59, 900_000_000, time.UTC), now)
	}
	if got := r.floor(now, 50); got != 7 {
		t.Errorf("after rows from the future: %d, want 7", got)
	}
	if got := r.floor(now.Add(time.Minute), 50); got != 30 {
		t.Errorf("a minute later: %d, want 30", got)
	}
}

// TestPassedOver: once a row of an aggregate was passed over, all rows behind
// it are, until they are read again in their order.
func TestPassedOver(t *testing.T) {
	l := newLane(driver.Lease{}, nil, time.Time{})
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
