package daemon

import (
	"context"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/jobs"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/reconcile"
)

// components returns the enabled tasks of a relay.
func (r *Relay) components() ([]Component, error) {
	s := r.Settings
	all, err := r.outboxComponents()
	if err != nil {
		return nil, err
	}
	if s.Inbox.Enabled && s.Inbox.Retention > 0 {
		all = append(all, r.every("inbox retention", s.Inbox.PurgeInterval, r.purgeRecords))
	}
	if s.Inbox.Enabled && s.Inbox.Retry {
		again := &retry{relay: r, sent: make(map[retryKey]retrySent)}
		all = append(all, r.every("inbox retry", s.Inbox.RetryInterval, again.once))
	}
	if s.Keys.Enabled {
		all = append(all, r.every("key cleaner", s.Keys.PurgeInterval, r.purgeKeys))
	}
	if s.Reconcile.Enabled && len(r.Jobs) > 0 {
		c, err := r.reconcile()
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	}
	if o := r.Observe; s.Metrics.Enabled && (o.Backlog != nil || o.Destinations != nil || o.Groups != nil || o.Keys != nil) {
		all = append(all, r.every("counting", s.Metrics.Interval, r.count))
	}
	return all, nil
}

// outboxComponents returns the enabled tasks of the outbox.
func (r *Relay) outboxComponents() ([]Component, error) {
	s := r.Settings
	var all []Component
	if s.Relay.Enabled {
		c, err := r.deliver() // it also purges
		if err != nil {
			return nil, err
		}
		all = append(all, c)
	} else if s.Purge.Enabled {
		p, err := r.Outbox.Purger(admin.Retention{History: s.Relay.HistoryRetention, Dead: s.Relay.DeadRetention, PurgeInterval: s.Purge.Interval, PurgeBatchSize: s.Purge.BatchSize})
		if err != nil {
			return nil, err
		}
		all = append(all, Component{Name: "purge", Run: p.Run})
	}
	if s.CDC.Enabled {
		c, err := r.Outbox.Capturer(admin.Capture{Retention: s.CDC.Retention, Interval: s.CDC.Interval, PurgeInterval: s.Purge.Interval})
		if err != nil {
			return nil, err
		}
		all = append(all, Component{Name: "cdc", Run: c.Run})
	}
	return all, nil
}

// every returns a component that runs a function immediately and then at an
// interval. A failure does not end the daemon: the component runs again after
// the next interval. It logs the first failure of an outage and the recovery,
// not each failure.
func (r *Relay) every(name string, interval time.Duration, do func(ctx context.Context) error) Component {
	return Component{Name: name, Run: func(ctx context.Context) error {
		tick := time.NewTicker(interval)
		defer tick.Stop()
		trouble := outage.New(r.own, name)
		for {
			trouble.Note(ctx, name, r.Store.Clean(do(ctx)))
			select {
			case <-ctx.Done():
				return nil
			case <-tick.C:
			}
		}
	}}
}

// purgeRecords deletes the inbox records of processed events that are older
// than the retention, of every group.
func (r *Relay) purgeRecords(ctx context.Context) error {
	s := r.Settings.Inbox
	groups, err := r.Store.InboxRecords.GroupStats(ctx, true)
	if err != nil {
		return err
	}
	for _, g := range groups {
		err := r.drain(ctx, s.PurgeBatchSize, "inbox", func() (int, error) {
			return r.Store.InboxRecords.PurgeRecords(ctx, g.Group, s.Retention, s.PurgeBatchSize)
		})
		if err != nil {
			return fmt.Errorf("group %s: %w", g.Group, err)
		}
	}
	return nil
}

func (r *Relay) purgeKeys(ctx context.Context) error {
	n, err := r.Keys.Purge(ctx, nil)
	if n > 0 && r.Observe.Purged != nil {
		r.Observe.Purged(observe.PurgedInfo{Kind: "keys", Rows: n})
	}
	return err
}

