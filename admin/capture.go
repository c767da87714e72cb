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
)

// Capture configures the maintenance of an outbox that change data capture
// reads and that has no relay.
type Capture struct {
	// Retention is how long events are kept after they could be read: after
	// they were written or, if they were delayed, due. It must be longer than
	// the maximum lag of the reader. A dedup key absorbs duplicates for the
	// same time. Defaults to 7 days.
	Retention time.Duration
	// Interval is the interval at which [Capturer.Run] makes delayed events
	// ready. Defaults to 1 s.
	Interval time.Duration
	// PurgeInterval is the interval at which [Capturer.Run] purges events.
	// Defaults to 1 h.
	PurgeInterval time.Duration
}

// Capturer makes delayed events ready when they are due, and purges events
// after their retention. Change data capture does neither: it reads inserts
// into the outbox. Any number of capturers may run.
type Capturer struct {
	ops     *Outbox
	cfg     Capture
	running atomic.Bool
}

// Capturer returns a capturer. The error lists every invalid field.
func (d *Outbox) Capturer(c Capture) (*Capturer, error) {
	if err := d.whole("maintaining an outbox for change data capture"); err != nil {
		return nil, err
	}
	var errs []error
	for _, field := range []struct {
		name  string
		value *time.Duration
		def   time.Duration
	}{{"Retention", &c.Retention, 7 * 24 * time.Hour}, {"Interval", &c.Interval, time.Second}, {"PurgeInterval", &c.PurgeInterval, time.Hour}} {
		if *field.value == 0 {
			*field.value = field.def
		}
		if *field.value < 0 {
			errs = append(errs, fmt.Errorf("Capture.%s: %v is negative", field.name, *field.value))
		}
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("admin: %w", err)
	}
	return &Capturer{ops: d, cfg: c}, nil
}

// Run makes delayed events ready and purges until ctx ends; failures are
// retried at the next interval. While a relay is live, Run does nothing, which
// counts as a failure. The log reports when failures begin, once a minute that
// they continue, and when they end. A second Run at the same time is an error.
func (c *Capturer) Run(ctx context.Context) error {
	if c.running.Swap(true) {
		return errors.New("admin: the capturer is already running")
	}
	defer c.running.Store(false)
	tick := time.NewTicker(c.cfg.Interval)
	defer tick.Stop()
	trouble := outage.New(c.ops.cfg.Logger, "maintaining a captured outbox")
	var purged time.Time
	for {
		_, err := c.ops.MakeReady(ctx)
		trouble.Note(ctx, "make delayed events ready", err)
		if err == nil && (purged.IsZero() || time.Since(purged) >= c.cfg.PurgeInterval) {
			err = c.purge(ctx)
			trouble.Note(ctx, "purge", err)
			if err == nil {
				purged = time.Now()
			}
		}
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

func (c *Capturer) purge(ctx context.Context) error {
	n, err := c.ops.PurgeWritten(ctx, c.cfg.Retention, nil)
	if n > 0 {
		c.ops.cfg.Logger.Info("purged", slog.Int(logkey.Written, n))
	}
	if err != nil {
		return err
	}
	if err := c.ops.db.Tidy(ctx, -1); err != nil {
		return fmt.Errorf("admin: tidying: %w", err)
	}
	return nil
}

// MakeReady makes all due delayed events ready, in batches, and returns how
// many, even if it fails: for an outbox that change data capture reads and that
// has no relay. While a relay is live, MakeReady returns [store.ErrRelayLive].
func (d *Outbox) MakeReady(ctx context.Context) (int, error) {
	if err := d.whole("making delayed events ready"); err != nil {
		return 0, err
	}
	for sum := 0; ; {
		n, err := d.db.MakeReady(ctx, d.cfg.BatchSize)
		sum += n
		if err != nil {
			return sum, fmt.Errorf("admin: making delayed events ready: %w", err)
		}
		if n < d.cfg.BatchSize {
			return sum, nil
		}
	}
}
