package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/internal/words"
	"github.com/waybillhq/waybill/store"
)

func (a *app) destinations() *cobra.Command {
	return parent("destinations", "List, add, pause, resume, probe and remove destinations",
		a.destinationsList(), a.destinationsAdd(), a.destinationsPause(), a.destinationsResume(), a.destinationsProbe(), a.destinationsRemove())
}

// whenSeen describes when a change to a destination takes effect.
const whenSeen = "A running relay notices the change within a heartbeat (relay.heartbeat, 5 s by default), or within a second if a wake-up reaches it."

// destinationFlag adds the flag of commands that work on the outbox, or on the
// backlog of a destination.
func destinationFlag(cmd *cobra.Command, name *string) {
	cmd.Flags().StringVar(name, "destination", "", "Backlog of this destination, instead of the outbox")
}

// withBacklog is withStore for a command with that flag.
func (a *app) withBacklog(cmd *cobra.Command, name string, fn func(ctx context.Context, d *session) error) error {
	return a.withStore(cmd, func(ctx context.Context, d *session) error {
		if cmd.Flags().Changed("destination") {
			rows, err := d.destinations.Outbox(ctx, name)
			if err != nil {
				return d.noDestination(err)
			}
			d.Outbox = rows
		}
		return fn(ctx, d)
	})
}

// noDestination returns an error of the store; one about an unknown destination
// gets a hint.
func (d *session) noDestination(err error) error {
	var unknown *admin.UnknownDestinationError
	if !errors.As(err, &unknown) {
		return d.store.Clean(err)
	}
	advice := "waybill destinations list shows them"
	switch near := hint.Nearest(unknown.Name, unknown.Known); {
	case near != "":
		advice = "did you mean " + near + "?"
	case len(unknown.Known) == 0:
		advice = "a relay with destinations registers them when it starts; waybill destinations add NAME registers one before"
	}
	return &hint.Error{Err: d.store.Clean(err), Hint: advice}
}

func (a *app) destinationsList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List destinations, and count what each has yet to receive", Args: needs(0, 0, ""),
		Long: "List destinations, and count what each has yet to receive. The backlog of a destination that keeps up is empty: its events go\n" +
			"to it directly. LAG is the age of the oldest event that the destination has yet to receive.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
				all, err := d.destinations.List(ctx)
				if err != nil {
					return d.store.Clean(err)
				}
				shown := view.DestinationsOf(all)
				if a.json {
					return a.printJSON(map[string]any{"destinations": shown})
				}
				if len(shown) == 0 {
					fmt.Fprintln(a.Err, "no destinations")
					return nil
				}
				if err := destinationTable(shown).writeTo(a.Out); err != nil {
					return err
				}
				for _, v := range shown {
					printTroublesOf(a.Out, v.Troubles)
				}
				return nil
			})
		},
	}
}

func destinationTable(all []view.Destination) *table {
	t := newTable("DESTINATION", "READY", "FAILED", "SCHEDULED", "DEAD", "HOLDING", "LAG", "PAUSED")
	for _, d := range all {
		t.row(d.Name, d.Ready, d.Failed, d.Scheduled, d.Dead, d.Holding, seconds(d.LagSeconds), or(pause(d.PausedAt, d.Reason)))
	}
	return t
}

// pause describes the pause of a destination; it is empty if there is none.
func pause(since time.Time, reason string) string {
	switch {
	case since.IsZero():
		return ""
	case reason == "":
		return "since " + at(since)
	}
	return "since " + at(since) + " (" + reason + ")"
}

