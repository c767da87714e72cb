package command

import (
	"context"
	"errors"
	"fmt"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store"
)

const restoredHelp = `Continue after the database of an outbox was restored from a backup. Stop every relay and every service that writes events, restore
the database, run this command once, and start them again.

What it does: it raises the epoch of every lane and the sequence of the outbox beyond everything that was issued after the backup,
releases all lanes, and forgets the relays of the backup. Without it, positions are issued twice, for different events, and consumers
take new events for old ones. It changes no event.

What consumers see:
  - Events that the backup has as pending are delivered, also those that were delivered after the backup. They have the same ids: an
    inbox suppresses them, any other consumer has to recognize them.
  - Events that were written after the backup are lost, together with the changes of their transactions. Consumers may have received
    them: compare their data with this database.

If the database of a consumer was restored, and not this one: waybill replay --destination NAME --since TIME-OF-THE-BACKUP.`

func (a *app) restored() *cobra.Command {
	var force, yes bool
	cmd := &cobra.Command{
		Use: "restored", Short: "Continue after the database of the outbox was restored from a backup", Args: needs(0, 0, ""),
		Long: restoredHelp,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if a.Interactive && !yes {
				fmt.Fprintln(a.Err, restoredHelp)
				fmt.Fprintln(a.Err)
			}
			if err := a.confirm(yes, "Raise the epochs and the sequence of this outbox? No relay and no service may run."); err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error { return a.restore(ctx, d, force) })
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "No check for live relays: those of a backup look alive until their leases end")
	cmd.Flags().BoolVar(&yes, "yes", false, "Confirmation in advance")
	return cmd
}

func (a *app) restore(ctx context.Context, d *session, force bool) error {
	r, err := d.Restored(ctx, force)
	if errors.Is(err, store.ErrRelayLive) {
		return hint.New("stop every waybill serve and every service with a relay on this store. If none runs, the relay is that of the backup: "+
			"wait until its lease ends (relay.lease, 15 s by default), or add --force", "%w", err)
	}
	if err != nil {
		return d.store.Clean(err)
	}
	if a.json {
		return a.printJSON(view.RestoredOf(r))
	}
	return a.printRestored(r)
}

func (a *app) printRestored(r admin.Restored) error {
	t := newTable("WHAT", "VALUE", "MEANING")
	t.row("epochs", fmt.Sprintf("+%d", r.Epochs), "of every lane")
	t.row("sequence", fmt.Sprintf("+%d", r.Seqs), "of the outbox")
	t.row("pending", r.Pending, "events of the backup; those that were delivered after it are delivered again")
	t.row("again from", at(r.Since), "write time of the oldest pending event")
	t.row("again to", at(r.Until), "write time of the newest event of the backup; later ones are lost")
	if err := t.writeTo(a.Out); err != nil {
		return err
	}
	fmt.Fprintln(a.Err, "next: start the relays and the services; check consumers without an inbox for repeated events, and all consumers for data of lost events")
	return nil
}
