package backoff_test

import (
	"math"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/backoff"
)

func TestAfter(t *testing.T) {
	for n, want := range map[int]time.Duration{
		-1: time.Second, 0: time.Second, 1: time.Second, 2: 2 * time.Second, 9: 256 * time.Second, 10: 5 * time.Minute,
		64: 5 * time.Minute, 65: 5 * time.Minute, 1000: 5 * time.Minute,
	} {
		if got := backoff.After(time.Second, 5*time.Minute, n); got != want {
			t.Errorf("after failure %d: %v, want %v", n, got, want)
		}
	}
	if got := backoff.After(time.Second, math.MaxInt64, 100); got != math.MaxInt64 {
		t.Errorf("a delay overflowed: %v", got)
	}
	if got := backoff.After(time.Hour, time.Minute, 1); got != time.Minute {
		t.Errorf("the first delay is %v, above the most", got)
	}
}
