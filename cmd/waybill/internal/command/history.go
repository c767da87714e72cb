package command

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/internal/words"
	"github.com/waybillhq/waybill/store/driver"
)

// selection selects delivered events by their fields.
type selection struct {
	types, kinds, tenants []string
	aggregate             string
}

func (s *selection) flags(cmd *cobra.Command) {
	flags := cmd.Flags()
	flags.StringArrayVar(&s.types, "type", nil, "Only events of this type; repeatable")
	flags.StringArrayVar(&s.kinds, "aggregate-type", nil, "Only events of this aggregate type; repeatable")
	flags.StringVar(&s.aggregate, "aggregate", "", "Only events of the aggregates with this id")
	flags.StringArrayVar(&s.tenants, "tenant", nil, "Only events of this tenant, or without a tenant if it is empty; repeatable")
}

func (s *selection) query() driver.HistoryQuery {
	return driver.HistoryQuery{Types: s.types, AggregateTypes: s.kinds, Tenants: s.tenants, AggregateID: s.aggregate}
}

// args returns the flags of the selection for another command.
func (s *selection) args() string {
	var b strings.Builder
	for _, f := range []struct {
		name   string
		values []string
	}{{"type", s.types}, {"aggregate-type", s.kinds}, {"tenant", s.tenants}} {
		for _, value := range f.values {
			b.WriteString(" --" + f.name + " " + words.Quoted(value))
		}
	}
	if s.aggregate != "" {
		b.WriteString(" --aggregate " + words.Quoted(s.aggregate))
	}
	return b.String()
}

// moment parses a time with a zone, or an age.
func moment(flag, text string, now time.Time) (time.Time, error) {
	if t, err := time.Parse(time.RFC3339, text); err == nil {
		if t.After(now) {
			return t, usage("the clock is at "+at(now), "--%s %s is in the future", flag, text)
		}
		return t, nil
	}
	age, err := settings.ParseDuration(strings.TrimSuffix(text, "-ago"))
	if err != nil || age <= 0 {
		return time.Time{}, usage("write a time with its zone, such as 2026-01-31T15:04:05Z, or an age, such as 2h or 7d", "--%s %q is neither a time nor an age", flag, text)
	}
	return now.Add(-age), nil
}

// eventRate parses a number of events per second.
func eventRate(text string) (float64, error) {
	if text == "" {
		return 0, nil
	}
	n, err := strconv.ParseFloat(strings.TrimSuffix(text, "/s"), 64)
	if err != nil || n <= 0 || math.IsNaN(n) || math.IsInf(n, 0) {
		return 0, usage("write --rate 50 for 50 events per second", "--rate %q is not a positive number", text)
	}
	return n, nil
}

// replayFlags are the flags of waybill replay.
type replayFlags struct {
	selection
	destination, since, until, rate string
	limit                           int64
	dry, yes                        bool
}

func (a *app) replay() *cobra.Command {
	var f replayFlags
	cmd := &cobra.Command{
		Use: "replay --destination NAME", Short: "Deliver events of the history to a destination again", Args: needs(0, 0, ""),
		Long: "Deliver events of the history to a destination again: those that were delivered in a period of time. The history keeps delivered\n" +
			"events for relay.history-retention. The command copies them into the destination's backlog; a relay that has the destination\n" +
			"delivers them.\n\n" +
			"A replayed event has the same id, and Delivery.Replay is greater than 0: an inbox that has applied the event does not apply it\n" +
			"again. Replayed events arrive in the order of their writes, and before newer events of their lanes: those wait in the backlog.\n" +
			"Events that are in the backlog already are skipped. The relay applies the filter of the destination when it delivers\n" +
			"them.\n\n" +
			"  waybill replay --destination billing --since 2026-01-31T15:00:00Z      after billing's database was restored from a backup\n" +
			"  waybill replay --destination billing --type OrderPlaced --since 2d --rate 50 --dry-run",
		RunE: func(cmd *cobra.Command, _ []string) error {
			q, o, err := f.parse(cmd, time.Now())
			if err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error { return a.replayHistory(ctx, d, &f, q, o) })
		},
	}
	f.flags(cmd)
	flags := cmd.Flags()
	flags.StringVar(&f.destination, "destination", "", "Name of the destination")
	flags.StringVar(&f.since, "since", "", "Only events that were delivered since this time, or since this long ago; empty: since the beginning of the history")
	flags.StringVar(&f.until, "until", "", "Only events that were delivered before this time, or until this long ago; empty: until now")
	flags.Int64Var(&f.limit, "limit", 0, "Maximum number of replayed events; 0: no limit")
	flags.StringVar(&f.rate, "rate", "", "Maximum number of replayed events per second; empty: no limit")
	flags.BoolVar(&f.dry, "dry-run", false, "Number of matching events, without a replay")
	flags.BoolVar(&f.yes, "yes", false, "Confirmation in advance")
	return cmd
}

