package dashboard

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store"
)

// late is the age of the oldest ready event from which the overview names it.
const late = time.Minute

// sampled is the number of dead letters that the overview reads to name their
// most frequent cause.
const sampled = 100

// trouble is something that needs attention.
type trouble struct {
	// Severe means that events do not arrive.
	Severe bool
	What   string
	// Cause is an error from the tables; it may be empty.
	Cause string
	// Command is the next command to run; it may be empty.
	Command string
	// Screen and Parameters are the page with the details.
	Screen     string
	Parameters []string
	// Action is the change that a button makes to Destination.
	Action      Action
	Destination string
}

// problems returns what needs attention, the most severe first.
func (d *Dashboard) problems(ctx context.Context, s *snapshot) ([]trouble, error) {
	severe := s.relayProblems()
	var rest []trouble
	for _, to := range s.Destinations {
		found, err := d.destinationProblems(ctx, to)
		if err != nil {
			return nil, err
		}
		for _, t := range found {
			if t.Severe {
				severe = append(severe, t)
			} else {
				rest = append(rest, t)
			}
		}
	}
	own, err := d.outboxProblems(ctx, s.Stats)
	if err != nil {
		return nil, err
	}
	rest = append(rest, own...)
	return append(severe, append(rest, s.consumerProblems()...)...), nil
}

// relayProblems are those of the relays and their lanes.
func (s *snapshot) relayProblems() []trouble {
	var out []trouble
	waiting := s.Waiting()
	for _, to := range s.Destinations {
		waiting += to.Waiting()
	}
	unowned := len(s.Stats.Lanes) - s.Owned()
	switch {
	case len(s.Stats.Nodes) == 0 && waiting > 0:
		out = append(out, trouble{
			Severe: true, What: "No relay is running: " + one(waiting, "event") + " cannot be delivered", Command: "waybill doctor", Screen: "relays",
		})
	case len(s.Stats.Nodes) > 0 && unowned > 0:
		out = append(out, trouble{
			What: fmt.Sprintf("%d of %d lanes have no live relay: their events wait until a relay takes them over", unowned, len(s.Stats.Lanes)), Screen: "relays",
		})
	}
	own := slices.DeleteFunc(admin.Troubles(s.Stats.Stats), func(t admin.Trouble) bool { return t.Destination != "" })
	if len(own) > 0 {
		out = append(out, trouble{Severe: true, What: reported(own[0]), Command: own[0].Commands[0], Screen: "relays"})
	}
	if len(s.Stats.Nodes) > 0 && s.Stats.Lag > late {
		out = append(out, trouble{
			Severe: true, What: "The oldest ready event has been waiting for " + span(s.Stats.Lag) + " although a relay is running",
			Command: "waybill doctor", Screen: "events", Parameters: []string{"state", "ready"},
		})
	}
	return out
}

// outboxProblems are those of the outbox's own rows.
func (d *Dashboard) outboxProblems(ctx context.Context, s admin.Stats) ([]trouble, error) {
	var out []trouble
	if s.Dead > 0 {
		text, err := d.commonCause(ctx, d.cfg.Outbox)
		if err != nil {
			return nil, err
		}
		out = append(out, trouble{What: letters(s.Dead), Cause: text, Command: "waybill dead list", Screen: "dead"})
	}
	if s.Failed > 0 {
		text, err := lastError(ctx, d.cfg.Outbox)
		if err != nil {
			return nil, err
		}
		out = append(out, trouble{
			What: one(s.Failed, "event") + " failed and will be retried", Cause: text, Screen: "events", Parameters: []string{"state", "failed"},
		})
	}
	return out, nil
}

