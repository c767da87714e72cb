package admin

import (
	"cmp"
	"context"
	"fmt"
	"math"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/words"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Trouble is the state of a destination that does not take the events of a
// relay node as they come, as the node reports it with its heartbeats.
type Trouble struct {
	driver.Trouble
	// Node is the node that reports it, and Host its machine.
	Node waybill.ID
	Host string
	// Text is the trouble in a sentence that begins with a small letter: since
	// when, the last error and the next probe. The error is not trusted.
	Text string
	// Commands are the next commands to run, the best first.
	Commands []string
}

// The states of a [Trouble].
const (
	// TroubleDown: the destination is unavailable.
	TroubleDown = driver.TroubleDown
	// TroubleLimited: the events wait for the rate of the destination.
	TroubleLimited = driver.TroubleLimited
)

// ReportOf returns the report of a live node of [Outbox.Stats], or nil if the
// node has none. Times are by the database's clock.
func ReportOf(n store.Node) *driver.NodeReport { return driver.DecodeNodeReport(n.Report, n.Expires) }

// text returns the trouble in a sentence.
func (t *Trouble) text(now time.Time) string {
	since := words.Span(max(now.Sub(t.Since), 0))
	if t.State == TroubleLimited {
		return fmt.Sprintf("%s has been rate-limited for %s, to %v events per second and node%s.", t.name(), since, math.Round(t.Rate*100)/100, because(t.Error))
	}
	next := "a probe is due"
	if t.NextProbe.After(now) {
		next = "the next probe is in " + words.Span(t.NextProbe.Sub(now))
	}
	return fmt.Sprintf("%s has been %s for %s%s; %s.", t.name(), t.State, since, because(t.Error), next)
}

// name names what is in trouble.
func (t *Trouble) name() string {
	switch {
	case t.Destination == "" && t.Part == "":
		return "the destination"
	case t.Destination == "":
		return "destination " + t.Part
	case t.Part == "":
		return "destination " + t.Destination
	}
	return "part " + t.Part + " of destination " + t.Destination
}

// commands returns the next commands to run.
func (t *Trouble) commands() []string {
	switch {
	case t.Destination == "":
		return []string{"waybill doctor"}
	case t.State == TroubleLimited:
		return []string{"waybill stats --destination " + words.Quoted(t.Destination)}
	}
	return []string{"waybill destinations probe " + words.Quoted(t.Destination), "waybill doctor"}
}

// Troubles returns what the live nodes report about destinations that do not
// take their events, the longest first.
func Troubles(s store.Stats) []Trouble {
	var out []Trouble
	for _, n := range s.Nodes {
		r := ReportOf(n)
		if r == nil {
			continue
		}
		for _, t := range r.Troubles {
			one := Trouble{Trouble: t, Node: n.ID, Host: r.Host}
			one.Text, one.Commands = one.text(s.Now), one.commands()
			out = append(out, one)
		}
	}
	slices.SortStableFunc(out, func(a, b Trouble) int {
		return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.Destination, b.Destination), strings.Compare(a.Part, b.Part))
	})
	return out
}

// members returns the live nodes and the owners of the lanes, with the
// database's clock.
func (d *Outbox) members(ctx context.Context) (store.Stats, error) {
	if m, ok := d.owners.(driver.Members); ok {
		return m.Members(ctx)
	}
	return d.owners.Stats(ctx)
}

// trouble returns the trouble of the destination for which an event waits, as
// the owner of its lane reports it. An event of a part that is not known may
// wait for any part.
func (p *place) trouble() (found Trouble, ok bool) {
	for _, t := range p.troubles {
		if t.Destination != p.to.Name || t.Node != p.owner {
			continue
		}
		certain := t.Part == "" || t.Part == p.Event.Topic || t.Part == p.Event.Type
		if certain || !ok && p.now.Sub(p.CreatedAt) > sluggish {
			found, ok = t, true
		}
		if certain && t.State == TroubleDown {
			break
		}
	}
	return found, ok
}

// sluggish is the time after which an event of an available destination should
// have been delivered.
const sluggish = 5 * time.Second

// troubled describes an event that waits for a destination in trouble. It
// reports false if the event does not wait for that.
func (p *place) troubled(r *Reason) bool {
	t, ok := p.trouble()
	switch {
	case !ok:
		return false
	case p.DueAt.After(p.now) && (t.State != TroubleDown || p.DueAt.After(t.NextProbe.Add(slow))):
		return false // it is scheduled
	}
	r.Kind, r.Since, r.Until, r.Commands = ReasonDown, t.Since, t.NextProbe, t.Commands
	if t.State == TroubleLimited {
		r.Kind = ReasonLimited
	}
	r.Text = "It waits: " + t.Text
	return true
}
