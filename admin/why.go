package admin

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/words"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Reason is the place of an event, or the reason why it has not arrived.
type Reason struct {
	Kind ReasonKind
	// Destination is the destination that the event has yet to reach; empty for
	// the outbox as a whole.
	Destination string
	// Text is the reason in a sentence. It may contain texts of the event's
	// errors, which are not trusted.
	Text string
	// Commands are the next commands to run, the best first.
	Commands []string
	// By is the event that comes first; zero if there is none.
	By waybill.ID
	// Since is the time at which the reason began, and Until the time at which
	// it ends; zero if it is not known.
	Since, Until time.Time
}

// ReasonKind is the kind of a [Reason].
type ReasonKind string

// The reasons.
const (
	// ReasonDelivered: the event was delivered everywhere.
	ReasonDelivered ReasonKind = "delivered"
	// ReasonUnknown: the tables do not have the event.
	ReasonUnknown ReasonKind = "unknown"
	// ReasonDead: the event is a dead letter.
	ReasonDead ReasonKind = "dead"
	// ReasonDying: the event has failed for good, and becomes a dead letter
	// when its turn comes.
	ReasonDying ReasonKind = "dying"
	// ReasonNoRelay: no relay is running.
	ReasonNoRelay ReasonKind = "no_relay"
	// ReasonNoOwner: no relay owns the lane of the event.
	ReasonNoOwner ReasonKind = "no_owner"
	// ReasonCaptured: change data capture reads the event; no relay does.
	ReasonCaptured ReasonKind = "captured"
	// ReasonPaused: the destination is paused.
	ReasonPaused ReasonKind = "paused"
	// ReasonDown: the destination is unavailable.
	ReasonDown ReasonKind = "down"
	// ReasonLimited: the event waits for the rate of the destination.
	ReasonLimited ReasonKind = "rate_limited"
	// ReasonHeld: an earlier event of the aggregate must come first.
	ReasonHeld ReasonKind = "held"
	// ReasonScheduled: the event is not due yet.
	ReasonScheduled ReasonKind = "scheduled"
	// ReasonRetry: the event has failed and waits for its next attempt.
	ReasonRetry ReasonKind = "retry"
	// ReasonBehind: earlier events of the lane come first.
	ReasonBehind ReasonKind = "behind"
	// ReasonInFlight: the event is first in its lane; the relay delivers it.
	ReasonInFlight ReasonKind = "in_flight"
)

// UnknownEventError is the error of [Outbox.Journey] for an event that the
// tables do not have. It wraps [ErrNotFound].
type UnknownEventError struct {
	ID waybill.ID
	// Reason describes what may have happened to the event.
	Reason Reason
}

// Error names the event.
func (e *UnknownEventError) Error() string { return fmt.Sprintf("%v: %s", ErrNotFound, e.ID) }

// Unwrap returns [ErrNotFound].
func (e *UnknownEventError) Unwrap() error { return ErrNotFound }

// unknown returns the error for an event that the tables do not have.
func (d *Outbox) unknown(ctx context.Context, id waybill.ID) error {
	r := Reason{Kind: ReasonUnknown, Commands: []string{"waybill config --changed"}}
	made := ". Its id was made at " + id.Time().UTC().Format(time.RFC3339) + "."
	if d.committed == nil {
		r.Text = "It was never committed to these tables, or it was delivered and has been purged from the history" + made
		return &UnknownEventError{id, r}
	}
	switch was, err := d.committed(ctx, id); {
	case err != nil && !errors.Is(err, waybill.ErrUncertain):
		return fmt.Errorf("admin: event %s: %w", id, err)
	case err != nil:
		r.Text = "It was never committed to these tables, its transaction is still open, or it was delivered and has been purged from the history" + made
	case was:
		r.Text = "It was committed and delivered, and the history does not have it" + made
	default:
		r.Text = "It was never committed to these tables: its transaction was rolled back, or wrote to another database, schema or prefix" + made
	}
	return &UnknownEventError{id, r}
}

