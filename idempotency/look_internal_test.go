package idempotency

import "testing"

// TestHabit: looks stop where repeats are rarer than one in three, and come back with them.
func TestHabit(t *testing.T) {
	var h peekPolicy
	// looked answers so many requests, every n-th of which is a repeat, and returns how many of the last hundred were looked for.
	looked := func(n int) (looks int) {
		for i := range 300 {
			if i >= 200 && h.expectsRepeat() {
				looks++
			}
			if i%n == 0 {
				h.repeated()
			} else {
				h.ran()
			}
		}
		return looks
	}
	if !h.expectsRepeat() {
		t.Error("a process that has just started does not look")
	}
	for _, tc := range []struct{ every, want int }{{1, 100}, {1000, 0}, {10, 0}, {4, 0}, {2, 100}, {1, 100}, {4, 0}} {
		if got := looked(tc.every); got != tc.want {
			t.Errorf("if every %d. request is a repeat, %d of 100 are looked for, want %d", tc.every, got, tc.want)
		}
	}
	for range 9 {
		h.repeated()
	}
	if !h.expectsRepeat() {
		t.Error("nine repeats in a row are not noticed")
	}
}
