package main

import (
	"context"
	"errors"
	"slices"
	"sync"
	"sync/atomic"
	"time"
)

// openLoopWorkers is the number of producers of an open loop: enough that a
// slow commit does not delay the next one.
const openLoopWorkers = 32

// openLoop commits events at a fixed rate for a time, while a relay in another
// process handles them, and returns the sorted times from the return of each
// commit to the call of the handler. The events of the first warm-up do not
// count. An event that is handled before its commit returned has latency 0;
// events that are not handled after a grace time are counted in late.
func openLoop(ctx context.Context, rate int, turn time.Duration, s *sharedStamps, commit func(ctx context.Context, n int) error) (sorted []time.Duration, late int, err error) {
	total := min(int(float64(rate)*(warmUp+turn).Seconds()), len(s.handled))
	skip := min(int(float64(rate)*warmUp.Seconds()), total-1)
	committed := make([]time.Time, total)
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	var next atomic.Int64
	var wg sync.WaitGroup
	began := time.Now()
	for range openLoopWorkers {
		wg.Go(func() {
			for ctx.Err() == nil {
				n := int(next.Add(1) - 1)
				if n >= total || pauseFor(ctx, time.Until(began.Add(time.Duration(n)*time.Second/time.Duration(rate)))) != nil {
					return
				}
				if err := commit(ctx, n); err != nil {
					cancel(err)
					return
				}
				committed[n] = time.Now()
			}
		})
	}
	wg.Wait()
	if err := context.Cause(ctx); err != nil {
		return nil, 0, err
	}
	return s.latencies(ctx, committed, skip)
}

// latencies waits until the events are handled, and returns the sorted
// latencies of those from skip on.
func (s *sharedStamps) latencies(ctx context.Context, committed []time.Time, skip int) (sorted []time.Duration, late int, err error) {
	end := time.Now().Add(graceTime)
	for n := skip; n < len(committed); n++ {
		for s.handled[n].Load() == 0 && time.Now().Before(end) {
			if err := pauseFor(ctx, lookAgain); err != nil {
				return nil, 0, err
			}
		}
		handled := s.handled[n].Load()
		if handled == 0 {
			handled = time.Now().UnixNano()
			late++
		}
		sorted = append(sorted, time.Duration(max(handled-committed[n].UnixNano(), 0)))
	}
	if len(sorted) == 0 {
		return nil, 0, errors.New("no event was committed")
	}
	slices.Sort(sorted)
	return sorted, late, nil
}
