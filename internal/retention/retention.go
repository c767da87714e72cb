// Package retention deletes what need not be kept any more: delivered events after a while, dead letters if somebody says
// so. Relays do it as they run, and operators can do it by hand; both do the same.
package retention

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// Policy is what is kept, and for how long.
type Policy struct {
	// HistoryRetention is how long delivered events are kept; not positive: as long as they are there.
	KeepHistory time.Duration
	// DeadRetention is how long dead letters are kept; not positive: for ever.
	KeepDead time.Duration
	// Batch is how many rows are deleted at a time: each batch is a transaction of its own.
	Batch int
	// Progress, if it is not nil, is called after every batch.
	Progress func(Report)
}

// Report says how many rows were deleted.
type Report struct {
	Delivered, Dead int
}

// Once deletes, batch by batch, until nothing is left to delete. The report is right also when it fails.
func Once(ctx context.Context, db store.Maintainer, p Policy, hooks observe.Hooks) (Report, error) {
	var r Report
	age := p.KeepHistory
	if age <= 0 {
		age = -1
	}
	if err := db.Tidy(ctx, age); err != nil {
		return r, fmt.Errorf("tidying: %w", err)
	}
	if p.KeepHistory > 0 {
		if err := p.purge(ctx, db, store.Delivered, p.KeepHistory, hooks, &r, &r.Delivered); err != nil {
			return r, err
		}
	}
	if p.KeepDead > 0 {
		if err := p.purge(ctx, db, store.Dead, p.KeepDead, hooks, &r, &r.Dead); err != nil {
			return r, err
		}
	}
	return r, nil
}

func (p Policy) purge(
	ctx context.Context, db store.Maintainer, state store.State, age time.Duration, hooks observe.Hooks, r *Report, sum *int,
) error {
	for {
		n, err := db.Purge(ctx, state, age, p.Batch)
		if err != nil {
			return fmt.Errorf("purging %s events: %w", state, err)
		}
		*sum += n
		if n > 0 && hooks.Purged != nil {
			hooks.Purged(state.String(), n)
		}
		if p.Progress != nil {
			p.Progress(*r)
		}
		if n < p.Batch {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
	}
}

// Loop does it once after the delay and then every interval, until ctx ends. A
// failure is tried again at the next interval; an outage is logged when it
// begins, once a minute at most, and when it is over.
func Loop(ctx context.Context, db store.Maintainer, p Policy, delay, interval time.Duration, log *slog.Logger, hooks observe.Hooks) {
	first := time.NewTimer(delay)
	defer first.Stop()
	select {
	case <-ctx.Done():
		return
	case <-first.C:
	}
	tick := time.NewTicker(interval)
	defer tick.Stop()
	purging := outage.New(log, "purging")
	for {
		r, err := Once(ctx, db, p, hooks)
		purging.Note(ctx, "purge", err)
		if r.Delivered+r.Dead > 0 {
			log.Info("waybill: purged", slog.Int("delivered", r.Delivered), slog.Int("dead", r.Dead))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
