// Package backoff computes retry delays.
package backoff

import "time"

// After returns the delay after the nth failure, counted from 1: min(longest,
// base·2^(n−1)), for any n.
func After(base, longest time.Duration, n int) time.Duration {
	d := base
	for range max(n, 1) - 1 {
		if d >= longest/2 { // doubling would exceed longest, or overflow
			return longest
		}
		d *= 2
	}
	return min(d, longest)
}
