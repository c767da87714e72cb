package kafkabroker

import (
	"slices"
	"testing"
)

func committable(o *offsets, topic string, number int32) int64 {
	at, ok := o.ready()[topic][number]
	if !ok {
		return -1
	}
	return at.Offset
}

func TestOnlyWhatHasNothingOpenBeforeItIsCommitted(t *testing.T) {
	var o offsets
	handles := make([]handle, 0, 4)
	// Kafka's offsets have gaps.
	for _, offset := range []int64{5, 6, 9, 10} {
		handles = append(handles, o.take("orders", 0, offset, 0))
	}
	for _, step := range []struct {
		done int
		want int64
	}{{2, -1}, {1, -1}, {0, 10}, {3, 11}} {
		o.done(handles[step.done])
		if got := committable(&o, "orders", 0); got != step.want {
			t.Errorf("after record %d is done, %d may be committed, want %d", step.done, got, step.want)
		}
	}
	o.commit(o.ready())
	if got := committable(&o, "orders", 0); got != -1 {
		t.Errorf("%d is to be committed once more", got)
	}
}

// A partition that was revoked and reassigned starts over: a late answer for
// the former assignment must not move its offset.
func TestAnAnswerForAFormerAssignmentMovesNothing(t *testing.T) {
	var o offsets
	old := o.take("orders", 0, 7, 0)
	o.forget(map[string][]int32{"orders": {0}})
	again := o.take("orders", 0, 9, 0) // another member has done the two before it
	o.done(old)
	if got := committable(&o, "orders", 0); got != -1 {
		t.Errorf("%d may be committed, though the record is in flight", got)
	}
	o.done(again)
	if got := committable(&o, "orders", 0); got != 10 {
		t.Errorf("%d may be committed, want 10", got)
	}
}

// Records of one aggregate may be in two topics. The receiver would treat two
// records with the same order as one.
func TestEveryRecordHasAnOrderOfItsOwn(t *testing.T) {
	var o offsets
	var last []uint64
	for _, at := range []int64{0, 7, 1 << 43, 1 << 44, 1<<62 + 1} {
		var places [][]uint64
		for _, h := range []handle{o.take("orders", 0, at, 0), o.take("bills", 0, at, 0), o.take("orders", 0, at+1, 0)} {
			n, within := h.order()
			places = append(places, append([]uint64{n}, within[:]...))
		}
		a, b, later := places[0], places[1], places[2]
		if slices.Equal(a, b) || a[0] == 0 {
			t.Errorf("offset %d: places %d and %d", at, a, b)
		}
		if slices.Compare(a, later) >= 0 || slices.Compare(b, later) >= 0 {
			t.Errorf("offset %d: places %d and %d before %d", at, a, b, later)
		}
		if slices.Compare(last, a) >= 0 {
			t.Errorf("offset %d: place %d behind %d", at, a, last)
		}
		last = later
	}
}
