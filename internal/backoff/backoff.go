// Package backoff computes retry delays.
package backoff

import "time"

// After returns the delay after the nth failure, counted from 1: min(most,
// base·2^(n−1)), for any n.
func After(base, most time.Duration, n int) time.Duration {
	d := base
	for range max(n, 1) - 1 {
		if d >= most/2 { // doubling would exceed most, or overflow
			return most
		}
		d *= 2
	}
	return min(d, most)
}
