package soak

import (
	"math"
	"time"
)

// histogram counts durations in buckets of 5 %.
type histogram struct {
	buckets [400]int
	n       int
	max     time.Duration
}

const growth = 1.05

// smallest is the upper bound of the first bucket.
const smallest = 100 * time.Microsecond

func (h *histogram) add(d time.Duration) {
	h.n++
	h.max = max(h.max, d)
	i := 0
	if d > smallest {
		i = int(math.Log(float64(d)/float64(smallest))/math.Log(growth)) + 1
	}
	h.buckets[min(i, len(h.buckets)-1)]++
}

// at returns a percentile, rounded up to the bucket's bound.
func (h *histogram) at(percent float64) time.Duration {
	left := int(math.Ceil(float64(h.n) * percent / 100))
	for i, n := range h.buckets {
		if left -= n; left <= 0 && h.n > 0 {
			return min(h.max, time.Duration(float64(smallest)*math.Pow(growth, float64(i))))
		}
	}
	return h.max
}
