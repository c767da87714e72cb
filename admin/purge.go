package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/internal/retention"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store/driver"
)

// Retention configures how long events are kept.
type Retention struct {
	// History is how long delivered events are kept. Defaults to 7 days;
	// negative: forever.
	History time.Duration
	// Dead is how long dead letters are kept, in the outbox and in the backlogs
	// of its destinations. Defaults to 0: until an operator decides.
	Dead time.Duration
	// PurgeInterval is the interval at which [Purger.Run] purges. Defaults to 1
	// h.
	PurgeInterval time.Duration
	// PurgeBatchSize is the number of rows deleted per transaction. Defaults to
	// 500.
	PurgeBatchSize int
}

// Purged is the number of deleted rows.
type Purged struct {
	Delivered, Dead int
}

// Purger deletes events after their retention. A running relay purges by
// itself; Purger is for outboxes whose relay does not, and for manual purges.
type Purger struct {
	db       driver.Maintainer
	policy   retention.Policy
	interval time.Duration
	log      *slog.Logger
	observe  observe.Hooks
	running  atomic.Bool
}

// Purger returns a purger. The error lists every invalid field.
func (d *Outbox) Purger(k Retention) (*Purger, error) {
	var errs []error
	if k.History == 0 {
		k.History = 7 * 24 * time.Hour
	}
	if k.Dead < 0 {
		errs = append(errs, fmt.Errorf("Retention.Dead: %v is negative", k.Dead))
	}
	if k.PurgeInterval == 0 {
		k.PurgeInterval = time.Hour
	}
	if k.PurgeInterval < 0 {
		errs = append(errs, fmt.Errorf("Retention.PurgeInterval: %v is negative", k.PurgeInterval))
	}
	if k.PurgeBatchSize == 0 {
		k.PurgeBatchSize = 500
	}
	if k.PurgeBatchSize < 0 {
		errs = append(errs, fmt.Errorf("Retention.PurgeBatchSize: %d is negative", k.PurgeBatchSize))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	return &Purger{
		db:       d.db,
		policy:   retention.Policy{HistoryRetention: k.History, DeadRetention: k.Dead, BatchSize: k.PurgeBatchSize, Backlogs: d.backlogs, Audit: d.audit, Rollups: d.rollups},
		interval: k.PurgeInterval, log: d.cfg.Logger, observe: d.cfg.Observe,
	}, nil
}

// Once purges until nothing is left to delete, and calls progress, if not nil,
// after every batch. The counts are valid even if it fails.
func (p *Purger) Once(ctx context.Context, progress func(Purged)) (Purged, error) {
	kept := func(age time.Duration) string {
		if age <= 0 {
			return ""
		}
		return age.String()
	}
	target := fields("", "history", kept(p.policy.HistoryRetention), "dead", kept(p.policy.DeadRetention))
	ctx = purging(ctx, "purge", target)
	policy := p.policy
	if progress != nil {
		policy.Progress = func(r retention.Report) { progress(Purged(r)) }
	}
	r, err := retention.Once(ctx, p.db, policy, p.observe)
	if err != nil {
		return Purged(r), fmt.Errorf("admin: %w", err)
	}
	return Purged(r), nil
}

// Run purges at once and then at every interval, until ctx ends; failures are
// retried at the next interval. The log reports when purging begins to fail, at
// most once a minute that it continues to fail, and when it recovers. A second
// Run at the same time is an error.
func (p *Purger) Run(ctx context.Context) error {
	if p.running.Swap(true) {
		return errors.New("admin: the purger is already running")
	}
	defer p.running.Store(false)
	tick := time.NewTicker(p.interval)
	defer tick.Stop()
	trouble := outage.New(p.log, "purging")
	for {
		gone, err := p.Once(ctx, nil)
		trouble.Note(ctx, "purge", err)
		if gone != (Purged{}) {
			p.log.Info("purged", slog.Int(logkey.Delivered, gone.Delivered), slog.Int(logkey.Dead, gone.Dead))
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// PurgeWritten deletes ready events that were written, and became due, longer
// ago than age, and frees their dedup keys: for an outbox that change data
// capture reads and that has no relay. While a relay is live, PurgeWritten
// returns [store.ErrRelayLive]. It calls progress, if not nil, after every
// batch, and returns the number of deleted events, even if it fails.
// [Capturer.Run] calls PurgeWritten by itself.
func (d *Outbox) PurgeWritten(ctx context.Context, age time.Duration, progress func(n int)) (int, error) {
	ctx = purging(ctx, "purge_written", fields("", "age", age.String()))
	if err := d.whole("purging written events"); err != nil {
		return 0, err
	}
	if age <= 0 {
		return 0, fmt.Errorf("admin: purging written events: the age %v is not positive", age)
	}
	for sum := 0; ; {
		n, err := d.db.PurgeWritten(ctx, age, d.cfg.BatchSize)
		sum += n
		if err != nil {
			return sum, fmt.Errorf("admin: purging written events: %w", err)
		}
		if n > 0 && d.cfg.Observe.Purged != nil {
			d.cfg.Observe.Purged(observe.PurgedInfo{Kind: "written", Rows: n})
		}
		if progress != nil {
			progress(sum)
		}
		if n < d.cfg.BatchSize {
			return sum, nil
		}
	}
}
