package waybill

import (
	"slices"
	"testing"
)

func larger(a, b ID) bool { return slices.Compare(a[:], b[:]) > 0 }

// Ids increase while the clock stands still, goes back or jumps.
func TestIDSourceNeverGoesBack(t *testing.T) {
	var s idSource
	var last ID
	for _, ms := range []uint64{1000, 1000, 1000, 1001, 999, 1, 0, 1001, 1002, 500, 5000, 5000, 4999} {
		id := s.next(ms)
		if !larger(id, last) {
			t.Errorf("at %d ms the id is %s, not larger than %s before it", ms, id, last)
		}
		last = id
	}
}

// After the clock was set back, new ids count up from the last one instead of
// repeating ids of the old time.
func TestIDSourceKeepsItsTimeWhenTheClockGoesBack(t *testing.T) {
	var s idSource
	first := s.next(1_000_000)
	back := s.next(10)
	if got := back.millis(); got != 1_000_000 {
		t.Errorf("after the clock was set back, an id is of millisecond %d, want the last one's", got)
	}
	want := first
	if !want.increment() || back != want {
		t.Errorf("the id after %s is %s, want the next number %s", first, back, want)
	}
	if ahead := s.next(1_000_001); ahead.millis() != 1_000_001 {
		t.Errorf("when the clock has caught up, an id is of millisecond %d", ahead.millis())
	}
}

// A counter that overflows continues in the next millisecond instead of at
// zero.
func TestIDSourceRunsOver(t *testing.T) {
	// 1000 ms
	full := idSource{last: ID{0, 0, 0, 0, 3, 232, 255, 255, 255, 255, 255, 255, 255, 255, 255, 254}}
	last := full.next(1000)
	if last.millis() != 1000 || last[15] != 255 {
		t.Fatalf("the last id of the millisecond is %s", last)
	}
	next := full.next(1000)
	if next.millis() != 1001 || !larger(next, last) {
		t.Errorf("behind the last id of millisecond 1000 comes %s of millisecond %d", next, next.millis())
	}
}

// New randomness leaves room for the counter.
func TestIDSourceKeepsTheTopBitClear(t *testing.T) {
	var s idSource
	seen := map[ID]bool{}
	for ms := range uint64(2000) {
		id := s.next(ms + 1)
		if id[6]&0x80 != 0 {
			t.Fatalf("id %s starts in the upper half of its millisecond", id)
		}
		if id.millis() != ms+1 {
			t.Fatalf("id %s is of millisecond %d, want %d", id, id.millis(), ms+1)
		}
		id[0], id[1], id[2], id[3], id[4], id[5] = 0, 0, 0, 0, 0, 0
		if seen[id] {
			t.Fatalf("two milliseconds have the same randomness: %s", id)
		}
		seen[id] = true
	}
}
