package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/internal/words"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// beginning is the value of --from for the whole history.
const beginning = "beginning"

// newReason is the reason of the pause of a new destination. It marks a
// destination that has not received anything yet: a copy of the history repeats
// nothing.
const newReason = "new, until waybill destinations resume"

// overlap is how far the second copy of a new destination's history begins
// before the first one: a settlement may commit after the first copy with an
// earlier time. Events that both copies find are copied once.
const overlap = 10 * time.Minute

func (a *app) destinationsAdd() *cobra.Command {
	var from string
	var which selection
	cmd := &cobra.Command{
		Use: "add NAME", Short: "Add a destination, with events of the past or without", Args: needs(1, 1, "the name of a destination"),
		Long: "Add a destination. A relay registers its destinations when it starts, so a destination that receives only new events needs\n" +
			"no command. With --from, the destination also receives events of the past, as far as the history has them\n" +
			"(relay.history-retention), without a gap and each of them once:\n\n" +
			"  1. waybill destinations add NAME --from beginning      adds the destination, paused, and copies the history into its backlog\n" +
			"  2. Start every relay with the destination. New events wait in its backlog, because it is paused.\n" +
			"  3. waybill destinations resume NAME --since TIME        copies the events that were delivered meanwhile, and ends the pause\n\n" +
			"The first command prints the third one. The relay applies the filter of the destination when it delivers past events. A\n" +
			"command that was interrupted can be repeated.",
		RunE: func(cmd *cobra.Command, args []string) error {
			q := which.query()
			if !cmd.Flags().Changed("from") {
				if which.args() != "" {
					return usage("add --from beginning, a time or an age", "a selection requires --from")
				}
				return a.withStore(cmd, func(ctx context.Context, d *session) error { return a.addEmpty(ctx, d, args[0]) })
			}
			if from != beginning {
				var err error
				if q.Since, err = moment("from", from, time.Now()); err != nil {
					return err
				}
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error { return a.addFrom(ctx, d, args[0], q, &which) })
		},
	}
	cmd.Flags().StringVar(&from, "from", "", "Delivery of events of the past, too: from the beginning of the history, since a time, or since an age such as 2d")
	complete(cmd, "from", beginning)
	which.flags(cmd)
	return cmd
}

// addEmpty adds a destination without events of the past.
func (a *app) addEmpty(ctx context.Context, d *session, name string) error {
	_, added, err := d.destinations.Add(ctx, name)
	if err != nil {
		return d.notAdded(err)
	}
	return a.printSwitch(added, "added", "exists already", name)
}

// notAdded returns the error of a command that adds a destination.
func (d *session) notAdded(err error) error {
	if errors.Is(err, driver.ErrTooManyDestinations) {
		return &hint.Error{Err: d.store.Clean(err), Hint: "waybill destinations remove NAME removes one"}
	}
	return d.store.Clean(err)
}

// isNew reports whether a destination was added with its history, and was not
// resumed since.
func isNew(d store.Destination) bool { return d.IsPaused() && d.Reason == newReason }

// addFrom adds a paused destination and copies the history into its backlog.
func (a *app) addFrom(ctx context.Context, d *session, name string, q driver.HistoryQuery, which *selection) error {
	to, added, err := d.destinations.Add(ctx, name)
	if err != nil {
		return d.notAdded(err)
	}
	if !added && !isNew(to) {
		return usage("what was delivered before it was added: waybill replay --destination "+words.Quoted(name)+" --until "+at(to.CreatedAt),
			"%s exists already; a copy of the history could repeat what it has received", name)
	}
	if _, err := d.destinations.Pause(ctx, name, newReason); err != nil {
		return d.noDestination(err)
	}
	r, err := a.copyHistory(ctx, d, name, q)
	if err != nil {
		return err
	}
	since := r.Until.Add(-overlap)
	if since.Before(q.Since) {
		since = q.Since
	}
	next := "waybill destinations resume " + words.Quoted(name) + " --since " + at(since) + which.args()
	if a.json {
		return a.printJSON(map[string]any{"destination": name, "added": added, "replayed": r.Replayed, "next": next})
	}
	if !added {
		fmt.Fprintf(a.Out, "exists already: %s\n", plain(name))
	} else {
		fmt.Fprintf(a.Out, "added: %s, paused\n", plain(name))
	}
	fmt.Fprintf(a.Out, "copied from the history: %d\n", r.Replayed)
	fmt.Fprintf(a.Err, "next: start every relay with %s, then: %s\n", plain(name), plain(next))
	return nil
}

