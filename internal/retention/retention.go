// Package retention purges delivered events, and dead letters if configured.
// Running relays purge, and operators can purge manually; both use this
// package.
package retention

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Policy defines how long events are kept.
type Policy struct {
	// HistoryRetention is how long delivered events are kept; not positive:
	// forever.
	HistoryRetention time.Duration
	// DeadRetention is how long dead letters are kept; not positive: forever.
	DeadRetention time.Duration
	// Backlogs, if not nil, are the backlogs of the outbox's destinations:
	// their dead letters are purged, too.
	Backlogs driver.Backlogs
	// Audit, if not nil, has the records of the changes of operators, which are
	// kept for [AuditRetention].
	Audit driver.Audit
	// Rollups, if not nil, has the counts of deliveries: by minute for
	// [RollupMinutes] and by hour for [RollupRetention].
	Rollups driver.Rollups
	// BatchSize is the number of rows deleted per transaction.
	BatchSize int
	// Progress, if not nil, is called after every batch.
	Progress func(Report)
}

// AuditRetention is how long records of the changes of operators are kept.
const AuditRetention = 365 * 24 * time.Hour

// RollupMinutes is how long the counts of deliveries are kept by minute, and
// RollupRetention how long they are kept at all.
const (
	RollupMinutes   = 24 * time.Hour
	RollupRetention = 14 * 24 * time.Hour
)

// Report is the number of deleted rows.
type Report struct {
	Delivered, Dead int
}

// Once purges, batch by batch, until nothing is left to delete. The report is
// valid even if it fails.
func Once(ctx context.Context, db driver.Maintainer, p Policy, hooks observe.Hooks) (Report, error) {
	var r Report
	age := p.HistoryRetention
	if age <= 0 {
		age = -1
	}
	if err := db.Tidy(ctx, age); err != nil {
		return r, fmt.Errorf("tidying: %w", err)
	}
	if p.HistoryRetention > 0 {
		purge := func(ctx context.Context) (int, error) {
			return db.Purge(ctx, store.Delivered, p.HistoryRetention, p.BatchSize)
		}
		if err := p.purge(ctx, store.Delivered, purge, hooks, &r, &r.Delivered); err != nil {
			return r, fmt.Errorf("purging delivered events: %w", err)
		}
	}
	if p.DeadRetention > 0 {
		purge := func(ctx context.Context) (int, error) { return db.Purge(ctx, store.Dead, p.DeadRetention, p.BatchSize) }
		if err := p.purge(ctx, store.Dead, purge, hooks, &r, &r.Dead); err != nil {
			return r, fmt.Errorf("purging dead events: %w", err)
		}
		if err := p.purgeBacklogs(ctx, hooks, &r); err != nil {
			return r, err
		}
	}
	if err := p.noteCauses(ctx, db); err != nil {
		return r, err
	}
	if err := p.purgeAudit(ctx); err != nil {
		return r, err
	}
	return r, p.purgeRollups(ctx)
}

// NoteCauses computes the causes of dead letters after each signal, until ctx
// ends. It waits for the delay first, so that it serves many letters together.
// A failure is retried after the delay; an outage is logged like those of
// [Loop].
func NoteCauses(ctx context.Context, db driver.Maintainer, p Policy, buried <-chan struct{}, delay time.Duration, log *slog.Logger) {
	noting := outage.New(log, "computing the causes of dead letters")
	for received(ctx, buried) {
		for failed := true; failed; {
			if !received(ctx, time.After(delay)) {
				return
			}
			err := p.noteCauses(ctx, db)
			noting.Note(ctx, "causes", err)
			failed = err != nil
		}
	}
}

// received waits for a signal, and reports false if ctx ends first.
func received[T any](ctx context.Context, signal <-chan T) bool {
	select {
	case <-ctx.Done():
		return false
	case <-signal:
		return true
	}
}

// noteCauses computes the causes of the dead letters that have none.
func (p Policy) noteCauses(ctx context.Context, db driver.Maintainer) error {
	all := []any{db}
	if p.Backlogs != nil {
		to, err := p.Backlogs.AddDestinations(ctx)
		if err != nil {
			return fmt.Errorf("listing destinations: %w", err)
		}
		for _, d := range to {
			all = append(all, p.Backlogs.Backlog(d.Number))
		}
	}
	for _, rows := range all {
		causes, ok := rows.(driver.Causes)
		for more := ok; more; {
			n, err := causes.NoteCauses(ctx, p.BatchSize)
			if err != nil {
				return fmt.Errorf("computing the causes of dead letters: %w", err)
			}
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
			more = n >= p.BatchSize
		}
	}
	return nil
}

// purgeAudit purges the records of the changes of operators.
func (p Policy) purgeAudit(ctx context.Context) error {
	if p.Audit == nil {
		return nil
	}
	return p.batches(ctx, "purging the audit", AuditRetention, p.Audit.PurgeAudit)
}

// purgeRollups merges and purges the counts of deliveries.
func (p Policy) purgeRollups(ctx context.Context) error {
	if p.Rollups == nil {
		return nil
	}
	if err := p.batches(ctx, "merging counts of deliveries", RollupMinutes, p.Rollups.MergeRollups); err != nil {
		return err
	}
	return p.batches(ctx, "purging counts of deliveries", RollupRetention, p.Rollups.PurgeRollups)
}

// batches calls a method for rows of an age until a batch is not full.
func (p Policy) batches(ctx context.Context, what string, age time.Duration, batch func(ctx context.Context, age time.Duration, limit int) (int, error)) error {
	for {
		n, err := batch(ctx, age, p.BatchSize)
		if err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if n < p.BatchSize {
			return nil
		}
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
	}
}

// purgeBacklogs purges the dead letters of all destinations.
func (p Policy) purgeBacklogs(ctx context.Context, hooks observe.Hooks, r *Report) error {
	if p.Backlogs == nil {
		return nil
	}
	all, err := p.Backlogs.AddDestinations(ctx)
	if err != nil {
		return fmt.Errorf("listing destinations: %w", err)
	}
	for _, d := range all {
		rows := p.Backlogs.Backlog(d.Number)
		purge := func(ctx context.Context) (int, error) { return rows.PurgeDead(ctx, p.DeadRetention, p.BatchSize) }
		if err := p.purge(ctx, store.Dead, purge, hooks, r, &r.Dead); err != nil {
			return fmt.Errorf("purging dead events of destination %q: %w", d.Name, err)
		}
	}
	return nil
}

// purge deletes batches until one is not full.
func (p Policy) purge(
	ctx context.Context, state store.State, batch func(context.Context) (int, error), hooks observe.Hooks, r *Report, sum *int,
) error {
	for {
		n, err := batch(ctx)
		if err != nil {
			return err
		}
		*sum += n
		if n > 0 && hooks.Purged != nil {
			hooks.Purged(observe.PurgedInfo{Kind: state.String(), Rows: n})
		}
		if p.Progress != nil {
			p.Progress(*r)
		}
		if n < p.BatchSize {
			return nil
		}
		if err := ctx.Err(); err != nil {
			return context.Cause(ctx)
		}
	}
}

// Loop purges once after the delay and then at every interval, until ctx ends.
// A failure is retried at the next interval; an outage is logged when it
// begins, at most once a minute, and when it ends.
func Loop(ctx context.Context, db driver.Maintainer, p Policy, delay, interval time.Duration, log *slog.Logger, hooks observe.Hooks) {
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
			log.Info("purged", slog.Int(logkey.Delivered, r.Delivered), slog.Int(logkey.Dead, r.Dead))
		}
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
