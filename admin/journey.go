package admin

import (
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Journey describes one event: its state, its past, and what it waits for.
type Journey struct {
	store.Record
	// Steps are the past and planned steps, in order.
	Steps []Step
	// Behind is the event of the same aggregate that blocks this one; nil if
	// none does.
	Behind *store.Record
	// Waiting is the event at each destination that has yet to receive it,
	// although it has left the outbox.
	Waiting []Waiting
	// Owner is the relay node that owns the event's lane; zero if none does.
	// Live reports whether the node is alive.
	Owner waybill.ID
	Live  bool
	// Why has the reasons why the event has not arrived, in words and with the
	// next commands: first the reasons that concern the outbox and every
	// destination, then one for each of these that the event has yet to leave
	// or to reach. It is never empty.
	Why []Reason
}

// Step is one step of an event's journey.
type Step struct {
	// At is the time of the step; zero if the row has no time.
	At   time.Time
	What string
}

// Journey returns the journey of an event, or an [*UnknownEventError].
func (d *Outbox) Journey(ctx context.Context, id waybill.ID) (Journey, error) {
	r, found, err := d.own(ctx, id)
	if err != nil {
		return Journey{}, err
	}
	j := Journey{Record: r}
	if j.Waiting, err = d.waiting(ctx, id); err != nil {
		return Journey{}, err
	}
	switch {
	case found:
		j.Steps = steps(r)
		j.markWaiting()
	case len(j.Waiting) > 0:
		r = j.Waiting[0].Record
		j.Record = r
		j.Steps = append(written(r), Step{What: "left the outbox; the history does not have it"})
	default:
		return Journey{}, d.unknown(ctx, id)
	}
	stats, err := d.members(ctx)
	if err != nil {
		return Journey{}, fmt.Errorf("admin: event %s: %w", id, err)
	}
	for _, l := range stats.Lanes {
		if l.Lane == r.Lane {
			j.Owner, j.Live = l.Owner, l.Live
		}
	}
	if found && (r.State == store.Ready || r.State == store.Delayed) {
		if j.Behind, err = d.behind(ctx, r); err != nil {
			return Journey{}, err
		}
	}
	if j.Why, err = d.why(ctx, &j, found, stats); err != nil {
		return Journey{}, err
	}
	return j, nil
}

// markWaiting adds to the last step of a delivered event which destinations
// have yet to receive it.
func (j *Journey) markWaiting() {
	if j.State != store.Delivered || len(j.Waiting) == 0 {
		return
	}
	var names []string
	for _, w := range j.Waiting {
		names = append(names, w.Destination.Name)
	}
	j.Steps[len(j.Steps)-1].What += ", but not to " + strings.Join(names, ", ")
}

// written derives an event's first steps from its row.
func written(r store.Record) []Step {
	var out []Step
	if at := r.Event.OccurredAt; !at.IsZero() && at.Before(r.CreatedAt.Add(-time.Millisecond)) {
		out = append(out, Step{at, "occurred"})
	}
	return append(out, Step{r.CreatedAt, fmt.Sprintf("written to lane %d as number %d", r.Lane, r.Seq)})
}

// steps derives an event's steps from its row.
func steps(r store.Record) []Step {
	out := written(r)
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
			what = "will be retried"
		}
		out = append(out, Step{r.DueAt, what})
	case store.Dead:
		out = append(out, Step{r.EndedAt, "dead: " + orNone(r.LastError)})
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
		return "none stored"
	}
	return text
}

// behind returns the event that blocks another one of its aggregate, or nil.
func (d *Outbox) behind(ctx context.Context, r store.Record) (*store.Record, error) {
	agg := driver.AggregateOf(&r.Event)
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
			if other.ID != r.ID && other.Seq < r.Seq && driver.AggregateOf(&other.Event) == agg {
				return &other, nil
			}
		}
	}
	return nil, nil
}