// copyHistory copies events of the history into the backlog of a paused
// destination.
func (a *app) copyHistory(ctx context.Context, d *session, name string, q driver.HistoryQuery) (admin.HistoryReplay, error) {
	total, err := d.destinations.CountHistory(ctx, name, q)
	if err != nil {
		return admin.HistoryReplay{}, d.noDestination(err)
	}
	b := a.bar("copying")
	defer b.end()
	r, err := d.destinations.Replay(ctx, name, q, admin.ReplayOptions{Progress: func(r admin.HistoryReplay) { b.show(min(r.Matched, total), total) }})
	return r, d.store.Clean(err)
}

func (a *app) destinationsResume() *cobra.Command {
	var since string
	var which selection
	cmd := &cobra.Command{
		Use: "resume NAME", Short: "End the pause of a destination", Args: needs(1, 1, "the name of a destination"),
		Long: "End the pause of a destination: it receives its backlog, in order, and then new events. --since is for a new destination (see\n" +
			"waybill destinations add --help): it first copies the events that were delivered since then and are not in the backlog yet.\n" + whenSeen,
		RunE: func(cmd *cobra.Command, args []string) error {
			q := which.query()
			copying := cmd.Flags().Changed("since")
			if copying {
				var err error
				if q.Since, err = moment("since", since, time.Now()); err != nil {
					return err
				}
			} else if which.args() != "" {
				return usage("add --since", "a selection requires --since")
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
				if copying {
					return a.resumeSince(ctx, d, args[0], q)
				}
				return a.resume(ctx, d, args[0])
			})
		},
	}
	cmd.Flags().StringVar(&since, "since", "", "Copy of the events that were delivered since this time, or since this long ago, before the end of the pause")
	which.flags(cmd)
	return cmd
}

// resume ends a pause, but not the first one of a new destination: what was
// delivered since it was added would be missing.
func (a *app) resume(ctx context.Context, d *session, name string) error {
	v, err := d.destinations.Find(ctx, name)
	if err != nil {
		return d.noDestination(err)
	}
	if isNew(v.Destination) {
		return usage("waybill destinations resume "+words.Quoted(name)+" --since "+at(v.CreatedAt.Add(-overlap))+", with the selection of waybill destinations add",
			"%s is new, and --since is required: otherwise it does not receive what was delivered since it was added", name)
	}
	done, err := d.destinations.Resume(ctx, name)
	if err != nil {
		return d.noDestination(err)
	}
	return a.printSwitch(done, "resumed", "not paused", name)
}

// resumeSince ends the first pause of a new destination.
func (a *app) resumeSince(ctx context.Context, d *session, name string, q driver.HistoryQuery) error {
	v, err := d.destinations.Find(ctx, name)
	if err != nil {
		return d.noDestination(err)
	}
	if !isNew(v.Destination) {
		return usage("omit --since; waybill replay --destination "+words.Quoted(name)+" delivers events again",
			"%s is not new: a copy of the history could repeat what it has received", name)
	}
	r, err := a.copyHistory(ctx, d, name, q)
	if err != nil {
		return err
	}
	done, err := d.destinations.Resume(ctx, name)
	if err != nil {
		return d.noDestination(err)
	}
	if a.json {
		return a.printJSON(map[string]any{"destination": name, "resumed": done, "replayed": r.Replayed})
	}
	fmt.Fprintf(a.Out, "copied from the history: %d\nresumed: %s\n", r.Replayed, plain(name))
	return nil
}
