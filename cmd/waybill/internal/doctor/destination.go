package doctor

import (
	"cmp"
	"context"
	"fmt"
	"regexp"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/daemon"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// destination is a destination of the settings, of the tables, or of both.
type destination struct {
	name string
	// settings is nil if the settings do not have the destination.
	settings *settings.Destination
	// state is nil if the destination is not registered, or unknown is set: the
	// error of the query.
	state   *admin.Destination
	unknown error
	// orphan: the settings are those of the outbox's only relay, and do not
	// have the destination.
	orphan bool
}

// openDestinations adds the destinations of the settings, with connections to
// their servers, and the others that are registered.
func (p *patient) openDestinations(ctx context.Context) {
	registered, ours, err := p.registered(ctx)
	var group sync.WaitGroup
	for i := range p.Destinations {
		d := &p.Destinations[i]
		one := p.as(&destination{name: d.Name, settings: d, unknown: err})
		if at := slices.IndexFunc(registered, func(r admin.Destination) bool { return r.Name == d.Name }); at >= 0 {
			one.to.state = &registered[at]
		}
		group.Go(func() { one.sink, one.noSink = dial(ctx, d.Sink) })
	}
	group.Wait()
	for i := range registered {
		r := &registered[i]
		if !slices.ContainsFunc(p.Destinations, func(d settings.Destination) bool { return d.Name == r.Name }) {
			p.as(&destination{name: r.Name, state: r, orphan: ours})
		}
	}
}

// as adds a patient that is a destination.
func (p *patient) as(to *destination) *patient {
	own := *p.Settings
	if to.settings != nil {
		own.Sink = to.settings.Sink
	}
	one := &patient{
		Settings: &own, store: p.store, ops: p.ops, noStore: p.noStore, noTables: p.noTables, to: to, now: p.now, long: p.long, lag: p.lag, scrub: p.scrub, timeout: p.timeout,
	}
	p.destinations = append(p.destinations, one)
	return one
}

// registered returns the destinations in the tables. ours means that the
// outbox records no relay with other settings, which may have destinations of
// its own.
func (p *patient) registered(ctx context.Context) (all []admin.Destination, ours bool, err error) {
	if p.noTables != nil || p.store.Backlogs == nil {
		return nil, false, nil
	}
	ops, err := admin.NewDestinations(p.store, admin.Config{})
	if err != nil {
		return nil, false, err
	}
	if all, err = ops.List(ctx); err != nil {
		return nil, false, err
	}
	recorded, err := p.store.SinkGuard.RecordedSink(ctx)
	own, noSink := daemon.Fingerprint(p.Settings)
	return all, noSink == nil && (recorded == "" || recorded == own), err
}

// takes reports whether the destination receives an event.
func (d *destination) takes(ev *waybill.Event) bool {
	in := func(list []string, value string) bool { return len(list) == 0 || slices.Contains(list, value) }
	return in(d.settings.Types, ev.Type) && in(d.settings.AggregateTypes, ev.AggregateType) && in(d.settings.Tenants, ev.TenantID)
}

// sinkSetting matches the name of a setting of the only sink.
var sinkSetting = regexp.MustCompile(`\bsink\.(url|topic|secret|event-source|unsigned-attributes|public-only)\b`)

// own returns a finding with the names of the destination and of its settings.
func (d *destination) own(f Finding) Finding {
	f.Check = d.name + ": " + f.Check
	name := "destinations." + d.name + ".sink.$1"
	f.Text, f.Type = sinkSetting.ReplaceAllString(f.Text, name), sinkSetting.ReplaceAllString(f.Type, name)
	return f
}

func destinationChecks() []Check {
	return []Check{
		{
			Name: "destination", For: anyDestination, Looks: "the destinations of the tables and of the settings, their pauses, and what the relays report about them",
			Wants: "a destination of the settings that is not paused, down or rate-limited", run: passing,
		},
		{
			Name: "backlog", For: anyDestination, Looks: "the events that a destination has yet to receive, and the age of the oldest",
			Wants: "none that is older than a minute", run: behind,
		},
		{
			Name: "dead letters", For: anyDestination, Looks: "the number of dead letters", Wants: "none", run: destinationDead,
		},
	}
}

// passing checks that the relay passes events to the destination.
func passing(_ context.Context, p *patient) (Finding, error) {
	d := p.to
	switch {
	case d.unknown != nil:
		return Finding{}, d.unknown
	case d.state == nil:
		return good("serve registers it when it starts"), nil
	case d.orphan && d.state.Rows() > 0:
		return warn("add destinations."+d.name+" to the settings; or delete its backlog: waybill destinations remove "+d.name,
			"the settings do not have it, so that no relay delivers the %d events in its backlog", d.state.Rows()), nil
	case d.orphan:
		return good("the settings do not have it, and its backlog is empty"), nil
	case d.state.IsPaused():
		return warn("waybill destinations resume "+d.name, "paused since %s (%s), because: %s; %s", d.state.PausedAt.UTC().Format(time.RFC3339),
			settings.FormatDuration(max(p.now().Sub(d.state.PausedAt).Round(time.Second), 0)), cmp.Or(d.state.Reason, "no reason was given"), waits(d.state.Waiting())), nil
	case len(d.state.Troubles) > 0:
		return troubled(d.state.Troubles), nil
	}
	return good("not paused, and no relay reports that it is down or rate-limited"), nil
}

// troubled describes destinations that do not take the events of relay nodes as
// they come: the longest trouble, and the number of the others.
func troubled(all []admin.Trouble) Finding {
	first := all[0]
	if at := slices.IndexFunc(all, func(t admin.Trouble) bool { return t.State == admin.TroubleDown }); at >= 0 {
		first = all[at]
	}
	text := "relay node " + first.Node.String() + " reports: " + first.Text
	if n := len(all) - 1; n > 0 {
		text += fmt.Sprintf(" There are %d more such reports: waybill stats", n)
	}
	return warn(first.Commands[0], "%s", text)
}

func waits(n int64) string {
	if n == 0 {
		return "no event waits for it"
	}
	return events(n) + " waiting"
}

// behind checks the age of the oldest event in the backlog.
func behind(_ context.Context, p *patient) (Finding, error) {
	d := p.to
	switch {
	case d.unknown != nil:
		return Finding{}, d.unknown
	case d.state == nil || d.state.Waiting() == 0:
		return good("no event waits for it"), nil
	case d.state.IsPaused() || d.orphan:
		return unseen(waits(d.state.Waiting()) + "; see " + d.name + ": destination"), nil
	case d.state.Lag >= waitingLimit:
		return warn("waybill destinations probe "+d.name+"; if it stays behind, see "+d.name+": sink, and the relay's log",
			"it is behind: %s waiting, and the oldest was written %s ago", events(d.state.Waiting()), settings.FormatDuration(d.state.Lag.Round(time.Second))), nil
	}
	return good("%s, none longer than %s", waits(d.state.Waiting()), settings.FormatDuration(waitingLimit)), nil
}

// destinationDead checks the dead letters of the backlog.
func destinationDead(_ context.Context, p *patient) (Finding, error) {
	d := p.to
	switch {
	case d.unknown != nil:
		return Finding{}, d.unknown
	case d.state != nil && d.state.Dead > 0:
		return warn("waybill dead list --destination "+d.name+"; then waybill dead replay or waybill dead discard, with --destination "+d.name,
			"it has %d dead letters", d.state.Dead), nil
	}
	return good("no dead letters"), nil
}