// printDestination prints the counts of one destination.
func (a *app) printDestination(v view.Destination) error {
	if a.json {
		return a.printJSON(v)
	}
	t := newTable("WHAT", "COUNT", "MEANING")
	t.row("ready", v.Ready, "in the backlog, and ready")
	t.row("scheduled", v.Scheduled, "replayed dead letters")
	t.row("failed", v.Failed, "wait for a retry")
	t.row("dead", v.Dead, "dead letters: waybill dead list --destination "+words.Quoted(v.Name))
	t.row("holding", v.Holding, "block their aggregate: waybill blocked list --destination "+words.Quoted(v.Name))
	t.row("max attempts", v.MaxAttempts, "highest number of a pending event")
	t.row("lag", seconds(v.LagSeconds), "age of the oldest event in the backlog")
	t.row("paused", yesNo(!v.PausedAt.IsZero()), pause(v.PausedAt, v.Reason))
	err := t.writeTo(a.Out)
	printTroublesOf(a.Out, v.Troubles)
	return err
}

func (a *app) destinationsPause() *cobra.Command {
	var reason string
	cmd := &cobra.Command{
		Use: "pause NAME", Short: "Pause a destination: its events wait in its backlog", Args: needs(1, 1, "the name of a destination"),
		Long: "Pause a destination. Its events wait in its backlog; all other destinations continue. " + whenSeen,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
				done, err := d.destinations.Pause(ctx, args[0], reason)
				if err != nil {
					return d.noDestination(err)
				}
				return a.printSwitch(done, "paused", "paused already", args[0])
			})
		},
	}
	cmd.Flags().StringVar(&reason, "reason", "", "Reason, which lists and logs show")
	return cmd
}

// printSwitch prints the result of a command that turns something on or off.
func (a *app) printSwitch(done bool, changed, unchanged, name string) error {
	if a.json {
		return a.printJSON(map[string]any{"destination": name, changed: done})
	}
	if !done {
		changed = unchanged
	}
	fmt.Fprintf(a.Out, "%s: %s\n", changed, plain(name))
	return nil
}

func (a *app) destinationsProbe() *cobra.Command {
	return &cobra.Command{
		Use: "probe NAME", Short: "Try an unavailable destination now", Args: needs(1, 1, "the name of a destination"),
		Long: "Try an unavailable destination now, instead of at the end of its backoff. A paused destination stays paused. " + whenSeen,
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
				if err := d.destinations.Probe(ctx, args[0]); err != nil {
					return d.noDestination(err)
				}
				return a.printSwitch(true, "probed", "", args[0])
			})
		},
	}
}

func (a *app) destinationsRemove() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "remove NAME", Short: "Remove a destination and its backlog; requires stopped relays", Args: needs(1, 1, "the name of a destination"),
		Long: "Remove a destination, and delete its backlog: events that it has yet to receive, and its dead letters. First stop the\n" +
			"relays; afterwards start them without the destination, because a relay registers its destinations.",
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.withStore(cmd, func(ctx context.Context, d *session) error { return a.remove(ctx, d, args[0], yes) })
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "Confirmation in advance")
	return cmd
}

func (a *app) remove(ctx context.Context, d *session, name string, yes bool) error {
	v, err := d.destinations.Find(ctx, name)
	if err != nil {
		return d.noDestination(err)
	}
	if v.Rows() == 0 {
		err = a.confirm(yes, "Remove "+plain(name)+", whose backlog is empty?")
	} else {
		err = a.confirmCount(yes, fmt.Sprintf("%s of %s's backlog and %s will be deleted permanently",
			count(v.Waiting(), "event", "events"), plain(name), count(v.Dead, "dead letter", "dead letters")), v.Rows())
	}
	if err != nil {
		return err
	}
	n, err := d.destinations.Remove(ctx, name)
	if errors.Is(err, store.ErrRelayLive) {
		return hint.New("stop every waybill serve and every service with a relay on this store, remove the destination, and start them without it", "%w", err)
	}
	if err != nil {
		return d.noDestination(err)
	}
	if a.json {
		return a.printJSON(map[string]any{"destination": name, "removed": true, "rows": n})
	}
	text := "removed: " + plain(name)
	if n > 0 {
		text += ", and " + count(n, "row", "rows") + " of its backlog"
	}
	fmt.Fprintln(a.Out, text)
	return nil
}
