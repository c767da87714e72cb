package relay

import (
	"math/rand/v2"
	"time"
)

// backoff says how long to wait before the next attempt.
type backoff struct {
	base, max time.Duration
	series    []time.Duration
}

// after returns the delay after the nth failure, counted from 1: min(max, base·2^(n−1)), spread by a factor between 0.5
// and 1.5 so that events that failed together do not come back together, and at most max. A series is taken as it is; its
// last delay repeats.
func (b backoff) after(n int) time.Duration {
	n = max(n, 1)
	if len(b.series) > 0 {
		return b.series[min(n, len(b.series))-1]
	}
	d := b.base
	for range n - 1 {
		if d >= b.max/2 { // doubling would pass max, or overflow
			d = b.max
			break
		}
		d *= 2
	}
	d = time.Duration(float64(min(d, b.max)) * (0.5 + rand.Float64()))
	return min(d, b.max)
}
