package command

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store"
)

// notFound adds a hint to errors that wrap admin.ErrNotFound, and to no other.
func notFound(err error, advice string) error {
	if !errors.Is(err, admin.ErrNotFound) {
		return err
	}
	return &hint.Error{Err: err, Hint: advice}
}

// partly returns an error for a command that was done in part.
func partly(advice, format string, args ...any) error {
	return &coded{hint.New(advice, format, args...), Partly}
}

func (a *app) dead() *cobra.Command {
	return parent("dead", "List, replay and discard dead letters", a.deadList(), a.deadGroups(), a.deadReplay(), a.deadDiscard())
}

func (a *app) deadList() *cobra.Command {
	var filter store.Filter
	var ends endFlags
	var destination string
	var after int64
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List dead letters, oldest first", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := ends.parse(cmd, &filter, time.Now()); err != nil {
				return err
			}
			return a.withBacklog(cmd, destination, func(ctx context.Context, d *session) error {
				return a.listEvents(ctx, d, []store.State{store.Dead}, filter, after, max(limit, 1))
			})
		},
	}
	letterFlags(cmd, &filter, &ends)
	destinationFlag(cmd, &destination)
	cmd.Flags().IntVar(&limit, "limit", 50, "Maximum number of results")
	cmd.Flags().Int64Var(&after, "after", 0, "Position to start after: the end of the previous page")
	return cmd
}

func (a *app) deadGroups() *cobra.Command {
	var destination string
	var limit int
	cmd := &cobra.Command{
		Use: "groups", Short: "List the causes of dead letters, those with the most letters first", Args: needs(0, 0, ""),
		Long: "List the causes of dead letters. Errors that differ only in numbers, ids and quoted parts have the same cause. dead replay and\n" +
			"dead discard take the id of a cause: --cause ID.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBacklog(cmd, destination, func(ctx context.Context, d *session) error {
				found, err := d.Causes(ctx, max(limit, 1))
				if err != nil {
					return d.store.Clean(err)
				}
				return a.printCauses(view.CausesOf(found))
			})
		},
	}
	destinationFlag(cmd, &destination)
	cmd.Flags().IntVar(&limit, "limit", 50, "Maximum number of results")
	return cmd
}

func (a *app) printCauses(v view.Causes) error {
	if a.json {
		return a.printJSON(v)
	}
	if len(v.Causes) == 0 && v.Unknown == 0 {
		fmt.Fprintln(a.Err, "no dead letters")
		return nil
	}
	t := newTable("CAUSE", "LETTERS", "FIRST", "LAST", "EXAMPLE", "ERROR")
	for _, c := range v.Causes {
		t.row(c.ID, c.Letters, at(c.First), at(c.Last), c.Example, cut(c.Text, errorWidth))
	}
	if err := t.writeTo(a.Out); err != nil {
		return err
	}
	if v.Unknown > 0 {
		fmt.Fprintf(a.Err, "without a cause yet: %d; a relay adds causes\n", v.Unknown)
	}
	if v.More {
		fmt.Fprintln(a.Err, "more results: --limit")
	}
	return nil
}

// letterFlags adds the flags that select dead letters.
func letterFlags(cmd *cobra.Command, f *store.Filter, ends *endFlags) {
	filterFlags(cmd, f)
	ends.flags(cmd, f, "died")
	cmd.Flags().StringVar(&f.Cause, "cause", "", "Only dead letters with this cause; waybill dead groups lists the causes")
}

// chosen selects the dead letters of a command: by id, or all that match a
// filter.
type chosen struct {
	filter      store.Filter
	ends        endFlags
	destination string
	rate        string
	options     admin.DeadLetterOptions
	all         bool
	dry, yes    bool
}

func (c *chosen) flags(cmd *cobra.Command) {
	letterFlags(cmd, &c.filter, &c.ends)
	destinationFlag(cmd, &c.destination)
	flags := cmd.Flags()
	flags.Int64Var(&c.options.Limit, "limit", 0, "Maximum number of dead letters, oldest first; 0: no limit")
	flags.StringVar(&c.rate, "rate", "", "Maximum number of dead letters per second; empty: no limit")
	flags.BoolVar(&c.all, "all", false, "Selection of all dead letters")
	flags.BoolVar(&c.dry, "dry-run", false, "Number of selected dead letters, without a change")
	flags.BoolVar(&c.yes, "yes", false, "Confirmation in advance")
}

