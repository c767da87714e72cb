package inbox

import (
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// Run retries failed events when they are due, in groups that store them
// ([Options.StoreEvent]), and purges records after [Config.Retention], until
// ctx ends; then it returns nil. If no group stores its events, Run only purges
// and reports; a RetryInterval above 0 is then an error. Groups that are made
// after the call of Run are not retried. Any number of processes may call Run
// at the same time.
func (i *Inbox[T]) Run(ctx context.Context) error {
	var storing []*Group[T]
	for _, g := range i.all() {
		if g.opts.StoreEvent {
			storing = append(storing, g)
		}
	}
	if len(storing) == 0 && i.cfg.RetryInterval > 0 {
		return errors.New("inbox: Config.RetryInterval: no group has Options.StoreEvent, so no event can be retried")
	}
	interval := i.cfg.RetryInterval
	switch {
	case len(storing) == 0:
		interval = -1
	case interval == 0:
		interval = defaultRetry
	}
	database := outage.New(i.cfg.Logger, "the inbox's database")
	retry, stopRetry := ticks(interval)
	defer stopRetry()
	purge, stopPurge := ticks(i.cfg.PurgeInterval)
	defer stopPurge()
	count, stopCount := ticks(i.countInterval(interval))
	defer stopCount()
	note := func(operation string, err error) {
		switch {
		case err == nil:
			database.Succeeded(operation)
		case ctx.Err() == nil:
			database.Failed(operation, err)
		}
	}
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-retry:
			for _, g := range storing {
				note("find failed events of "+g.name, g.retryDue(ctx))
			}
		case <-count:
			note("count", i.count(ctx))
		case <-purge:
			note("purge old records", i.Purge(ctx))
		}
	}
}

const (
	// defaultRetry is the default of Config.RetryInterval.
	defaultRetry = time.Second
	// countEvery is the interval between counts of the groups if Run retries no
	// events.
	countEvery = 10 * time.Second
)

// countInterval returns the interval at which the groups' state is reported to
// the observer; negative: never. retry is the interval between retries.
func (i *Inbox[T]) countInterval(retry time.Duration) time.Duration {
	switch {
	case i.cfg.Observe.Groups == nil:
		return -1
	case retry > 0:
		return retry
	}
	return countEvery
}

// ticks returns a ticker's channel, or a channel that never receives.
func ticks(d time.Duration) (<-chan time.Time, func()) {
	if d <= 0 {
		return nil, func() {}
	}
	t := time.NewTicker(d)
	return t.C, t.Stop
}

// dueLimit is the number of events retried per batch.
const dueLimit = 100

// retryDue retries the events that are due.
func (g *Group[T]) retryDue(ctx context.Context) error {
	due, err := g.inbox.db.DueRecords(ctx, g.name, dueLimit)
	if err != nil {
		return err
	}
	for i := range due {
		if ctx.Err() != nil {
			return nil
		}
		g.retry(ctx, &due[i])
	}
	return nil
}

// retry retries a stored event.
func (g *Group[T]) retry(ctx context.Context, rec *store.InboxRecord) {
	log := g.inbox.cfg.Logger.With(slog.String(logkey.Group, g.name), slog.String(logkey.EventID, rec.Event.String()))
	ev, err := decodeKept(rec.Stored)
	if err != nil {
		log.Error("an event cannot be retried", slog.String(logkey.Error, err.Error()))
		return
	}
	fn := g.handler(&ev)
	if fn == nil {
		log.Warn("a failed event has no handler in this process", slog.String(logkey.EventType, ev.Type))
		return
	}
	// Passed as a redelivery: the attempt is recorded before the handler runs.
	ctx = waybill.ContextWithDelivery(ctx, waybill.Delivery{Event: ev, Attempt: rec.Attempts + 1})
	if _, err := g.consume(ctx, &consumption[T]{ev: &ev, fn: fn}); err != nil {
		log.Debug("an event was retried", slog.String(logkey.Error, err.Error()))
	}
}

// count reports the groups' state to the observer.
func (i *Inbox[T]) count(ctx context.Context) error {
	stats, err := i.db.GroupStats(ctx, false)
	if err != nil {
		return err
	}
	known := make(map[string]store.GroupStats, len(stats))
	for _, s := range stats {
		known[s.Group] = s
	}
	var out []observe.Group
	for _, g := range i.all() {
		s := known[g.name] // zero if nothing failed
		s.Group = g.name
		out = append(out, observe.Group(s))
	}
	i.cfg.Observe.Groups(observe.GroupsInfo{Groups: out})
	return nil
}

// purgeLimit is the number of records deleted per batch.
const purgeLimit = 5000

// Purge deletes the records that are older than [Config.Retention] now. If
// Retention is 0, Purge does nothing.
func (i *Inbox[T]) Purge(ctx context.Context) error {
	if i.cfg.Retention == 0 {
		return nil
	}
	for _, g := range i.all() {
		for {
			n, err := i.db.PurgeRecords(ctx, g.name, i.cfg.Retention, purgeLimit)
			if err != nil {
				return err
			}
			if n > 0 && i.cfg.Observe.Purged != nil {
				i.cfg.Observe.Purged(observe.PurgedInfo{Kind: "inbox", Rows: n})
			}
			if n < purgeLimit {
				break
			}
		}
	}
	return nil
}
