package admin

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Journey is what is known about one event: where it stands, how it got there, and what it waits for.
type Journey struct {
	store.Record
	// Steps are what happened and what is planned, in order.
	Steps []Step
	// Behind is the event of the same aggregate that holds this one back; nil if none does.
	Behind *store.Record
	// Owner is the relay node that has the event's lane; zero if none has it. Live says that it is alive.
	Owner waybill.ID
	Live  bool
}

// Step is one thing on an event's way.
type Step struct {
	// At is when; zero where the row does not say.
	At   time.Time
	What string
}

// Journey returns what is known about an event, or [ErrNotFound].
func (d *Desk) Journey(ctx context.Context, id waybill.ID) (Journey, error) {
	r, err := d.Find(ctx, id)
	if err != nil {
		return Journey{}, err
	}
	j := Journey{Record: r, Steps: steps(r)}
	stats, err := d.db.Stats(ctx)
	if err != nil {
		return Journey{}, fmt.Errorf("admin: event %s: %w", id, err)
	}
	for _, l := range stats.Lanes {
		if l.Lane == r.Lane {
			j.Owner, j.Live = l.Owner, l.Live
		}
	}
	if r.State == store.Ready || r.State == store.Delayed {
		if j.Behind, err = d.behind(ctx, r); err != nil {
			return Journey{}, err
		}
	}
	return j, nil
}

// steps tells an event's story from its row.
func steps(r store.Record) []Step {
	var out []Step
	if at := r.Event.OccurredAt; !at.IsZero() && at.Before(r.CreatedAt.Add(-time.Millisecond)) {
		out = append(out, Step{at, "occurred"})
	}
	out = append(out, Step{r.CreatedAt, fmt.Sprintf("written to lane %d as number %d", r.Lane, r.Seq)})
	if r.Replay > 0 {
		out = append(out, Step{What: fmt.Sprintf("replayed by an operator, %s", times(r.Replay))})
	}
	if r.Attempts > 0 {
		out = append(out, Step{What: fmt.Sprintf("tried %s; last error: %s", times(r.Attempts), orNone(r.LastError))})
	}
	switch r.State {
	case store.Delayed:
		what := "will be delivered"
		if r.Attempts > 0 {
			what = "will be tried again"
		}
		out = append(out, Step{r.DueAt, what})
	case store.Dead:
		out = append(out, Step{r.EndedAt, "given up: " + orNone(r.LastError)})
	case store.Delivered:
		out = append(out, Step{r.EndedAt, "delivered"})
	case store.Ready:
	}
	return out
}

func times(n int) string {
	if n == 1 {
		return "once"
	}
	return fmt.Sprintf("%d times", n)
}

func orNone(text string) string {
	if text == "" {
		return "none was kept"
	}
	return text
}

// behind returns the event that holds another one of its aggregate back, or nil.
func (d *Desk) behind(ctx context.Context, r store.Record) (*store.Record, error) {
	agg := store.AggregateOf(&r.Event)
	if agg.IsZero() {
		return nil, nil
	}
	f := store.Filter{TenantID: agg.Tenant, NoTenant: agg.Tenant == "", AggregateType: agg.Type, AggregateID: agg.ID, Holding: true}
	for _, state := range []store.State{store.Dead, store.Delayed} {
		page, err := d.List(ctx, state, f, 0, d.cfg.BatchSize)
		if err != nil {
			return nil, err
		}
		for _, other := range page.Records {
			if other.ID != r.ID && other.Seq < r.Seq && store.AggregateOf(&other.Event) == agg {
				return &other, nil
			}
		}
	}
	return nil, nil
}
