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
	return parent("migrate", "The tables: make them, see what is missing, or print the SQL", a.migrateUp(), a.migrateStatus(), a.migrateSQL(), a.migrateLanes())
}

func (a *app) migrateUp() *cobra.Command {
	return &cobra.Command{
		Use: "up", Short: "Apply what is missing", Args: needs(0, 0, ""),
		Long: "Apply what is missing, in order. It is safe to run from several processes at once, and does nothing when nothing is missing.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.pick(cmd)
			if err != nil {
				return err
			}
			return a.open(cmd.Context(), s, true, func(ctx context.Context, st *connect.Store) error {
				applied, err := st.Migrate(ctx)
				if err != nil {
					return hint.New("does the user have the right to make tables? waybill migrate sql prints what an administrator can run", "%w", st.Clean(err))
				}
				return a.printMigrations(applied, "nothing was missing")
			})
		},
	}
}

func (a *app) migrateStatus() *cobra.Command {
	return &cobra.Command{
		Use: "status", Short: "What was applied, and what is missing", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.pick(cmd)
			if err != nil {
				return err
			}
			return a.open(cmd.Context(), s, false, func(ctx context.Context, st *connect.Store) error {
				all, err := st.Migrations(ctx)
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
		Use: "sql", Short: "Print all of it as a script for the database's own shell", Args: needs(0, 0, ""),
		Long: "Print all of it as a script for psql, mariadb or sqlite3, for people who may not make tables from a program. The store is not asked.\n" +
			"For tables that have had migrations up to a version (waybill migrate status shows it), --from leaves those out.",
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
				fmt.Fprintf(a.Err, "this program knows no migration after %d\n", from)
				return nil
			}
			fmt.Fprint(a.Out, script)
			return nil
		},
	}
	cmd.Flags().IntVar(&from, "from", 0, "The version that the tables have had; only what comes after it is printed")
	return cmd
}

func (a *app) migrateLanes() *cobra.Command {
	var yes bool
	var n int
	cmd := &cobra.Command{
		Use: "lanes --to N", Short: "Change into how many lanes the outbox is divided; stop the relays first", Args: needs(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if n < 1 {
				return usage("add --to N", "into how many lanes?")
			}
			if err := a.confirm(yes, fmt.Sprintf("Move every event to one of %d lanes? Writers must be started again afterwards.", n)); err != nil {
				return err
			}
			return a.atDesk(cmd, func(ctx context.Context, d *desk) error {
				err := d.SetLanes(ctx, n)
				if errors.Is(err, store.ErrRelayLive) {
					return hint.New("stop every waybill serve and every service with a relay on this store, then try again", "%w", err)
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
	cmd.Flags().IntVar(&n, "to", 0, "How many lanes")
	cmd.Flags().BoolVar(&yes, "yes", false, "Do not ask")
	return cmd
}

func (a *app) purge() *cobra.Command {
	var history, dead, written string
	var yes bool
	cmd := &cobra.Command{
		Use: "purge", Short: "Delete events that need not be kept any more", Args: needs(0, 0, ""),
		Long: "Delete delivered events and dead letters that are older than the settings say (relay.keep-history, relay.keep-dead), or than the\n" +
			"flags say. serve does so by itself; this is for doing it now. --written is for an outbox that is read by change data capture and\n" +
			"has no relay: it deletes what was written longer ago, read or not, and frees dedup keys. Delayed events stay.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if written != "" {
				if history != "" || dead != "" {
					return usage("leave the others out", "--written goes with neither --history nor --dead")
				}
				age, err := settings.ParseDuration(written)
				if err != nil || age <= 0 {
					return usage("write --written 7d", "--written %s is not a time span", written)
				}
				return a.purgeWritten(cmd, age, yes)
			}
			return a.purgeOld(cmd, history, dead, yes)
		},
	}
	flags := cmd.Flags()
	flags.StringVar(&history, "history", "", "Delete events that were delivered longer ago than this, whatever relay.keep-history says")
	flags.StringVar(&dead, "dead", "", "Delete dead letters that are older than this, whatever relay.keep-dead says")
	flags.StringVar(&written, "written", "", "Delete events that were written longer ago than this, delivered or not")
	flags.BoolVar(&yes, "yes", false, "Do not ask")
	return cmd
}

func (a *app) purgeOld(cmd *cobra.Command, history, dead string, yes bool) error {
	return a.atDesk(cmd, func(ctx context.Context, d *desk) error {
		keep := admin.Retention{History: d.settings.Relay.KeepHistory, Dead: d.settings.Relay.KeepDead, BatchSize: d.settings.Purge.Batch}
		for _, o := range []struct {
			flag, text string
			to         *time.Duration
		}{{"--history", history, &keep.History}, {"--dead", dead, &keep.Dead}} {
			if o.text == "" {
				continue
			}
			age, err := settings.ParseDuration(o.text)
			if err != nil || age <= 0 {
				return usage("write "+o.flag+" 7d", "%s %s is not a time span", o.flag, o.text)
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

// purgePlan says what is about to be deleted.
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
	question := "Delete events written more than " + settings.FormatDuration(age) + " ago, whether anybody has read them or not?"
	if err := a.confirm(yes, question); err != nil {
		return err
	}
	return a.atDesk(cmd, func(ctx context.Context, d *desk) error {
		b := a.bar("deleting")
		n, err := d.PurgeWritten(ctx, age, func(n int) { b.show(int64(n), 0) })
		b.end()
		if errors.Is(err, store.ErrRelayLive) {
			return hint.New("this outbox has a relay, which deletes what it has delivered; --written is for those without", "%w", err)
		}
		if a.json {
			return errors.Join(a.printJSON(map[string]int{"written": n}), d.store.Clean(err))
		}
		fmt.Fprintf(a.Out, "deleted: %d\n", n)
		return d.store.Clean(err)
	})
}
