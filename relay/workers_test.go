package relay

import (
	"testing"
	"time"
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
