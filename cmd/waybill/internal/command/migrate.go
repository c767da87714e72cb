package command

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/view"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func (a *app) migrate() *cobra.Command {
	return parent("migrate", "Create the tables, show missing migrations, or print the SQL", a.migrateUp(), a.migrateDown(), a.migrateStatus(), a.migrateSQL(), a.migrateLanes())
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
	var down bool
	format := string(shellScript)
	cmd := &cobra.Command{
		Use: "sql", Short: "Print all migrations as a script for the database's shell or a migration tool", Args: needs(0, 0, ""),
		Long: "Print all migrations as a script for psql, mariadb or sqlite3, for administrators who create tables themselves; or, with --format, as\n" +
			"a file for goose, golang-migrate or Atlas. The command does not connect to the store. --from omits the migrations up to a version\n" +
			"that is already applied (waybill migrate status shows it). --down prints the script that removes all tables.",
		Example: "  waybill migrate sql | psql shop\n" +
			"  waybill migrate sql --format goose > migrations/00042_waybill.sql\n" +
			"  waybill migrate sql --format goose --from 8 > migrations/00057_waybill_9.sql",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if from < 0 {
				return usage("waybill migrate status shows the versions; 0 prints all of them", "--from: %d is negative", from)
			}
			if !slices.Contains(scriptFormats, scriptFormat(format)) {
				return usage("use "+joined(scriptFormats), "--format: %q is unknown", format)
			}
			s, err := a.pick(cmd)
			if err != nil {
				return err
			}
			if scriptFormat(format) == shellScript && !down {
				script, err := connect.MigrationSQL(s.Store, from)
				return a.printScript(script, from, err)
			}
			up, drops, err := connect.Script(s.Store, from)
			if err != nil {
				return err
			}
			return a.printScript(scriptFormat(format).script(up, drops, from, down), from, nil)
		},
	}
	flags := cmd.Flags()
	flags.IntVar(&from, "from", 0, "Version of the last applied migration; the script has only later ones")
	flags.BoolVar(&down, "down", false, "Script that removes all tables and their data")
	flags.StringVar(&format, "format", format, "Form of the script: "+joined(scriptFormats))
	return cmd
}

func (a *app) printScript(script string, from int, err error) error {
	if err != nil {
		return err
	}
	if script == "" {
		fmt.Fprintf(a.Err, "no migrations after version %d\n", from)
		return nil
	}
	fmt.Fprint(a.Out, script)
	return nil
}

func (a *app) migrateDown() *cobra.Command {
	var yes bool
	cmd := &cobra.Command{
		Use: "down", Short: "Remove all tables and their data; requires stopped relays", Args: needs(0, 0, ""),
		Long: "Remove all tables of the outbox, the inboxes, the idempotency keys and the jobs, with their data: events that are not delivered are\n" +
			"lost, and events and requests that come again take effect again. Single migrations cannot be reversed. A schema stays.",
		RunE: func(cmd *cobra.Command, _ []string) error {
			s, err := a.pick(cmd)
			if err != nil {
				return err
			}
			return a.open(cmd.Context(), s, false, func(ctx context.Context, st *connect.Store) error {
				question, err := removal(ctx, st)
				if err != nil {
					return err
				}
				if err := a.confirm(yes, question); err != nil {
					return err
				}
				err = st.Migrator.(driver.Scripter).Remove(ctx)
				if errors.Is(err, store.ErrRelayLive) {
					return hint.New("stop every waybill serve and every service with a relay on this store, then retry", "%w", err)
				}
				if err != nil {
					return st.Clean(err)
				}
				if a.json {
					return a.printJSON(map[string]bool{"removed": true})
				}
				fmt.Fprintln(a.Out, "removed")
				return nil
			})
		},
	}
	cmd.Flags().BoolVar(&yes, "yes", false, "Confirmation in advance")
	return cmd
}

// removal returns the question before a removal, with the numbers of events
// that would be lost.
func removal(ctx context.Context, st *connect.Store) (string, error) {
	all, err := st.Migrator.Migrations(ctx)
	if err != nil {
		return "", st.Clean(err)
	}
	if !slices.ContainsFunc(all, func(m store.Migration) bool { return !m.AppliedAt.IsZero() }) {
		return "", hint.New("waybill migrate status lists the migrations; check --store-schema and --store-prefix", "there are no tables")
	}
	stats, err := st.OutboxAdmin.Stats(ctx)
	if err != nil { // tables that are broken or newer can be removed, too
		return "Remove all tables and their data?", nil
	}
	return fmt.Sprintf("Remove all tables and their data, among them %d events that are not delivered and %d dead letters?",
		stats.Ready+stats.Scheduled+stats.Failed, stats.Dead), nil
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
			if err := a.confirm(yes, fmt.Sprintf("Move every event to one of %d lanes? No relay may run.", n)); err != nil {
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
