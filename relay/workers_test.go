package relay

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
)

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

// TestRefused: an event that follows one of its aggregate in a batch was not
// delivered if the earlier one was refused. Every result of the class done is a
// success; of joined results the least final one decides.
func TestRefused(t *testing.T) {
	boom := errors.New("boom")
	for _, c := range []struct {
		result  error
		refused bool
	}{
		{nil, false},
		{waybill.ErrSettled, false},
		{fmt.Errorf("group: %w", waybill.ErrReplayed), false},
		{boom, true},
		{waybill.Later(time.Second, boom), true},
		{waybill.Unavailable(boom), true},
		{waybill.Permanent(boom), true},
		{waybill.RetryAfter(time.Second, waybill.ErrSettled), true},
	} {
		var failed failures
		first, next := &waybill.Event{AggregateType: "thing", AggregateID: "a"}, &waybill.Event{AggregateType: "thing", AggregateID: "a"}
		other := &waybill.Event{AggregateType: "thing", AggregateID: "b"}
		if failed.note(first, c.result) {
			t.Errorf("%v: the first event is behind another one", c.result)
		}
		if got := failed.note(next, nil); got != c.refused {
			t.Errorf("%v: the next event was not delivered: %v, want %v", c.result, got, c.refused)
		}
		if failed.note(other, nil) {
			t.Errorf("%v: an event of another aggregate was not delivered", c.result)
		}
	}
}