// destinationProblems are those of one destination.
func (d *Dashboard) destinationProblems(ctx context.Context, to admin.Destination) ([]trouble, error) {
	var out []trouble
	if to.Failed == 0 && to.Dead == 0 && !to.IsPaused() && len(to.Troubles) == 0 {
		return nil, nil
	}
	rows, err := d.cfg.Destinations.Outbox(ctx, to.Name)
	if err != nil {
		return nil, err
	}
	switch {
	case to.IsPaused():
		what := fmt.Sprintf("Destination %s has been paused for %s: %s", to.Name, span(to.PausedFor), waits(to.Waiting()))
		out = append(out, trouble{
			Severe: to.Waiting() > 0, What: what, Cause: to.Reason, Command: "waybill destinations resume " + to.Name, Screen: "destinations",
			Action: Resume, Destination: to.Name,
		})
	case len(to.Troubles) > 0:
		t := to.Troubles[0]
		out = append(out, trouble{
			Severe: t.State == admin.TroubleDown, What: reported(t) + " " + waits(to.Waiting()) + ".", Command: t.Commands[0], Screen: "destinations",
			Action: Probe, Destination: to.Name,
		})
	case to.Failed > 0:
		text, err := lastError(ctx, rows)
		if err != nil {
			return nil, err
		}
		out = append(out, trouble{
			Severe: true, What: fmt.Sprintf("Destination %s fails: %s, the oldest for %s", to.Name, waits(to.Waiting()), span(to.Lag)), Cause: text,
			Command: "waybill destinations probe " + to.Name, Screen: "events", Parameters: []string{"destination", to.Name, "state", "failed"},
			Action: Probe, Destination: to.Name,
		})
	}
	if to.Dead > 0 {
		text, err := d.commonCause(ctx, rows)
		if err != nil {
			return nil, err
		}
		out = append(out, trouble{
			What: fmt.Sprintf("%s at destination %s", letters(to.Dead), to.Name), Cause: text,
			Command: "waybill dead list --destination " + to.Name, Screen: "dead", Parameters: []string{"destination", to.Name},
		})
	}
	return out, nil
}

// reported returns a report about a destination as a sentence.
func reported(t admin.Trouble) string { return sentence(strings.TrimSuffix(t.Text, ".")) }

// sentences returns the first reports about destinations.
func sentences(all []admin.Trouble) []string {
	out := make([]string, 0, min(len(all), maxReports))
	for _, t := range all[:min(len(all), maxReports)] {
		out = append(out, reported(t))
	}
	return out
}

// maxReports is the maximum number of reports that a page shows together.
const maxReports = 20

// waits returns how many events wait, in words.
func waits(n int64) string {
	if n == 1 {
		return "1 event waits"
	}
	return count(n) + " events wait"
}

// consumerProblems are those of consumer groups and idempotency keys.
func (s *snapshot) consumerProblems() []trouble {
	var out []trouble
	for _, g := range s.Groups {
		if g.Dead > 0 {
			out = append(out, trouble{
				What: fmt.Sprintf("Consumer group %s cannot apply %s", g.Group, one(g.Dead, "event")), Command: "waybill inbox list --group " + g.Group,
				Screen: "groups", Parameters: []string{"group", g.Group, "state", "dead"},
			})
		}
	}
	if k := s.Keys; k != nil && k.Uncertain > 0 {
		out = append(out, trouble{
			What: one(k.Uncertain, "idempotency key") + " wait for a decision: whether the effect happened is not known", Command: "waybill keys list",
			Screen: "keys", Parameters: []string{"state", "uncertain"},
		})
	}
	return out
}

// lastError returns the error of the first event that waits for a retry.
func lastError(ctx context.Context, rows *admin.Outbox) (string, error) {
	page, err := rows.List(ctx, store.Delayed, store.Filter{Failed: true}, 0, 1)
	if err != nil || len(page.Records) == 0 {
		return "", err
	}
	return page.Records[0].LastError, nil
}

// commonCause returns the most frequent cause of the first dead letters.
func (d *Dashboard) commonCause(ctx context.Context, rows *admin.Outbox) (string, error) {
	page, err := rows.List(ctx, store.Dead, store.Filter{}, 0, sampled)
	if err != nil || len(page.Records) == 0 {
		return "", err
	}
	groups := group(page.Records)
	text := groups[0].Cause
	if n := len(groups) - 1; n > 0 {
		text += fmt.Sprintf(" (and %s)", one(int64(n), "other cause"))
	}
	return text, nil
}