// why returns the reasons why an event has not arrived, the most important
// first.
func (d *Outbox) why(ctx context.Context, j *Journey, found bool, s store.Stats) ([]Reason, error) {
	var out []Reason
	pending, troubles := false, Troubles(s)
	add := func(at *Outbox, r store.Record, behind *store.Record, to store.Destination) error {
		pending = pending || r.State == store.Ready || r.State == store.Delayed
		one, err := at.waits(ctx, &place{r, behind, to, j.Owner, s.Now, troubles})
		if one.Kind != ReasonInFlight || j.Live {
			out = append(out, one)
		}
		return err
	}
	if found && j.State != store.Delivered {
		if err := add(d, j.Record, j.Behind, store.Destination{Name: d.destination}); err != nil {
			return nil, err
		}
	}
	for _, w := range j.Waiting {
		if err := add(d.at(w.Destination), w.Record, w.Behind, w.Destination); err != nil {
			return nil, err
		}
	}
	if len(out) == 0 && !pending {
		return []Reason{{
			Kind: ReasonDelivered, Since: j.EndedAt, Commands: []string{"waybill inbox list"},
			Text: "It was delivered " + words.Span(max(s.Now.Sub(j.EndedAt), 0)) + " ago. If a consumer has not applied it, its inbox says why.",
		}}, nil
	}
	if pending {
		if r, ok := d.idle(j, s); ok {
			out = append([]Reason{r}, out...)
		}
	}
	return out, nil
}

// idle returns the reason why no relay delivers an event, whatever else it
// waits for.
func (d *Outbox) idle(j *Journey, s store.Stats) (Reason, bool) {
	switch {
	case d.cfg.Captured:
		return Reason{Kind: ReasonCaptured, Text: "Change data capture reads it from the tables; no relay delivers it.", Commands: []string{"waybill doctor"}}, true
	case len(s.Nodes) == 0:
		return Reason{Kind: ReasonNoRelay, Text: "No relay is running: nothing is delivered until one starts.", Commands: []string{"waybill doctor"}}, true
	case !j.Live:
		return Reason{
			Kind: ReasonNoOwner, Commands: []string{"waybill doctor"},
			Text: fmt.Sprintf("No live relay owns lane %d: nothing of this lane is delivered until a relay takes it over.", j.Lane),
		}, true
	}
	return Reason{}, false
}

// place is an event in the outbox, or at a destination.
type place struct {
	store.Record
	behind *store.Record
	to     store.Destination // its name is empty in the outbox
	owner  waybill.ID
	now    time.Time
	// troubles are those of all destinations.
	troubles []Trouble
}

// at names the place: " at destination billing", or nothing.
func (p *place) at() string {
	if p.to.Name == "" {
		return ""
	}
	return " at destination " + p.to.Name
}

// command returns a command for the place.
func (p *place) command(text string) string {
	if p.to.Name != "" {
		text += " --destination " + words.Quoted(p.to.Name)
	}
	return "waybill " + text
}

// waits returns what an event waits for at one place.
func (d *Outbox) waits(ctx context.Context, p *place) (Reason, error) {
	r := Reason{Destination: p.to.Name}
	switch {
	case p.State == store.Dead:
		p.dead(&r)
	case p.to.IsPaused():
		r.Kind, r.Since, r.Commands = ReasonPaused, p.to.PausedAt, []string{"waybill destinations resume " + words.Quoted(p.to.Name)}
		r.Text = fmt.Sprintf("Destination %s has been paused for %s%s.", p.to.Name, p.since(p.to.PausedAt), because(p.to.Reason))
	case p.behind != nil:
		p.held(&r)
	case p.Final:
		r.Kind, r.Commands = ReasonDying, []string{p.command("dead list")}
		r.Text = fmt.Sprintf("It has failed for good%s, and becomes a dead letter when its turn comes%s.", p.at(), because(p.LastError))
	case p.DueAt.After(p.now) && p.Attempts > 0:
		r.Kind, r.Until, r.Commands = ReasonRetry, p.DueAt, []string{p.command("list --state failed")}
		r.Text = fmt.Sprintf("It has failed%s, %s, and is tried again in %s%s.", p.at(), times(p.Attempts), words.Span(p.DueAt.Sub(p.now)), because(p.LastError))
	case p.troubled(&r):
	case p.DueAt.After(p.now):
		r.Kind, r.Until, r.Commands = ReasonScheduled, p.DueAt, []string{p.command("list --state scheduled")}
		r.Text = fmt.Sprintf("It is scheduled: it is due%s in %s.", p.at(), words.Span(p.DueAt.Sub(p.now)))
	default:
		err := d.turn(ctx, p, &r)
		return r, err
	}
	return r, nil
}

// dead describes a dead letter.
func (p *place) dead(r *Reason) {
	id := p.ID.String()
	r.Kind, r.Since = ReasonDead, p.EndedAt
	r.Commands = []string{p.command("dead replay " + id), p.command("dead discard " + id)}
	r.Text = fmt.Sprintf("It has been a dead letter%s for %s, after %s%s.", p.at(), p.since(p.EndedAt), attempts(p.Attempts), because(p.LastError))
	if p.Holds {
		r.Text += " It holds the later events of its aggregate."
		r.Commands = append(r.Commands, p.command("blocked unblock "+id))
	}
}

