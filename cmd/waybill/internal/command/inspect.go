package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store"
)

// filterFlags adds the flags that select events.
func filterFlags(cmd *cobra.Command, f *store.Filter) {
	flags := cmd.Flags()
	flags.StringVar(&f.Type, "type", "", "Only events of this type")
	flags.StringVar(&f.AggregateType, "aggregate-type", "", "Only events of this aggregate type")
	flags.StringVar(&f.AggregateID, "aggregate", "", "Only events of the aggregate with this id")
	flags.StringVar(&f.TenantID, "tenant", "", "Only events of this tenant")
}

// endFlags are the flags that select events by what became of them.
type endFlags struct{ since, until string }

// flags adds the flags. when says what the times are those of.
func (e *endFlags) flags(cmd *cobra.Command, f *store.Filter, when string) {
	flags := cmd.Flags()
	flags.StringVar(&e.since, "since", "", "Only events that "+when+" at or after this time, or since this long ago; empty: all")
	flags.StringVar(&e.until, "until", "", "Only events that "+when+" before this time, or until this long ago; empty: until now")
	flags.StringVar(&f.Error, "error", "", "Only events whose last error contains this text")
	flags.StringVar(&f.CorrelationID, "correlation", "", "Only events with this correlation id")
}

// parse sets the times of a filter.
func (e *endFlags) parse(cmd *cobra.Command, f *store.Filter, now time.Time) error {
	for _, bound := range []struct {
		flag, text string
		to         *time.Time
	}{{"since", e.since, &f.Since}, {"until", e.until, &f.Until}} {
		if !cmd.Flags().Changed(bound.flag) {
			continue
		}
		at, err := moment(bound.flag, bound.text, now)
		if err != nil {
			return err
		}
		*bound.to = at
	}
	if !f.Since.IsZero() && !f.Until.IsZero() && !f.Since.Before(f.Until) {
		return usage("exchange the times", "--since %s is not before --until %s", e.since, e.until)
	}
	return nil
}

// states are the states in the order of an event's lifecycle.
var states = []store.State{store.Ready, store.Delayed, store.Dead, store.Delivered}

// stateNames returns the values of --state: the states, and the two kinds of
// delayed events that stats counts.
func stateNames() []string {
	var names []string
	for _, s := range states {
		names = append(names, s.String())
	}
	return slices.Insert(names, 2, view.Scheduled, view.Failed)
}

func parseState(text string, f *store.Filter) (store.State, error) {
	s, ok := view.ParseState(text, f)
	if !ok {
		return 0, usage("states: "+strings.Join(stateNames(), ", "), "unknown state %q", text)
	}
	return s, nil
}

func parseIDs(texts []string) ([]waybill.ID, error) {
	ids := make([]waybill.ID, len(texts))
	for i, text := range texts {
		id, err := waybill.ParseID(text)
		if err != nil {
			return nil, usage("ids look like "+sampleID+"; waybill list shows them", "%q is not an event id", text)
		}
		ids[i] = id
	}
	return ids, nil
}

const sampleID = "01JZ3V8Q5R7M2N4P6S8T0W1X3Y"

func (a *app) stats() *cobra.Command {
	var all bool
	var destination string
	cmd := &cobra.Command{
		Use: "stats", Short: "Count pending, failed and dead events, and list the relays and the destinations", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
				if cmd.Flags().Changed("destination") {
					one, err := d.destinations.Find(ctx, destination)
					if err != nil {
						return d.noDestination(err)
					}
					return a.printDestination(view.DestinationOf(one))
				}
				v, err := d.stats(ctx, all)
				if err != nil {
					return d.store.Clean(err)
				}
				if a.json {
					return a.printJSON(v)
				}
				return a.printStats(v)
			})
		},
	}
	destinationFlag(cmd, &destination)
	cmd.Flags().BoolVar(&all, "all-groups", false, "Inclusion of consumer groups without failures; reads every record")
	return cmd
}

