// Package admin inspects and maintains an outbox: backlog and lag, blocked
// aggregates, the journey of one event, replay and discard of dead letters, and
// purging. It does the same for the destinations of an outbox, for consumer
// groups and for idempotency keys.
//
// Every method queries the database. An error is returned and never turned into
// an empty result.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"strconv"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Config configures the types of this package. The zero value is valid.
type Config struct {
	// BatchSize is the number of events that are replayed, discarded or deleted
	// per transaction. Defaults to 500.
	BatchSize int
	// Logger receives the activity of background loops. Defaults to
	// [slog.Default]; slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
	// Captured declares that change data capture reads the outbox and that no
	// relay delivers from it. Ready events then stay for [Capture.Retention]
	// and wait for no delivery, which the observer's Backlog reports. Defaults
	// to false.
	Captured bool
	// Observe receives metrics. Defaults to no hooks.
	Observe observe.Hooks
}

// Outbox inspects and maintains an outbox. Its methods may be called
// concurrently, and while relays run.
type Outbox struct {
	db     driver.OutboxAdmin
	owners driver.Inspector // its counts have the owners of the lanes
	hub    *driver.Hub      // nil if the store has no relay role
	cfg    Config
	// backlogs and restorer are nil if the store does not have the role.
	backlogs driver.Backlogs
	restorer driver.Restorer
	// committed is nil if the store does not write events.
	committed func(ctx context.Context, id waybill.ID) (bool, error)
	// audit is nil if the store does not have the role.
	audit driver.Audit
	// rollups is nil for a store without that role.
	rollups driver.Rollups
	// destination is the destination whose backlog this is; empty for the
	// outbox itself.
	destination string
}

// NewOutbox returns the administrative functions of an outbox.
func NewOutbox[T any](db driver.Store[T], cfg Config) (*Outbox, error) {
	roles, err := driver.Get(db, "admin", "OutboxAdmin")
	if err != nil {
		return nil, err
	}
	if cfg, err = cfg.complete(); err != nil {
		return nil, err
	}
	d := &Outbox{db: roles.OutboxAdmin, owners: roles.OutboxAdmin, cfg: cfg, backlogs: roles.Backlogs, restorer: roles.Restorer, audit: roles.Audit, rollups: roles.Rollups}
	if roles.Relay != nil {
		d.hub = roles.Relay.Local()
	}
	if roles.Outbox != nil {
		d.committed = roles.Outbox.Committed
	}
	return d, nil
}

