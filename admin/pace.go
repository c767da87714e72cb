package admin

import (
	"context"
	"fmt"
	"math"
	"time"
)

// pace bounds a change of many events.
type pace struct {
	// of is the name of the options, for errors.
	of    string
	limit int64
	rate  float64
}

// check returns an error for an invalid option.
func (p pace) check() error {
	switch {
	case p.limit < 0:
		return fmt.Errorf("%w: %s.Limit: %d is negative", ErrInvalid, p.of, p.limit)
	case p.rate < 0 || math.IsNaN(p.rate) || math.IsInf(p.rate, 0):
		return fmt.Errorf("%w: %s.Rate: %v is not a number of events per second", ErrInvalid, p.of, p.rate)
	}
	return nil
}

// batch returns the size of the next batch: at most what the rate permits in a
// second, so that a slow change does not come in bursts.
func (p pace) batch(size int, done int64) int {
	if p.rate > 0 && p.rate < float64(size) {
		size = int(math.Ceil(p.rate))
	}
	if p.limit > 0 {
		size = int(min(int64(size), p.limit-done))
	}
	return size
}

// longestWait bounds the wait of a very low rate, so that it does not overflow.
const longestWait = 365 * 24 * time.Hour

// wait waits until the rate permits the next batch, after one of n events.
func (p pace) wait(ctx context.Context, began time.Time, n int) error {
	if p.rate == 0 || n == 0 {
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		return nil
	}
	pause := time.Duration(min(float64(n)/p.rate, longestWait.Seconds()) * float64(time.Second))
	timer := time.NewTimer(pause - time.Since(began))
	defer timer.Stop()
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-timer.C:
		return nil
	}
}