// stats reads the counts of events, destinations, groups and keys.
func (d *session) stats(ctx context.Context, everyGroup bool) (view.Stats, error) {
	s, err := d.Stats(ctx)
	if err != nil {
		return view.Stats{}, err
	}
	v := view.StatsOf(s)
	recent, err := d.RecentThroughput(ctx)
	if err != nil && !errors.Is(err, admin.ErrNoThroughput) {
		return v, err
	}
	v.Throughput = view.RecentOf(recent)
	groups, err := d.groups.Stats(ctx, everyGroup)
	if err != nil {
		return v, err
	}
	for _, g := range groups {
		v.Groups = append(v.Groups, view.GroupOf(g))
	}
	k, err := d.keys.Stats(ctx)
	if err != nil {
		return v, err
	}
	v.Keys = view.KeysOf(k)
	all, err := d.destinations.List(ctx)
	v.Destinations = view.DestinationsOf(all)
	return v, err
}

func (a *app) printStats(v view.Stats) error {
	t := newTable("WHAT", "COUNT", "MEANING")
	t.row("ready", v.Ready, "ready for their first delivery")
	t.row("scheduled", v.Scheduled, "scheduled for later")
	t.row("failed", v.Failed, "wait for a retry")
	t.row("dead", v.Dead, "dead letters: waybill dead list")
	t.row("holding", v.Holding, "block their aggregate: waybill blocked list")
	t.row("max attempts", v.MaxAttempts, "highest number of a pending event")
	t.row("lag", seconds(v.LagSeconds), "age of the oldest ready event")
	t.row("lanes", fmt.Sprintf("%d of %d", v.Lanes.Owned, v.Lanes.Total), "owned by a live relay")
	t.row("keys in progress", v.Keys.Processing, "idempotency keys; "+fmt.Sprint(v.Keys.Lapsed)+" of them with a lapsed lease")
	t.row("keys failed", v.Keys.Failed, "can be retried")
	t.row("keys uncertain", v.Keys.Uncertain, "wait for an operator: waybill keys list")
	if err := t.writeTo(a.Out); err != nil {
		return err
	}
	if len(v.Throughput) > 0 {
		fmt.Fprintln(a.Out)
		if err := throughputTable(v.Throughput).writeTo(a.Out); err != nil {
			return err
		}
	}
	if len(v.Nodes) > 0 {
		fmt.Fprintln(a.Out)
		if err := nodeTable(v.Nodes).writeTo(a.Out); err != nil {
			return err
		}
	}
	if len(v.Destinations) > 0 {
		fmt.Fprintln(a.Out)
		if err := destinationTable(v.Destinations).writeTo(a.Out); err != nil {
			return err
		}
	}
	a.printTroubles(v.Nodes)
	if len(v.Groups) == 0 {
		return nil
	}
	fmt.Fprintln(a.Out)
	return groupTable(v.Groups).writeTo(a.Out)
}

// throughputTable returns the results of the last minute and hour, with their
// sum if there are several destinations.
func throughputTable(all []view.Recent) *table {
	t := newTable("DELIVERIES TO", "LAST MINUTE", "FAILED", "DEAD", "LAST HOUR", "FAILED", "DEAD")
	var sum view.Recent
	for _, r := range all {
		t.row(or(r.Destination), r.LastMinute.Delivered, r.LastMinute.Failed, r.LastMinute.Dead, r.LastHour.Delivered, r.LastHour.Failed, r.LastHour.Dead)
		sum.LastMinute.Add(r.LastMinute)
		sum.LastHour.Add(r.LastHour)
	}
	if len(all) > 1 {
		t.row("all", sum.LastMinute.Delivered, sum.LastMinute.Failed, sum.LastMinute.Dead, sum.LastHour.Delivered, sum.LastHour.Failed, sum.LastHour.Dead)
	}
	return t
}

// minute returns the results of a node in the last minute.
func minute(r *view.Results) string {
	if r == nil {
		return "-"
	}
	text := fmt.Sprintf("%d delivered", r.Delivered)
	if r.Failed > 0 {
		text += fmt.Sprintf(", %d failed", r.Failed)
	}
	if r.Dead > 0 {
		text += fmt.Sprintf(", %d dead", r.Dead)
	}
	return text + " in the last minute"
}

func nodeTable(nodes []view.Node) *table {
	t := newTable("NODE", "RELAY", "LANES", "HOST", "PID", "VERSION", "STARTED", "RESULTS")
	for _, n := range nodes {
		pid, started := "", ""
		if !n.ReportedAt.IsZero() {
			pid, started = fmt.Sprint(n.PID), at(n.StartedAt)
		}
		t.row(n.ID, n.Relay, n.Lanes, or(n.Host), or(pid), or(n.Version), or(started), minute(n.LastMinute))
	}
	return t
}