// parse checks the flags.
func (f *replayFlags) parse(cmd *cobra.Command, now time.Time) (q driver.HistoryQuery, o admin.ReplayOptions, err error) {
	q = f.query()
	if f.destination == "" {
		return q, o, usage("waybill destinations list shows the names", "--destination is required")
	}
	for _, bound := range []struct {
		flag, text string
		to         *time.Time
	}{{"since", f.since, &q.Since}, {"until", f.until, &q.Until}} {
		if !cmd.Flags().Changed(bound.flag) {
			continue
		}
		if *bound.to, err = moment(bound.flag, bound.text, now); err != nil {
			return q, o, err
		}
	}
	switch {
	case !q.Until.IsZero() && !q.Since.Before(q.Until):
		return q, o, usage("exchange the times", "--since %s is not before --until %s", f.since, f.until)
	case f.limit < 0 || f.limit == 0 && cmd.Flags().Changed("limit"):
		return q, o, usage("", "--limit %d is not positive", f.limit)
	}
	o.Limit = f.limit
	o.Rate, err = eventRate(f.rate)
	return q, o, err
}

// replayHistory counts the matching events, asks for a confirmation, and
// replays them.
func (a *app) replayHistory(ctx context.Context, d *session, f *replayFlags, q driver.HistoryQuery, o admin.ReplayOptions) error {
	total, err := d.destinations.CountHistory(ctx, f.destination, q)
	if err != nil {
		return d.noDestination(err)
	}
	if f.dry || total == 0 {
		return a.printReplay(view.Replay{Destination: f.destination, Matched: total, DryRun: f.dry})
	}
	what := count(total, "delivered event", "delivered events") + " will be delivered to " + plain(f.destination) + " again"
	if o.Limit > 0 && o.Limit < total {
		what = fmt.Sprintf("%d of %s", o.Limit, what)
		total = o.Limit
	}
	if err := a.confirmCount(f.yes, what, total); err != nil {
		return err
	}
	b := a.bar("replaying")
	o.Progress = func(r admin.HistoryReplay) { b.show(min(r.Matched, total), total) }
	r, err := d.destinations.Replay(ctx, f.destination, q, o)
	b.end()
	if err == nil {
		a.warnPaused(ctx, d, f.destination)
	}
	return errors.Join(d.store.Clean(err), a.printReplay(view.ReplayOf(f.destination, r)))
}

// printReplay prints the result of a replay of the history.
func (a *app) printReplay(v view.Replay) error {
	if a.json {
		return a.printJSON(v)
	}
	if v.Matched == 0 {
		fmt.Fprintln(a.Err, "no delivered event matches; the history keeps events for relay.history-retention")
	}
	if v.DryRun {
		fmt.Fprintf(a.Out, "would replay: %d\n", v.Matched)
		return nil
	}
	fmt.Fprintf(a.Out, "replayed: %d\n", v.Replayed)
	if there := v.Matched - v.Replayed; there > 0 {
		fmt.Fprintf(a.Out, "in the backlog already: %d\n", there)
	}
	if v.Next != nil {
		fmt.Fprintln(a.Err, "the limit was reached; more events may match")
	}
	return nil
}

// warnPaused prints that a destination is paused: nothing happens before the
// end of the pause.
func (a *app) warnPaused(ctx context.Context, d *session, name string) {
	v, err := d.destinations.Find(ctx, name)
	if err == nil && v.IsPaused() {
		fmt.Fprintf(a.Err, "%s is paused; resume it with: waybill destinations resume %s\n", plain(name), plain(name))
	}
}
