package command

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store"
)

func (a *app) migrate() *cobra.Command {
	return parent("migrate", "Create the tables, show missing migrations, or print the SQL", a.migrateUp(), a.migrateStatus(), a.migrateSQL(), a.migrateLanes())
}

func (a *app) migrateUp() *cobra.Command {
	return &cobra.Command{
		Use: "up", Short: "Apply missing migrations", Args: needs(0, 0, ""),
		Long: "Apply missing migrations, in order. Several processes can run the command concurrently; without missing migrations it does nothing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.pick(cmd)
			if err != nil {
				return err
			}
			return a.open(cmd.Context(), s, true, func(ctx context.Context, st *connect.Store) error {
				applied, err := st.Migrator.Migrate(ctx)
				if err != nil {
					return hint.New("check the user's right to create tables; waybill migrate sql prints a script for an administrator", "%w", st.Clean(err))
				}
				return a.printMigrations(applied, "no migrations are missing")
			})
		},
	}
}

func (a *app) migrateStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "List applied and missing migrations", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.pick(cmd)
			if err != nil {
				return err
			}
			return a.open(cmd.Context(), s, false, func(ctx context.Context, st *connect.Store) error {
				all, err := st.Migrator.Migrations(ctx)
				if err != nil {
					return st.Clean(err)
				}
				if err := a.printMigrations(all, "there are no migrations"); err != nil {
					return err
				}
				return st.Ready(ctx)
			})
		},
	}
}

func (a *app) printMigrations(all []store.Migration, none string) error {
	shown := []view.Migration{}
	for _, m := range all {
		shown = append(shown, view.MigrationOf(m))
	}
	if a.json {
		return a.printJSON(map[string]any{"migrations": shown})
	}
	if len(shown) == 0 {
		fmt.Fprintln(a.Err, none)
		return nil
	}
	t := newTable("VERSION", "NAME", "STATE", "APPLIED")
	for _, m := range shown {
		t.row(m.Version, m.Name, m.State, at(m.AppliedAt))
	}
	return t.writeTo(a.Out)
}

func (a *app) migrateSQL() *cobra.Command {
	var from int
	cmd := &cobra.Command{
		Use: "sql", Short: "Print all migrations as a script for the database's shell", Args: needs(0, 0, ""),
		Long: "Print all migrations as a script for psql, mariadb or sqlite3, for administrators who create tables themselves. The command does not\n" +
			"connect to the store. --from omits the migrations up to a version that is already applied (waybill migrate status shows it).",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from < 0 {
				return usage("waybill migrate status shows the versions; 0 prints all of them", "--from: %d is negative", from)
			}
			s, err := a.pick(cmd)
			if err != nil {
				return err
			}
			script, err := connect.MigrationSQL(s.Store, from)
			if err != nil {
				return err
			}
			if script == "" {
				fmt.Fprintf(a.Err, "no migrations after version %d\n", from)
				return nil
			}
			fmt.Fprint(a.Out, script)
			return nil
		},
	}
	cmd.Flags().IntVar(&from, "from", 0, "Version of the last applied migration; the script has only later ones")
	return cmd
}

func (a *app) migrateLanes() *cobra.Command {
	var yes bool
	var n int
	cmd := &cobra.Command{
		Use: "lanes --to N", Short: "Change the number of lanes of the outbox; requires stopped relays", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n < 1 {
				return usage("add --to N", "--to is required")
			}
			if err := a.confirm(yes, fmt.Sprintf("Move every event to one of %d lanes? Writers must be restarted afterwards.", n)); err != nil {
				return err
			}
			return a.withStore(cmd, func(ctx context.Context, d *session) error {
				err := d.SetLanes(ctx, n)
				if errors.Is(err, store.ErrRelayLive) {
					return hint.New("stop every waybill serve and every service with a relay on this store, then retry", "%w", err)
				}
				if err != nil {
					return d.store.Clean(err)
				}
				if a.json {
					return a.printJSON(map[string]int{"lanes": n})
				}
				fmt.Fprintf(a.Out, "lanes: %d\n", n)
				return nil
			})
		},
	}
	cmd.Flags().IntVar(&n, "to", 0, "Number of lanes")
	cmd.Flags().BoolVar(&yes, "yes", false, "Confirmation in advance")
	return cmd
}

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
