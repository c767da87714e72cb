package admin

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Blocked is an aggregate that waits for one of its events.
type Blocked struct {
	store.Aggregate
	// By is the event that blocks the aggregate: one that failed and will be
	// retried, a replayed one, or a dead letter if the relay blocks on dead
	// letters.
	By store.Record
	// Waiting is the number of ready events of the aggregate that may not be
	// delivered.
	Waiting int64
	// Since is the time at which the blocking event was written.
	Since time.Time
}

// Blocked lists aggregates that are blocked by one of their events: first those
// that wait for an operator, then those that wait for a retry, each oldest
// first, and at most limit.
func (d *Outbox) Blocked(ctx context.Context, limit int) ([]Blocked, error) {
	if limit <= 0 {
		limit = d.cfg.BatchSize
	}
	var out []Blocked
	var err error
	known := make(map[store.Aggregate]bool)
	for _, state := range []store.State{store.Dead, store.Delayed} {
		if out, err = d.appendBlocked(ctx, out, known, state, limit); err != nil {
			return nil, err
		}
	}
	for i := range out {
		b := &out[i]
		n, err := d.Count(ctx, store.Ready, store.Filter{
			TenantID: b.Tenant, NoTenant: b.Tenant == "", AggregateType: b.Type, AggregateID: b.ID,
		})
		if err != nil {
			return nil, err
		}
		b.Waiting = n
	}
	return out, nil
}

// appendBlocked appends the aggregates that events in one state block, and that
// are not known yet, until out has limit aggregates.
func (d *Outbox) appendBlocked(
	ctx context.Context, out []Blocked, known map[store.Aggregate]bool, state store.State, limit int,
) ([]Blocked, error) {
	for after := int64(0); ; {
		page, err := d.List(ctx, state, store.Filter{Holding: true}, after, limit)
		if err != nil {
			return nil, err
		}
		for _, r := range page.Records {
			agg := driver.AggregateOf(&r.Event)
			if known[agg] || len(out) == limit {
				continue
			}
			known[agg] = true
			out = append(out, Blocked{Aggregate: agg, By: r, Since: r.CreatedAt})
		}
		if page.Next == 0 || len(out) == limit {
			return out, nil
		}
		after = page.Next
	}
}

// Unblock lets aggregates continue although the events with these ids, which
// block them, are not delivered. The events stay in place: dead letters stay
// dead, and deferred events are retried later, behind their successors. Unblock
// returns the ids that blocked an aggregate.
func (d *Outbox) Unblock(ctx context.Context, ids ...waybill.ID) ([]waybill.ID, error) {
	var out []waybill.ID
	ctx = audited(ctx, "unblock", d.destination, idsTarget(ids))
	for part := range slices.Chunk(ids, d.cfg.BatchSize) {
		done, err := d.db.Unblock(ctx, part)
		if err != nil {
			return out, fmt.Errorf("admin: unblocking: %w", err)
		}
		out = append(out, done...)
		d.wake(len(done))
	}
	return out, nil
}
