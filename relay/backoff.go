package relay

import (
	"math/rand/v2"
	"time"

	"github.com/waybillhq/waybill/internal/backoff"
)

// delays computes the delay before the next attempt.
type delays struct {
	base, max time.Duration
	series    []time.Duration
	own       func(attempt int) time.Duration
}

// after returns the delay after the nth failure, counted from 1: min(max,
// base·2^(n−1)), spread by a factor between 0.5 and 1.5 so that events that
// failed together are not retried together, and at most max. A series is used
// without jitter; its last delay repeats. A function of the caller replaces
// both.
func (b delays) after(n int) time.Duration {
	n = max(n, 1)
	if b.own != nil {
		return max(b.own(n), 0)
	}
	if len(b.series) > 0 {
		return b.series[min(n, len(b.series))-1]
	}
	d := backoff.After(b.base, b.max, n)
	return min(time.Duration(float64(d)*(0.5+rand.Float64())), b.max)
}