// printTroubles prints the destinations that do not take the events of nodes as
// they come, with the next commands.
func (a *app) printTroubles(nodes []view.Node) {
	for _, n := range nodes {
		printTroublesOf(a.Out, n.Troubles)
		if n.OmittedTroubles > 0 {
			fmt.Fprintf(a.Out, "\nnode %s: %d more\n", n.ID, n.OmittedTroubles)
		}
	}
}

func printTroublesOf(out io.Writer, all []view.Trouble) {
	for _, t := range all {
		fmt.Fprintf(out, "\nnode %s: %s\n", t.Node, plain(t.Text))
		for _, c := range t.Commands {
			fmt.Fprintf(out, "     %s\n", plain(c))
		}
	}
}

func groupTable(groups []view.Group) *table {
	t := newTable("GROUP", "PROCESSING", "FAILED", "DEAD", "MOST TRIES", "OLDEST DUE")
	for _, g := range groups {
		t.row(g.Group, g.Processing, g.Failed, g.Dead, g.HighestAttempts, seconds(g.OldestDueSeconds))
	}
	return t
}

// seconds formats a duration, rounded to seconds.
func seconds(s float64) string {
	return settings.FormatDuration(time.Duration(s * float64(time.Second)).Round(time.Second))
}

func (a *app) list() *cobra.Command {
	var filter store.Filter
	var ends endFlags
	var state, destination string
	var after int64
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List events, oldest first", Args: needs(0, 0, ""),
		Long: "List events, oldest first: ready, delayed, dead, or delivered and still in the history. Delayed events are scheduled (without\n" +
			"an attempt, or replayed) or failed; --state accepts these names, too. Without --state, the list has events of all states, and\n" +
			"--after cannot be used. --destination lists what a destination has yet to receive; there are no delivered events.\n\n" +
			"The times of --since and --until are those at which an event died or was delivered, and of a pending event that at which it\n" +
			"was written.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := ends.parse(cmd, &filter, time.Now()); err != nil {
				return err
			}
			if limit < 1 {
				return usage("", "--limit %d is not positive", limit)
			}
			which := states
			if cmd.Flags().Changed("destination") {
				which = states[:len(states)-1]
			}
			if state != "" {
				one, err := parseState(state, &filter)
				if err != nil {
					return err
				}
				if !slices.Contains(which, one) {
					return usage("omit --destination", "the backlog of a destination has no %s events", one)
				}
				which = []store.State{one}
			} else if after != 0 {
				return usage("add --state", "--after requires --state")
			}
			return a.withBacklog(cmd, destination, func(ctx context.Context, d *session) error {
				return a.listEvents(ctx, d, which, filter, after, limit)
			})
		},
	}
	filterFlags(cmd, &filter)
	ends.flags(cmd, &filter, "ended, or were written,")
	destinationFlag(cmd, &destination)
	flags := cmd.Flags()
	flags.StringVar(&state, "state", "", "Only events that are ready, delayed (scheduled or failed), dead or delivered")
	complete(cmd, "state", stateNames()...)
	flags.BoolVar(&filter.Failed, "failed", false, "Only events with at least one attempt")
	flags.BoolVar(&filter.Holding, "holding", false, "Only events that block their aggregate")
	flags.IntVar(&limit, "limit", 50, "Maximum number of results for each state")
	flags.Int64Var(&after, "after", 0, "Position to start after: the end of the previous page")
	return cmd
}

func (a *app) listEvents(ctx context.Context, d *session, which []store.State, filter store.Filter, after int64, limit int) error {
	var page view.Page
	page.Events = []view.Event{}
	for _, state := range which {
		one, err := d.List(ctx, state, filter, after, limit)
		if err != nil {
			return d.store.Clean(err)
		}
		v := view.PageOf(one)
		page.Events = append(page.Events, v.Events...)
		if len(which) == 1 {
			page.Next = v.Next
		}
	}
	if a.json {
		return a.printJSON(page)
	}
	if len(page.Events) == 0 {
		fmt.Fprintln(a.Err, "no events")
		return nil
	}
	if err := eventTable(page.Events).writeTo(a.Out); err != nil {
		return err
	}
	if page.Next != 0 {
		fmt.Fprintf(a.Err, "more results: --after %d\n", page.Next)
	}
	return nil
}

