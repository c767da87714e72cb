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

// notFound adds a hint to an error that says that there is no such thing, and to no other.
func notFound(err error, advice string) error {
	if !errors.Is(err, admin.ErrNotFound) {
		return err
	}
	return &hint.Error{Err: err, Hint: advice}
}

// partly says that not all of it was done.
func partly(advice, format string, args ...any) error {
	return &coded{hint.New(advice, format, args...), Partly}
}

func (a *app) dead() *cobra.Command {
	return parent("dead", "Dead letters: list them, have them delivered again, or discard them", a.deadList(), a.deadReplay(), a.deadDiscard())
}

func (a *app) deadList() *cobra.Command {
	var filter store.Filter
	var after int64
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List dead letters, oldest first", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.atDesk(cmd, func(ctx context.Context, d *desk) error {
				return a.listEvents(ctx, d, []store.State{store.Dead}, filter, after, max(limit, 1))
			})
		},
	}
	filterFlags(cmd, &filter)
	cmd.Flags().IntVar(&limit, "limit", 50, "How many")
	cmd.Flags().Int64Var(&after, "after", 0, "Where to begin: the position that the page before ended with")
	return cmd
}

// chosen is which dead letters a command is about: some by id, or all that fit.
type chosen struct {
	filter   store.Filter
	all, yes bool
}

func (c *chosen) flags(cmd *cobra.Command) {
	filterFlags(cmd, &c.filter)
	cmd.Flags().BoolVar(&c.all, "all", false, "All dead letters")
	cmd.Flags().BoolVar(&c.yes, "yes", false, "Do not ask")
}

// byID reports whether ids were given, and refuses what is neither or both.
func (c *chosen) byID(args []string) (bool, error) {
	some := c.filter != store.Filter{}
	switch {
	case len(args) > 0 && (some || c.all):
		return false, usage("leave one of them out", "ids and a filter do not go together")
	case len(args) > 0:
		return true, nil
	case !some && !c.all:
		return false, usage("give ids, a filter such as --type OrderPlaced, or --all", "which dead letters?")
	}
	return false, nil
}

func (a *app) deadReplay() *cobra.Command {
	var which chosen
	cmd := &cobra.Command{
		Use: "replay [ID…]", Short: "Have dead letters delivered again", Args: needs(0, -1, ""),
		Long: "Have dead letters delivered again: same id, attempts from 0, behind nothing. By id, by filter, or --all of them.",
		RunE: func(cmd *cobra.Command, args []string) error {
			byID, err := which.byID(args)
			if err != nil {
				return err
			}
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return a.atDesk(cmd, func(ctx context.Context, d *desk) error {
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

// errNone says that there is nothing to do.
var errNone = errors.New("there are none")

// confirmed counts what fits and asks.
func (a *app) confirmed(ctx context.Context, d *desk, which chosen, what string) error {
	n, err := d.Count(ctx, store.Dead, which.filter)
	if err != nil {
		return err
	}
	if n == 0 {
		return errNone
	}
	return a.confirmCount(which.yes, fmt.Sprintf("%s will be %s", count(n, "dead letter", "dead letters"), what), n)
}

func (a *app) replayAll(ctx context.Context, d *desk, which chosen) (admin.Replayed, error) {
	if err := a.confirmed(ctx, d, which, "delivered again"); err != nil {
		return admin.Replayed{}, err
	}
	b := a.bar("replaying")
	defer b.end()
	return d.ReplayAll(ctx, which.filter, func(p admin.Progress) { b.show(p.Done, p.Total) })
}

// changed ends a command that changes events: it says what was done, also when not all of it was.
func (a *app) changed(d *desk, v view.Changed, verb string, asked int, err error) error {
	var unasked *coded
	switch {
	case errors.As(err, &unasked): // nobody said yes, so nothing was tried
		return err
	case errors.Is(err, errNone):
		err = nil
	}
	return errors.Join(d.store.Clean(err), a.printChanged(v, verb, asked))
}

// printChanged prints what a command did. asked is how many ids it was given: those that are not among the changed ones were not there.
func (a *app) printChanged(v view.Changed, verb string, asked int) error {
	if a.json {
		if err := a.printJSON(v); err != nil {
			return err
		}
	} else {
		fmt.Fprintf(a.Out, "%s: %d\n", verb, len(v.IDs))
		for _, r := range v.Refused {
			fmt.Fprintf(a.Out, "refused: %s, because the pending event %s has its dedup key\n", r.ID, r.Holder)
		}
	}
	switch {
	case len(v.Refused) > 0:
		return partly("wait for the other events, or discard these", "%s refused", count(int64(len(v.Refused)), "dead letter was", "dead letters were"))
	case asked > 0 && len(v.IDs) == 0:
		return &coded{hint.New("waybill show ID tells what became of each", "none of them was there"), NotFound}
	case asked > len(v.IDs):
		return partly("waybill show ID tells what became of each", "%d of %d were not there", asked-len(v.IDs), asked)
	}
	return nil
}

func (a *app) deadDiscard() *cobra.Command {
	var which chosen
	cmd := &cobra.Command{
		Use: "discard [ID…]", Short: "Delete dead letters for good", Args: needs(0, -1, ""),
		Long: "Delete dead letters for good: by id, by filter, or --all of them. Nobody will be told what they had to say.",
		RunE: func(cmd *cobra.Command, args []string) error {
			byID, err := which.byID(args)
			if err != nil {
				return err
			}
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			return a.atDesk(cmd, func(ctx context.Context, d *desk) error {
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

func (a *app) discard(ctx context.Context, d *desk, ids []waybill.ID, yes bool) ([]waybill.ID, error) {
	if err := a.confirm(yes, "Delete "+count(int64(len(ids)), "dead letter", "dead letters")+" for good?"); err != nil {
		return nil, err
	}
	return d.Discard(ctx, ids...)
}

func (a *app) discardAll(ctx context.Context, d *desk, which chosen) ([]waybill.ID, error) {
	if err := a.confirmed(ctx, d, which, "deleted for good"); err != nil {
		return nil, err
	}
	b := a.bar("discarding")
	defer b.end()
	return d.DiscardAll(ctx, which.filter, func(p admin.Progress) { b.show(p.Done, p.Total) })
}

func (a *app) blocked() *cobra.Command {
	return parent("blocked", "Aggregates that wait for one of their events", a.blockedList(), a.unblock())
}

func (a *app) blockedList() *cobra.Command {
	var limit int
	cmd := &cobra.Command{
		Use: "list", Short: "List them: first those that wait for an operator, then those that wait for a retry", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.atDesk(cmd, func(ctx context.Context, d *desk) error {
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
	cmd.Flags().IntVar(&limit, "limit", 50, "How many")
	return cmd
}

func (a *app) unblock() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "unblock ID…", Short: "Let aggregates go on although these events are not delivered", Args: needs(1, -1, "ids of events"),
		Long: "Let aggregates go on although the events with these ids, which hold them back, are not delivered. The events stay where they are;\n" +
			"what is tried again later is then delivered behind its successors.",
		RunE: func(cmd *cobra.Command, args []string) error {
			ids, err := parseIDs(args)
			if err != nil {
				return err
			}
			if err := a.confirm(yes, fmt.Sprintf("Give up the order behind %s?", strings.Join(args, ", "))); err != nil {
				return err
			}
			return a.atDesk(cmd, func(ctx context.Context, d *desk) error {
				done, err := d.Unblock(ctx, ids...)
				return a.changed(d, view.ChangedOf(done), "unblocked", len(ids), err)
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "Do not ask")
	return cmd
}
