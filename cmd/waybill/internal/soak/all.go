package soak

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"
)

// ErrMissed reports that a sabotage was not detected.
var ErrMissed = errors.New("soak: a sabotage was not detected")

// RunAll runs every kind of sabotage briefly, and prints a table.
func RunAll(ctx context.Context, cfg Config) error {
	var missed []string
	out := cfg.Out
	fmt.Fprintf(out, "%-14s %-15s %-8s %6s  %s\n", "sabotage", "promise", "", "time", "found")
	for _, name := range Sabotages() {
		one := cfg
		one.Sabotage, one.Out, one.Report, one.Redraw, one.Keep = Sabotage(name), io.Discard, "none", false, false
		begun := time.Now()
		report, err := Run(ctx, one)
		var broken *BrokenError
		if err != nil && !errors.As(err, &broken) && !errors.Is(err, ErrNotDone) {
			return fmt.Errorf("%s: %w", name, err)
		}
		if ctx.Err() != nil {
			return ctx.Err()
		}
		promise := one.Sabotage.Breaks()
		result, text := "MISSED", ""
		if i := slices.IndexFunc(report.Findings, func(f Finding) bool { return f.Promise == promise }); i >= 0 {
			result, text = "caught", report.Findings[i].Text
		} else {
			missed = append(missed, name)
			if err != nil {
				text = err.Error()
			}
		}
		fmt.Fprintf(out, "%-14s %-15s %-8s %5.0fs  %s\n", name, promise, result, time.Since(begun).Seconds(), text)
	}
	if len(missed) > 0 {
		return fmt.Errorf("%w: %v", ErrMissed, missed)
	}
	return nil
}