func (a *app) show() *cobra.Command {
	var payload bool
	cmd := &cobra.Command{
		Use: "show ID", Short: "Show one event: its state, its history, and what it waits for", Args: needs(1, 1, "an event id"),
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error { return a.showEvent(ctx, d, ids[0], payload) })
		},
	}
	cmd.Flags().BoolVar(&payload, "payload", false, "Output of the headers and the payload")
	return cmd
}

func (a *app) showEvent(ctx context.Context, d *session, id waybill.ID, payload bool) error {
	j, err := d.Journey(ctx, id)
	var unknown *admin.UnknownEventError
	switch {
	case errors.As(err, &unknown):
		return &hint.Error{Err: err, Hint: unknown.Reason.Text + " Next: " + strings.Join(unknown.Reason.Commands, ", ")}
	case err != nil:
		return d.store.Clean(err)
	}
	v := view.JourneyOf(j)
	if payload {
		v.Event = v.Event.WithPayload(&j.Event)
	}
	if a.json {
		return a.printJSON(v)
	}
	return a.printJourney(v, j, payload)
}

func (a *app) printJourney(v view.Journey, j admin.Journey, payload bool) error {
	parts := []*table{journeyTable(v), {}}
	for _, s := range v.Steps {
		parts[1].row(at(s.At), s.What)
	}
	if len(v.Waiting) > 0 {
		parts = append(parts, waitingTable(v.Waiting))
	}
	for i, t := range parts {
		if i > 0 {
			fmt.Fprintln(a.Out)
		}
		if err := t.writeTo(a.Out); err != nil {
			return err
		}
	}
	a.printWhy(v.Why)
	if payload {
		a.printPayload(v.Event, j.Event.Payload)
	}
	return nil
}

// printWhy prints why an event has not arrived. A command stays on one line,
// because it is copied.
func (a *app) printWhy(why []view.Reason) {
	fmt.Fprintln(a.Out)
	for _, r := range why {
		fmt.Fprintln(a.Out, "why  "+strings.Join(wrap(plain(r.Text), tableWidth-5), "\n     "))
		for _, c := range r.Commands {
			fmt.Fprintln(a.Out, "     "+plain(c))
		}
	}
}

// journeyTable lists the fields of an event.
func journeyTable(v view.Journey) *table {
	ev := v.Event
	t := &table{}
	line := func(name, value string) {
		if value != "" && value != "-" {
			t.row(name, value)
		}
	}
	line("id", ev.ID.String())
	line("type", ev.Type)
	line("state", ev.State)
	line("aggregate", aggregate(ev.AggregateType, ev.AggregateID))
	line("tenant", ev.TenantID)
	line("topic", ev.Topic)
	line("dedup key", ev.DedupKey)
	line("correlation", ev.CorrelationID)
	line("causation", ev.CausationID)
	line("payload", fmt.Sprintf("%s, %d bytes", ev.ContentType, ev.PayloadBytes))
	line("undecodable", ev.Undecodable)
	switch {
	case v.Owner == "":
		line("lane", fmt.Sprintf("%d, not owned by a relay", ev.Lane))
	case v.Live:
		line("lane", fmt.Sprintf("%d, owned by node %s", ev.Lane, v.Owner))
	default:
		line("lane", fmt.Sprintf("%d, whose owner %s is not alive", ev.Lane, v.Owner))
	}
	return t
}

// printPayload prints the headers and the payload of an event.
func (a *app) printPayload(ev view.Event, payload []byte) {
	fmt.Fprintln(a.Out)
	for _, name := range sortedKeys(ev.Headers) {
		fmt.Fprintf(a.Out, "%s: %s\n", plain(name), plain(ev.Headers[name]))
	}
	if ev.PayloadBase64 != nil {
		fmt.Fprintf(a.Out, "%d bytes of binary data; --json prints them in base64\n", ev.PayloadBytes)
		return
	}
	fmt.Fprintln(a.Out, plain(string(payload)))
}

// waitingTable lists the destinations that have yet to receive an event.
func waitingTable(all []view.Waiting) *table {
	t := newTable("DESTINATION", "STATE", "TRIES", "DUE", "LAST ERROR")
	for _, w := range all {
		t.row(w.Destination, w.State, w.Attempts, at(w.DueAt), or(w.LastError))
	}
	return t
}

func sortedKeys(m map[string]string) []string {
	var names []string
	for name := range m {
		names = append(names, name)
	}
	slices.Sort(names)
	return names
}