// held describes an event that waits for another one of its aggregate.
func (p *place) held(r *Reason) {
	by := p.behind.ID.String()
	r.Kind, r.By, r.Since = ReasonHeld, p.behind.ID, p.behind.CreatedAt
	r.Commands = []string{"waybill show " + by}
	if p.behind.State == store.Dead {
		r.Commands = append(r.Commands, p.command("dead replay "+by))
	}
	if p.behind.Holds {
		r.Commands = append(r.Commands, p.command("blocked unblock "+by))
	}
	state := "ready"
	switch {
	case p.behind.State == store.Dead:
		state = "dead"
	case p.behind.Attempts > 0:
		state = "failed, " + times(p.behind.Attempts)
	case p.behind.State == store.Delayed:
		state = "replayed"
	}
	r.Text = fmt.Sprintf("It waits%s for the earlier event %s of its aggregate (%s, %s)%s.", p.at(), by, p.behind.Event.Type, state, because(p.behind.LastError))
}

// ahead is the number of rows that are read to find the place of an event in
// its lane.
const ahead = 500

// slow is the time after which an event that is first in its lane should have
// been delivered.
const slow = time.Minute

// turn describes an event that is due: it is first in its lane, or waits for
// earlier ones.
func (d *Outbox) turn(ctx context.Context, p *place, r *Reason) error {
	q, err := d.earlier(ctx, p)
	switch {
	case err != nil:
		return err
	case q.first != nil && p.State == store.Ready:
		p.behind = q.first
		p.held(r)
		return nil
	case q.n > 0:
		r.Kind, r.Since, r.Commands = ReasonBehind, q.oldest, []string{p.command("stats")}
		n := one(q.n, "earlier event waits", "earlier events wait")
		if q.more {
			n = fmt.Sprintf("more than %d earlier events of all lanes wait", q.n)
		}
		r.Text = fmt.Sprintf("It waits%s for its turn in lane %d: %s, the oldest for %s.", p.at(), p.Lane, n, p.since(q.oldest))
		return nil
	}
	r.Kind, r.Since, r.Commands = ReasonInFlight, p.CreatedAt, []string{"waybill tail"}
	r.Text = fmt.Sprintf("It is in flight%s: it is the first event of lane %d, and relay node %s delivers it.", p.at(), p.Lane, p.owner)
	if waited := p.now.Sub(p.CreatedAt); waited > slow {
		r.Commands = []string{"waybill doctor"}
		r.Text = fmt.Sprintf("It has been in flight%s for %s: it is the first event of lane %d, relay node %s delivers it, and the receiver takes long or does not answer.",
			p.at(), words.Span(waited), p.Lane, p.owner)
	}
	return nil
}

// queue is what waits before an event.
type queue struct {
	// n is the number of ready events before it in its lane, oldest the time of
	// the first, and first the first one of its aggregate.
	n      int
	oldest time.Time
	first  *store.Record
	// more means that there are too many to count. The numbers are then those
	// of all lanes.
	more bool
}

// earlier returns what is ready before an event in its lane.
func (d *Outbox) earlier(ctx context.Context, p *place) (queue, error) {
	page, err := d.List(ctx, store.Ready, store.Filter{}, 0, ahead)
	if err != nil {
		return queue{}, err
	}
	agg := driver.AggregateOf(&p.Event)
	var own, all queue
	for _, r := range page.Records {
		if r.Seq >= p.Seq {
			break
		}
		all.add(r)
		if r.Lane != p.Lane {
			continue
		}
		own.add(r)
		if own.first == nil && !agg.IsZero() && driver.AggregateOf(&r.Event) == agg {
			own.first = &r
		}
	}
	if own.first == nil && all.n == ahead {
		all.more = true
		return all, nil
	}
	return own, nil
}

func (q *queue) add(r store.Record) {
	if q.n++; q.oldest.IsZero() || r.CreatedAt.Before(q.oldest) {
		q.oldest = r.CreatedAt
	}
}

// since returns the time that has passed since a time of the database.
func (p *place) since(t time.Time) string { return words.Span(max(p.now.Sub(t), 0)) }

// because appends a cause to a sentence without its period.
func because(text string) string {
	text = strings.TrimRight(strings.Join(strings.Fields(text), " "), ".")
	if text == "" {
		return ""
	}
	return ": " + text
}

func one(n int, single, many string) string {
	if n == 1 {
		return "1 " + single
	}
	return fmt.Sprintf("%d %s", n, many)
}

func attempts(n int) string { return one(n, "attempt", "attempts") }
