package command

import (
	"context"
	"errors"
	"fmt"
	"strings"

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
	var destination string
	var after int64
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List dead letters, oldest first", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withBacklog(cmd, destination, func(ctx context.Context, d *session) error {
				return a.listEvents(ctx, d, []store.State{store.Dead}, filter, after, max(limit, 1))
			})
		},
	}
	filterFlags(cmd, &filter)
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

// chosen selects the dead letters of a command: by id, or all that match a
// filter.
type chosen struct {
	filter      store.Filter
	destination string
	cause       string
	limit       int64
	all, yes    bool
}

func (c *chosen) flags(cmd *cobra.Command) {
	filterFlags(cmd, &c.filter)
	destinationFlag(cmd, &c.destination)
	cmd.Flags().StringVar(&c.cause, "cause", "", "Only dead letters with this cause; waybill dead groups lists the causes")
	cmd.Flags().Int64Var(&c.limit, "limit", 0, "Maximum number of dead letters, oldest first, with --cause; 0: no limit")
	cmd.Flags().BoolVar(&c.all, "all", false, "Selection of all dead letters")
	cmd.Flags().BoolVar(&c.yes, "yes", false, "Confirmation in advance")
}

// byID reports whether ids were given. It rejects a call with neither ids nor a
// filter, and one with both.
func (c *chosen) byID(args []string) (bool, error) {
	some := c.filter != store.Filter{}
	switch {
	case c.limit < 0:
		return false, usage("write --limit 100", "--limit %d is negative", c.limit)
	case c.limit > 0 && c.cause == "":
		return false, usage("waybill dead groups lists the causes", "--limit needs --cause")
	case c.cause != "" && (some || c.all || len(args) > 0):
		return false, usage("omit the others", "--cause cannot be combined with ids, a filter or --all")
	case c.cause != "":
		return false, nil
	case len(args) > 0 && (some || c.all):
		return false, usage("omit one of them", "ids and a filter cannot be combined")
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
		Long: "Replay dead letters: each event keeps its id, starts with 0 attempts and does not wait for other events. Select them by id, by filter, or with --all.",
		RunE: func(cmd *cobra.Command, args []string) error {
			byID, err := which.byID(args)
			if err != nil {
				return err
			}
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return a.withBacklog(cmd, which.destination, func(ctx context.Context, d *session) error {
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

// confirmed counts the matching dead letters and asks for a confirmation.
func (a *app) confirmed(ctx context.Context, d *session, which chosen, what string) error {
	var n int64
	var err error
	if which.cause != "" {
		if n, err = d.CountCause(ctx, which.cause); which.limit > 0 {
			n = min(n, which.limit)
		}
	} else {
		n, err = d.Count(ctx, store.Dead, which.filter)
	}
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
	show := func(p admin.Progress) { b.show(p.Done, p.Total) }
	if which.cause != "" {
		return d.ReplayCause(ctx, which.cause, which.limit, show)
	}
	return d.ReplayAll(ctx, which.filter, show)
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
		Long: "Delete dead letters permanently: by id, by filter, or with --all. Deleted events are never delivered.",
		RunE: func(cmd *cobra.Command, args []string) error {
			byID, err := which.byID(args)
			if err != nil {
				return err
			}
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return a.withBacklog(cmd, which.destination, func(ctx context.Context, d *session) error {
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
	show := func(p admin.Progress) { b.show(p.Done, p.Total) }
	if which.cause != "" {
		return d.DiscardCause(ctx, which.cause, which.limit, show)
	}
	return d.DiscardAll(ctx, which.filter, show)
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
