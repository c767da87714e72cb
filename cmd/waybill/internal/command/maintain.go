package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/store"
)

func (a *app) purge() *cobra.Command {
	var history, dead, written string
	var yes bool
	cmd := &cobra.Command{
		Use: "purge", Short: "Delete delivered and dead events after their retention", Args: needs(0, 0, ""),
		Long: "Delete delivered events and dead letters after their retention (relay.history-retention, relay.dead-retention, or the flags).\n" +
			"serve purges periodically; this command purges immediately. --written is for an outbox that change data capture reads and that has\n" +
			"no relay: it deletes events by the time since they were written, read or not, and frees dedup keys. Delayed events are kept.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if written != "" {
				if history != "" || dead != "" {
					return usage("omit the others", "--written cannot be combined with --history or --dead")
				}
				age, err := settings.ParseDuration(written)
				if err != nil || age <= 0 {
					return usage("write --written 7d", "--written %s is not a duration", written)
				}
				return a.purgeWritten(cmd, age, yes)
			}
			return a.purgeOld(cmd, history, dead, yes)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&history, "history", "", "Retention of delivered events, instead of relay.history-retention")
	flags.StringVar(&dead, "dead", "", "Retention of dead letters, instead of relay.dead-retention")
	flags.StringVar(&written, "written", "", "Retention of written events, delivered or not")
	flags.BoolVar(&yes, "yes", false, "Confirmation in advance")
	return cmd
}

func (a *app) purgeOld(cmd *cobra.Command, history, dead string, yes bool) error {
	return a.withStore(cmd, func(ctx context.Context, d *session) error {
		keep := admin.Retention{History: d.settings.Relay.HistoryRetention, Dead: d.settings.Relay.DeadRetention, PurgeBatchSize: d.settings.Purge.BatchSize}
		for _, o := range []struct {
			flag, text string
			to         *time.Duration
		}{{"--history", history, &keep.History}, {"--dead", dead, &keep.Dead}} {
			if o.text == "" {
				continue
			}
			age, err := settings.ParseDuration(o.text)
			if err != nil || age <= 0 {
				return usage("write "+o.flag+" 7d", "%s %s is not a duration", o.flag, o.text)
			}
			*o.to = age
		}
		if err := a.confirm(yes, "Delete "+purgePlan(keep)+"?"); err != nil {
			return err
		}
		p, err := d.Purger(keep)
		if err != nil {
			return err
		}
		b := a.bar("deleting")
		gone, err := p.Once(ctx, func(g admin.Purged) { b.show(int64(g.Delivered+g.Dead), 0) })
		b.end()
		if a.json {
			return errors.Join(a.printJSON(map[string]int{"delivered": gone.Delivered, "dead": gone.Dead}), d.store.Clean(err))
		}
		fmt.Fprintf(a.Out, "deleted: %d delivered, %d dead\n", gone.Delivered, gone.Dead)
		return d.store.Clean(err)
	})
}

// purgePlan describes the rows that a purge deletes.
func purgePlan(k admin.Retention) string {
	what := "no delivered events"
	if k.History > 0 {
		what = "events delivered more than " + settings.FormatDuration(k.History) + " ago"
	}
	if k.Dead > 0 {
		return what + ", and dead letters older than " + settings.FormatDuration(k.Dead)
	}
	return what + ", and no dead letters"
}

func (a *app) purgeWritten(cmd *cobra.Command, age time.Duration, yes bool) error {
	question := "Delete events written more than " + settings.FormatDuration(age) + " ago, read or not?"
	if err := a.confirm(yes, question); err != nil {
		return err
	}
	return a.withStore(cmd, func(ctx context.Context, d *session) error {
		b := a.bar("deleting")
		n, err := d.PurgeWritten(ctx, age, func(n int) { b.show(int64(n), 0) })
		b.end()
		if errors.Is(err, store.ErrRelayLive) {
			return hint.New("this outbox has a relay, which purges delivered events; --written is for outboxes without a relay", "%w", err)
		}
		if a.json {
			return errors.Join(a.printJSON(map[string]int{"written": n}), d.store.Clean(err))
		}
		fmt.Fprintf(a.Out, "deleted: %d\n", n)
		return d.store.Clean(err)
	})
}