// parse checks the flags, and reports whether ids were given. It rejects a call
// with neither ids nor a filter, and one with both.
func (c *chosen) parse(cmd *cobra.Command, args []string, now time.Time) (byID bool, err error) {
	if err := c.ends.parse(cmd, &c.filter, now); err != nil {
		return false, err
	}
	if c.options.Rate, err = eventRate(c.rate); err != nil {
		return false, err
	}
	some := c.filter != store.Filter{}
	switch {
	case c.options.Limit < 0:
		return false, usage("write --limit 100", "--limit %d is negative", c.options.Limit)
	case len(args) > 0 && (some || c.all):
		return false, usage("omit one of them", "ids and a filter cannot be combined")
	case len(args) > 0 && (c.options.Limit > 0 || c.rate != "" || c.dry):
		return false, usage("they are for a filter or --all", "ids cannot be combined with --limit, --rate or --dry-run")
	case len(args) > 0:
		return true, nil
	case !some && !c.all:
		return false, usage("give ids, a filter such as --type OrderPlaced, --cause, or --all", "no dead letters selected")
	}
	return false, nil
}

func (a *app) deadReplay() *cobra.Command {
	var which chosen
	cmd := &cobra.Command{
		Use: "replay [ID…]", Short: "Replay dead letters", Args: needs(0, -1, ""),
		Long: "Replay dead letters: each event keeps its id, starts with 0 attempts and does not wait for other events. Select them by id, by filter, or with --all.\n\n" +
			"  waybill dead replay --error 'connection refused' --since 2h --rate 50\n" +
			"  waybill dead replay --type OrderPlaced --limit 10 --dry-run",
		RunE: func(cmd *cobra.Command, args []string) error {
			byID, err := which.parse(cmd, args, time.Now())
			if err != nil {
				return err
			}
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return a.withBacklog(cmd, which.destination, func(ctx context.Context, d *session) error {
				if which.dry {
					return a.countLetters(ctx, d, which, "replay")
				}
				var r admin.Replayed
				var err error
				if byID {
					r, err = d.Replay(ctx, ids...)
				} else {
					r, err = a.replayAll(ctx, d, which)
				}
				return a.changed(d, view.ReplayedOf(r), "replayed", len(ids), err)
			})
		},
	}
	which.flags(cmd)
	return cmd
}

// errNone reports that no event matches.
var errNone = errors.New("no matches")

// countLetters prints the number of dead letters that a command would change.
func (a *app) countLetters(ctx context.Context, d *session, which chosen, verb string) error {
	n, err := d.CountDeadLetters(ctx, which.filter, which.options)
	if err != nil {
		return d.store.Clean(err)
	}
	if a.json {
		return a.printJSON(view.Matched{Matched: n, DryRun: true})
	}
	fmt.Fprintf(a.Out, "would %s: %d\n", verb, n)
	return nil
}

// confirmed counts the matching dead letters and asks for a confirmation.
func (a *app) confirmed(ctx context.Context, d *session, which chosen, what string) error {
	n, err := d.CountDeadLetters(ctx, which.filter, which.options)
	if err != nil {
		return err
	}
	if n == 0 {
		return errNone
	}
	return a.confirmCount(which.yes, fmt.Sprintf("%s will be %s", count(n, "dead letter", "dead letters"), what), n)
}

func (a *app) replayAll(ctx context.Context, d *session, which chosen) (admin.Replayed, error) {
	if err := a.confirmed(ctx, d, which, "replayed"); err != nil {
		return admin.Replayed{}, err
	}
	b := a.bar("replaying")
	defer b.end()
	which.options.Progress = func(p admin.Progress) { b.show(p.Done, p.Total) }
	return d.ReplayAll(ctx, which.filter, which.options)
}

// changed ends a command that changes events: it prints the changes, also after
// a partial failure.
func (a *app) changed(d *session, v view.Changed, verb string, asked int, err error) error {
	var unasked *coded
	switch {
	case errors.As(err, &unasked): // not confirmed: nothing was done
		return err
	case errors.Is(err, errNone):
		err = nil
	}
	return errors.Join(d.store.Clean(err), a.printChanged(v, verb, asked))
}

// printChanged prints the changes of a command. asked is the number of given
// ids; ids that are not among the changed ones did not exist.
func (a *app) printChanged(v view.Changed, verb string, asked int) error {
	if a.json {
		if err := a.printJSON(v); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.Out, "%s: %d\n", verb, len(v.IDs))
		for _, r := range v.Refused {
			fmt.Fprintf(a.Out, "refused: %s: the pending event %s has the same dedup key\n", r.ID, r.Holder)
		}
	}
	switch {
	case len(v.Refused) > 0:
		return partly("wait until the other events are delivered, or discard these", "%s refused", count(int64(len(v.Refused)), "dead letter was", "dead letters were"))
	case asked > 0 && len(v.IDs) == 0:
		return &coded{hint.New("waybill show ID shows the state of an event", "none of the events was found"), NotFound}
	case asked > len(v.IDs):
		return partly("waybill show ID shows the state of an event", "%d of %d events were not found", asked-len(v.IDs), asked)
	}
	return nil
}

