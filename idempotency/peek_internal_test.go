package idempotency

import "testing"

// TestPeekPolicy: peeks stop if repeats are rarer than one in three, and resume
// with them.
func TestPeekPolicy(t *testing.T) {
	var h peekPolicy
	// peeked answers requests, every n-th of which is a repeat, and returns how
	// many of the last hundred were peeked.
	peeked := func(n int) (peeks int) {
		for i := range 300 {
			if i >= 200 && h.expectsRepeat() {
				peeks++
			}
			if i%n == 0 {
				h.repeated()
			} else {
				h.ran()
			}
		}
		return peeks
	}
	if !h.expectsRepeat() {
		t.Error("a process that has just started does not peek")
	}
	for _, tc := range []struct{ every, want int }{{1, 100}, {1000, 0}, {10, 0}, {4, 0}, {2, 100}, {1, 100}, {4, 0}} {
		if got := peeked(tc.every); got != tc.want {
			t.Errorf("if one in %d requests is a repeat, %d of 100 are peeked, want %d", tc.every, got, tc.want)
		}
	}
	for range 9 {
		h.repeated()
	}
	if !h.expectsRepeat() {
		t.Error("nine repeats in a row are not noticed")
	}
}
