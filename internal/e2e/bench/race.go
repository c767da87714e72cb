package main

import (
	"context"
	"fmt"
	"io"
	"slices"
	"sync"
	"sync/atomic"
	"text/tabwriter"
	"time"
)

// contender is one way to do the same work.
type contender struct {
	name string
	// transaction runs one transaction on the connection of the given worker.
	transaction func(ctx context.Context, worker int) error
}

// race is contenders that take turns.
type race struct {
	title     string
	conns     int
	events    int // in one transaction
	contender []contender
	// reset empties the tables between turns.
	reset func(ctx context.Context) error
	// count returns the number of statements that the contender sends for one
	// transaction.
	count func(ctx context.Context, c contender) (float64, error)
}

// figure is the result of one contender.
type figure struct {
	rates      []float64 // events per second, a turn each
	statements float64   // per transaction
}

// floorName is the contender that the others are compared with.
const floorName = "floor, by hand"

// run lets every contender have its turns and writes the table's lines.
func (r race) run(ctx context.Context, rounds int, turn time.Duration, out io.Writer) error {
	figures := make([]figure, len(r.contender))
	for i, c := range r.contender {
		// warm up: connections, prepared statements
		if err := r.turn(ctx, c, turn/5, nil); err != nil {
			return fmt.Errorf("%s, %s: %w", r.title, c.name, err)
		}
		var err error
		if figures[i].statements, err = r.count(ctx, c); err != nil {
			return fmt.Errorf("%s, %s: %w", r.title, c.name, err)
		}
	}
	for round := range rounds {
		for i := range r.contender {
			at := (i + round) % len(r.contender) // no contender is always first
			if err := r.turn(ctx, r.contender[at], turn, &figures[at]); err != nil {
				return fmt.Errorf("%s, %s: %w", r.title, r.contender[at].name, err)
			}
		}
	}
	var floor figure
	for i, c := range r.contender {
		if c.name == floorName {
			floor = figures[i]
		}
	}
	w := tabwriter.NewWriter(out, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(w, "%s\tevents/s\tmin\tmax\tof floor\tstatements/tx\tper event\t\n", r.title)
	for i, c := range r.contender {
		f := figures[i]
		statements, each := "-", "-"
		if f.statements > 0 {
			statements, each = fmt.Sprintf("%.1f", f.statements), fmt.Sprintf("%.3f", f.statements/float64(r.events))
		}
		fmt.Fprintf(w, "%s\t%.0f\t%.0f\t%.0f\t%.0f %%\t%s\t%s\t\n", c.name, median(f.rates), slices.Min(f.rates), slices.Max(f.rates),
			100*median(ratios(f.rates, floor.rates)), statements, each)
	}
	fmt.Fprintln(w, "\t\t\t\t\t\t\t")
	return w.Flush()
}

// turn lets one contender run for a while on all connections.
func (r race) turn(ctx context.Context, c contender, d time.Duration, f *figure) error {
	if err := r.reset(ctx); err != nil {
		return err
	}
	var done atomic.Int64
	var failed atomic.Pointer[error]
	var wg sync.WaitGroup
	start := time.Now()
	for worker := range r.conns {
		wg.Go(func() {
			for time.Since(start) < d && failed.Load() == nil {
				if err := c.transaction(ctx, worker); err != nil {
					failed.CompareAndSwap(nil, &err)
					return
				}
				done.Add(int64(r.events))
			}
		})
	}
	wg.Wait()
	if err := failed.Load(); err != nil {
		return *err
	}
	if f != nil {
		f.rates = append(f.rates, float64(done.Load())/time.Since(start).Seconds())
	}
	return nil
}