// complete checks a configuration, and fills in defaults.
func (c Config) complete() (Config, error) {
	switch {
	case c.BatchSize < 0:
		return c, fmt.Errorf("admin: Config.BatchSize: %d is negative", c.BatchSize)
	case c.BatchSize == 0:
		c.BatchSize = 500
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	c.Logger = c.Logger.With(slog.String(logkey.Component, "admin"))
	return c, nil
}

// wake wakes the relays of this process, and other relays if the store supports
// it.
func (d *Outbox) wake(changed int) {
	if d.hub != nil && changed > 0 {
		d.hub.Wake()
	}
}

// ErrNotFound means that the event does not exist: it was never written, or it
// was delivered and purged from the history.
var ErrNotFound = errors.New("admin: no such event")

// Stats holds the counts of an outbox at one point in time.
type Stats struct {
	store.Stats
	// Lag is the age of the oldest event that waits for its first delivery.
	Lag time.Duration
}

// Stats counts the events and reports the counts to the observer.
func (d *Outbox) Stats(ctx context.Context) (Stats, error) {
	s, err := d.db.Stats(ctx)
	if err != nil {
		return Stats{}, fmt.Errorf("admin: stats: %w", err)
	}
	out := withLag(s)
	if d.cfg.Observe.Backlog != nil {
		d.cfg.Observe.Backlog(observe.BacklogInfo{
			Ready: s.Ready, Failed: s.Failed, Scheduled: s.Scheduled, Dead: s.Dead, Holding: s.Holding,
			MaxAttempts: s.MaxAttempts, Oldest: out.Lag, Captured: d.cfg.Captured,
		})
	}
	return out, nil
}

// StatsUpTo is [Outbox.Stats], except that the dead letters may be counted only
// up to most: Dead is then most or more. It reports nothing to the observer.
func (d *Outbox) StatsUpTo(ctx context.Context, most int64) (Stats, error) {
	s, err := statsUpTo(ctx, d.db, most)
	if err != nil {
		return Stats{}, fmt.Errorf("admin: stats: %w", err)
	}
	return withLag(s), nil
}

// statsUpTo counts at most most dead letters if the store can stop there.
func statsUpTo(ctx context.Context, rows interface {
	Stats(ctx context.Context) (store.Stats, error)
}, most int64,
) (store.Stats, error) {
	if bounded, ok := unwrapped(rows).(driver.Bounded); ok {
		return bounded.StatsUpTo(ctx, most)
	}
	return rows.Stats(ctx)
}

// unwrapped returns the part of the store that may have optional methods.
func unwrapped(rows any) any {
	if b, ok := rows.(backlog); ok {
		return b.Backlog
	}
	return rows
}

// withLag adds the age of the oldest event.
func withLag(s store.Stats) Stats {
	out := Stats{Stats: s}
	if !s.Oldest.IsZero() {
		out.Lag = max(s.Now.Sub(s.Oldest), 0)
	}
	return out
}

// Watch calls [Outbox.Stats] at every interval until ctx ends, so that the
// observer's gauges stay fresh. The log reports when counting begins to fail,
// once a minute that it continues to fail, and when it recovers.
func (d *Outbox) Watch(ctx context.Context, every time.Duration) error {
	if every <= 0 {
		return fmt.Errorf("admin: watch: the interval %v is not positive", every)
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	trouble := outage.New(d.cfg.Logger, "counting")
	for {
		_, err := d.Stats(ctx)
		trouble.Note(ctx, "count", err)
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
	}
}

// Count returns the number of events of a state that match a filter.
func (d *Outbox) Count(ctx context.Context, state store.State, f store.Filter) (int64, error) {
	if err := d.check(f); err != nil {
		return 0, err
	}
	n, err := d.db.Count(ctx, state, f)
	if err != nil {
		return 0, fmt.Errorf("admin: counting %s events: %w", state, err)
	}
	return n, nil
}

// check returns an error for a filter that the store does not have, and for one
// that matches nothing because of its times.
func (d *Outbox) check(f store.Filter) error {
	if f.Cause != "" {
		if _, err := d.causes(); err != nil {
			return err
		}
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return fmt.Errorf("%w: Filter.Since, %s, is not before Until, %s", ErrInvalid, utc(f.Since), utc(f.Until))
	}
	return nil
}

// Page is a page of a list, and the start of the next page.
type Page struct {
	Records []store.Record
	// Next is the value of after for the next page; 0 on the last page.
	Next int64
}

// List returns events of a state that match a filter, oldest first: those after
// a position (0 for the first page), and at most limit of them.
func (d *Outbox) List(ctx context.Context, state store.State, f store.Filter, after int64, limit int) (Page, error) {
	if limit <= 0 {
		limit = d.cfg.BatchSize
	}
	if err := d.check(f); err != nil {
		return Page{}, err
	}
	records, err := d.db.List(ctx, state, f, after, limit)
	if err != nil {
		return Page{}, fmt.Errorf("admin: listing %s events: %w", state, err)
	}
	p := Page{Records: records}
	if len(records) == limit {
		p.Next = records[len(records)-1].Seq
	}
	return p, nil
}

// RecentPage is a page of delivered events, and the start of the next page.
type RecentPage struct {
	Records []store.Record
	// Next is the value of before for the next page; zero on the last page.
	Next waybill.ID
	// Partial means that the search ended at Next before it had found as many
	// events as the page may have.
	Partial bool
}

// errNoRecent means that the store cannot list delivered events in this order.
var errNoRecent = errors.New("admin: the store does not list the newest delivered events")

// ListsRecent reports whether the store has what [Outbox.ListRecent] needs.
func (d *Outbox) ListsRecent() bool {
	_, ok := d.db.(driver.Recent)
	return ok && d.destination == ""
}

// ListRecent returns delivered events that match a filter, in the descending
// order of their ids, which is nearly that in which they were written: those
// before an id (zero for the first page), and at most limit of them. A search
// with a filter ends after scan events; with a scan of 0, at the end of the
// history.
func (d *Outbox) ListRecent(ctx context.Context, f store.Filter, before waybill.ID, limit, scan int) (RecentPage, error) {
	if !d.ListsRecent() {
		return RecentPage{}, errNoRecent
	}
	if limit <= 0 {
		limit = d.cfg.BatchSize
	}
	if f == (store.Filter{}) {
		scan = 0
	}
	records, floor, err := d.db.(driver.Recent).ListRecent(ctx, f, before, limit, max(scan, 0))
	if err != nil {
		return RecentPage{}, fmt.Errorf("admin: listing delivered events: %w", err)
	}
	p := RecentPage{Records: records, Next: floor, Partial: !floor.IsZero()}
	if len(records) == limit {
		p.Next, p.Partial = records[limit-1].ID, false
	}
	return p, nil
}

// Find returns an event in any state, or [ErrNotFound]. If the event has left
// the outbox and the history, but some destinations have yet to receive it, the
// record is that of the first of them.
func (d *Outbox) Find(ctx context.Context, id waybill.ID) (store.Record, error) {
	r, found, err := d.own(ctx, id)
	if err != nil || found {
		return r, err
	}
	waiting, err := d.waiting(ctx, id)
	if err != nil {
		return store.Record{}, err
	}
	if len(waiting) == 0 {
		return store.Record{}, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return waiting[0].Record, nil
}

// own returns an event in any state, and false if the tables do not have it.
func (d *Outbox) own(ctx context.Context, id waybill.ID) (store.Record, bool, error) {
	records, err := d.db.Find(ctx, id)
	if err != nil {
		return store.Record{}, false, fmt.Errorf("admin: event %s: %w", id, err)
	}
	if len(records) == 0 {
		return store.Record{}, false, nil
	}
	return records[0], true, nil
}

// SetLanes changes the number of lanes of the outbox. Stop the relays first:
// while one is live, SetLanes returns [store.ErrRelayLive]. Services may
// continue to write: the change waits for transactions that have written, and
// later transactions use the new number.
func (d *Outbox) SetLanes(ctx context.Context, n int) error {
	if err := d.whole("changing the number of lanes"); err != nil {
		return err
	}
	if err := d.db.SetLanes(audited(ctx, "set_lanes", "", strconv.Itoa(n)), n); err != nil {
		return fmt.Errorf("admin: changing the number of lanes to %d: %w", n, err)
	}
	return nil
}