// reconcile returns the component that runs the jobs of the file.
func (r *Relay) reconcile() (Component, error) {
	list, err := jobs.Build(r.Store, r.Settings, r.Jobs)
	if err != nil {
		return Component{}, err
	}
	rec, err := r.Store.Reconciler(list, reconcile.Config{Observe: r.Observe, Logger: r.Log})
	if err != nil {
		return Component{}, err
	}
	return Component{Name: "reconcile", Run: rec.Run}, nil
}

// drain deletes batches until one is not full.
func (r *Relay) drain(ctx context.Context, batch int, what string, purge func() (int, error)) error {
	for ctx.Err() == nil {
		n, err := purge()
		if err != nil {
			return err
		}
		if n > 0 && r.Observe.Purged != nil {
			r.Observe.Purged(observe.PurgedInfo{Kind: what, Rows: n})
		}
		if n < batch {
			return nil
		}
	}
	return ctx.Err()
}

// count refreshes the observer's gauges.
func (r *Relay) count(ctx context.Context) error {
	if _, err := r.Outbox.Stats(ctx); err != nil {
		return err
	}
	if r.Destinations != nil {
		if _, err := r.Destinations.List(ctx); err != nil {
			return err
		}
	}
	if _, err := r.Groups.Stats(ctx, false); err != nil {
		return err
	}
	_, err := r.Keys.Stats(ctx)
	return err
}

// retry delivers failed events that a consumer group stored to the sink again
// when they are due. It serves groups whose messages were acknowledged after
// the failure, and whose processes do not run [inbox.Inbox.Run]. The records of
// the group decide about further attempts; the inboxes of other groups suppress
// the repeated event.
type retry struct {
	relay *Relay
	sent  map[retryKey]retrySent
}

type retryKey struct {
	group string
	key   waybill.ID
}

// retrySent records an event that was sent, and when. The event is in flight
// until its record changes or the resend time passes.
type retrySent struct {
	attempts int
	at       time.Time
}

const (
	// resend is the time after which a message without effect counts as lost.
	resend = 5 * time.Minute
	// dueLimit is the maximum number of due events per group and run.
	dueLimit = 100
	// firstReplay separates the replay numbers of these repeats from those of
	// an operator's replays: brokers drop messages with a known number.
	firstReplay = 1000
)

func (t *retry) once(ctx context.Context) error {
	groups, err := t.relay.Store.InboxRecords.GroupStats(ctx, false)
	if err != nil {
		return err
	}
	for key, s := range t.sent {
		if time.Since(s.at) > resend {
			delete(t.sent, key)
		}
	}
	for _, g := range groups {
		if g.Failed+g.Processing == 0 {
			continue
		}
		if err := t.group(ctx, g.Group); err != nil {
			return fmt.Errorf("group %s: %w", g.Group, err)
		}
	}
	return nil
}

func (t *retry) group(ctx context.Context, group string) error {
	due, err := t.relay.Store.InboxRecords.DueRecords(ctx, group, dueLimit)
	if err != nil {
		return err
	}
	for i := range due {
		rec := &due[i]
		key := retryKey{group, rec.Key}
		if s, on := t.sent[key]; on && s.attempts == rec.Attempts || ctx.Err() != nil {
			continue
		}
		ev, err := inbox.StoredEvent(rec)
		if err != nil {
			t.relay.own.Error("stored event cannot be decoded for a retry", slog.String(logkey.Group, group), slog.String(logkey.EventID, rec.Event.String()),
				slog.String(logkey.Error, err.Error()))
			continue
		}
		results := t.relay.Sink.Deliver(ctx, []waybill.Delivery{{Event: ev, Attempt: rec.Attempts + 1, Replay: firstReplay + rec.Attempts}})
		if len(results) != 1 {
			return fmt.Errorf("the sink returned %d results for one event", len(results))
		}
		if results[0] != nil {
			return fmt.Errorf("event %s: %w", rec.Event, results[0])
		}
		t.sent[key] = retrySent{rec.Attempts, time.Now()}
	}
	return nil
}