func (a *app) deadDiscard() *cobra.Command {
	var which chosen
	cmd := &cobra.Command{
		Use: "discard [ID…]", Short: "Delete dead letters permanently", Args: needs(0, -1, ""),
		Long: "Delete dead letters permanently: by id, by filter, or with --all. Deleted events are never delivered.\n\n" +
			"  waybill dead discard --error 'customer is unknown' --until 7d --dry-run",
		RunE: func(cmd *cobra.Command, args []string) error {
			byID, err := which.parse(cmd, args, time.Now())
			if err != nil {
				return err
			}
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return a.withBacklog(cmd, which.destination, func(ctx context.Context, d *session) error {
				if which.dry {
					return a.countLetters(ctx, d, which, "discard")
				}
				var gone []waybill.ID
				var err error
				if byID {
					gone, err = a.discard(ctx, d, ids, which.yes)
				} else {
					gone, err = a.discardAll(ctx, d, which)
				}
				return a.changed(d, view.ChangedOf(gone), "discarded", len(ids), err)
			})
		},
	}
	which.flags(cmd)
	return cmd
}

func (a *app) discard(ctx context.Context, d *session, ids []waybill.ID, yes bool) ([]waybill.ID, error) {
	if err := a.confirm(yes, "Delete "+count(int64(len(ids)), "dead letter", "dead letters")+" permanently?"); err != nil {
		return nil, err
	}
	return d.Discard(ctx, ids...)
}

func (a *app) discardAll(ctx context.Context, d *session, which chosen) ([]waybill.ID, error) {
	if err := a.confirmed(ctx, d, which, "deleted permanently"); err != nil {
		return nil, err
	}
	b := a.bar("discarding")
	defer b.end()
	which.options.Progress = func(p admin.Progress) { b.show(p.Done, p.Total) }
	return d.DiscardAll(ctx, which.filter, which.options)
}

func (a *app) blocked() *cobra.Command {
	return parent("blocked", "List and unblock aggregates that wait for one of their events", a.blockedList(), a.unblock())
}

func (a *app) blockedList() *cobra.Command {
	var destination string
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List blocked aggregates: first those that wait for an operator, then those that wait for a retry", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBacklog(cmd, destination, func(ctx context.Context, d *session) error {
				all, err := d.Blocked(ctx, max(limit, 1))
				if err != nil {
					return d.store.Clean(err)
				}
				shown := []view.Blocked{}
				for _, b := range all {
					shown = append(shown, view.BlockedOf(b))
				}
				if a.json {
					return a.printJSON(map[string]any{"blocked": shown})
				}
				if len(shown) == 0 {
					fmt.Fprintln(a.Err, "no aggregate is blocked")
					return nil
				}
				t := newTable("AGGREGATE", "TENANT", "WAITING", "SINCE", "BY", "WHICH IS", "ERROR")
				for _, b := range shown {
					t.row(aggregate(b.AggregateType, b.AggregateID), or(b.TenantID), b.Waiting, at(b.Since), b.By.ID, b.By.State,
						or(cut(b.By.LastError, errorWidth)))
				}
				return t.writeTo(a.Out)
			})
		},
	}
	destinationFlag(cmd, &destination)
	cmd.Flags().IntVar(&limit, "limit", 50, "Maximum number of results")
	return cmd
}

func (a *app) unblock() *cobra.Command {
	var destination string
	var yes bool
	cmd := &cobra.Command{
		Use: "unblock ID…", Short: "Continue the aggregates that these events block", Args: needs(1, -1, "ids of events"),
		Long: "Continue the aggregates that the events with these ids block. The events stay in their state; an event that is retried later is\n" +
			"delivered after the later ones of its aggregate.",
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			if err := a.confirm(yes, fmt.Sprintf("Give up the order of events after %s?", strings.Join(args, ", "))); err != nil {
				return err
			}
			return a.withBacklog(cmd, destination, func(ctx context.Context, d *session) error {
				done, err := d.Unblock(ctx, ids...)
				return a.changed(d, view.ChangedOf(done), "unblocked", len(ids), err)
			})
		},
	}
	destinationFlag(cmd, &destination)
	cmd.Flags().BoolVar(&yes, "yes", false, "Confirmation in advance")
	return cmd
}
