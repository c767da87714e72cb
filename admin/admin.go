// Package admin looks at an outbox and mends it: what waits and for how long, which aggregates are blocked, what became of one
// event; replaying and discarding dead letters; deleting what need not be kept.
//
// Every method asks the database. An error is returned, never turned into an empty answer: "nothing is dead" and "I could not
// look" are different things to know at three in the morning.
package admin

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// Config holds what may be tuned; its zero value is ready.
type Config struct {
	// Batch is how many events are replayed, discarded or deleted at a time. Defaults to 500.
	BatchSize int
	// Logger gets what the schedulers do. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
	// Captured says that change data capture reads the outbox, and no relay
	// delivers from it. Ready events then stay for as long as [Capture.Keep], and
	// wait for nothing; the observer is told so. Defaults to false.
	Captured bool
	// Observe plugs in metrics.
	Observe observe.Hooks
}

// Desk is where an operator sits. Its methods may be called concurrently, and while relays run.
type Desk struct {
	db  store.Operator
	cfg Config
}

// New returns a desk for an outbox.
func New(db store.Operator, cfg Config) (*Desk, error) {
	cfg, err := cfg.complete(db != nil)
	if err != nil {
		return nil, err
	}
	return &Desk{db: db, cfg: cfg}, nil
}

// complete checks a configuration, and that there is a store, and fills in defaults.
func (c Config) complete(store bool) (Config, error) {
	switch {
	case !store:
		return c, errors.New("admin: the store is nil")
	case c.BatchSize < 0:
		return c, fmt.Errorf("admin: Config: Batch: %d is negative", c.BatchSize)
	case c.BatchSize == 0:
		c.BatchSize = 500
	}
	if c.Logger == nil {
		c.Logger = slog.Default()
	}
	return c, nil
}

// wake tells a relay of this process, and others where the store can, that there is something to do.
func (d *Desk) wake(changed int) {
	if l, ok := d.db.(store.Local); ok && changed > 0 {
		l.Local().Wake()
	}
}

// ErrNotFound says that there is no such event. It was never written, or was delivered and is not in the history any more.
var ErrNotFound = errors.New("admin: no such event")

// Stats is what there is, as of one moment.
type Stats struct {
	store.Stats
	// Lag is the age of the oldest event that waits for its first delivery.
	Lag time.Duration
}

// Stats counts what there is, and tells the observer.
func (d *Desk) Stats(ctx context.Context) (Stats, error) {
	s, err := d.db.Stats(ctx)
	if err != nil {
		return Stats{}, fmt.Errorf("admin: stats: %w", err)
	}
	out := Stats{Stats: s}
	if !s.Oldest.IsZero() {
		out.Lag = max(s.Now.Sub(s.Oldest), 0)
	}
	if d.cfg.Observe.Backlog != nil {
		d.cfg.Observe.Backlog(observe.Backlog{
			Ready: s.Ready, Failed: s.Failed, Scheduled: s.Scheduled, Dead: s.Dead, Holding: s.Holding,
			MaxAttempts: s.MaxAttempts, Oldest: out.Lag, Captured: d.cfg.Captured,
		})
	}
	return out, nil
}

// Watch calls [Desk.Stats] every interval until ctx ends, so that the
// observer's gauges stay fresh. The log says when counting begins to fail, once
// a minute that it goes on failing, and when it works again.
func (d *Desk) Watch(ctx context.Context, every time.Duration) error {
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

// Count returns how many events of a state fit a filter.
func (d *Desk) Count(ctx context.Context, state store.State, f store.Filter) (int64, error) {
	n, err := d.db.Count(ctx, state, f)
	if err != nil {
		return 0, fmt.Errorf("admin: counting %s events: %w", state, err)
	}
	return n, nil
}

// Page is some events of a list, and where the next page begins.
type Page struct {
	Records []store.Record
	// Next is what to pass as after for the next page; 0 if this was the last.
	Next int64
}

// List returns events of a state that fit a filter, oldest first: those after a position, 0 for the beginning, and at most limit
// of them.
func (d *Desk) List(ctx context.Context, state store.State, f store.Filter, after int64, limit int) (Page, error) {
	if limit <= 0 {
		limit = d.cfg.BatchSize
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

// Find returns an event wherever it is, or [ErrNotFound].
func (d *Desk) Find(ctx context.Context, id waybill.ID) (store.Record, error) {
	records, err := d.db.Find(ctx, id)
	if err != nil {
		return store.Record{}, fmt.Errorf("admin: event %s: %w", id, err)
	}
	if len(records) == 0 {
		return store.Record{}, fmt.Errorf("%w: %s", ErrNotFound, id)
	}
	return records[0], nil
}

// SetLanes changes into how many lanes the outbox is divided. Stop the relays
// first: while one is live this is [store.ErrRelayLive]. Services may go on
// writing: the change waits for transactions that have written, and later ones
// use the new number.
func (d *Desk) SetLanes(ctx context.Context, n int) error {
	if err := d.db.SetLanes(ctx, n); err != nil {
		return fmt.Errorf("admin: changing the number of lanes to %d: %w", n, err)
	}
	return nil
}
