package admin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// ErrBacklog means that a function concerns the outbox as a whole, and not the
// backlog of one destination.
var ErrBacklog = errors.New("admin: not possible in the backlog of a destination")

// backlog has the rows of one destination in the form of an outbox.
type backlog struct{ driver.Backlog }

var _ driver.OutboxAdmin = backlog{}

// Purge implements [driver.Maintainer]. A backlog has no delivered rows.
func (b backlog) Purge(ctx context.Context, state store.State, age time.Duration, limit int) (int, error) {
	if state != store.Dead {
		return 0, nil
	}
	return b.PurgeDead(ctx, age, limit)
}

// Tidy implements [driver.Maintainer]: a backlog has no partitions.
func (backlog) Tidy(context.Context, time.Duration) error { return nil }

// PurgeWritten implements [driver.Maintainer].
func (backlog) PurgeWritten(context.Context, time.Duration, int) (int, error) { return 0, ErrBacklog }

// MakeReady implements [driver.Maintainer].
func (backlog) MakeReady(context.Context, int) (int, error) { return 0, ErrBacklog }

// SetLanes implements [driver.Maintainer].
func (backlog) SetLanes(context.Context, int) error { return ErrBacklog }

// at returns the functions for the backlog of a destination.
func (d *Outbox) at(to store.Destination) *Outbox {
	cfg := d.cfg
	cfg.Observe.Backlog = nil // it reports the counts of the outbox
	return &Outbox{db: backlog{d.backlogs.Backlog(to.Number)}, owners: d.owners, hub: d.hub, cfg: cfg, destination: to.Name, committed: d.committed, rollups: d.rollups}
}

// whole returns an error if d is the backlog of a destination.
func (d *Outbox) whole(what string) error {
	if d.destination != "" {
		return fmt.Errorf("%w: %s", ErrBacklog, what)
	}
	return nil
}

// Waiting is an event in the backlog of a destination.
type Waiting struct {
	Destination store.Destination
	// Record is the event at this destination: its state, attempts, due time
	// and last error there.
	store.Record
	// Behind is the event of the same aggregate that blocks this one at the
	// destination; nil if none does.
	Behind *store.Record
}

// waiting returns an event in the backlogs of all destinations, in the order of
// their numbers.
func (d *Outbox) waiting(ctx context.Context, id waybill.ID) ([]Waiting, error) {
	if d.backlogs == nil {
		return nil, nil
	}
	all, err := d.backlogs.AddDestinations(ctx)
	if err != nil {
		return nil, fmt.Errorf("admin: event %s: %w", id, err)
	}
	var out []Waiting
	for _, to := range all {
		there := d.at(to)
		records, err := there.db.Find(ctx, id)
		if err != nil {
			return nil, fmt.Errorf("admin: event %s at destination %q: %w", id, to.Name, err)
		}
		for _, r := range records {
			w := Waiting{Destination: to, Record: r}
			if r.State != store.Dead {
				if w.Behind, err = there.behind(ctx, r); err != nil {
					return nil, err
				}
			}
			out = append(out, w)
		}
	}
	return out, nil
}
