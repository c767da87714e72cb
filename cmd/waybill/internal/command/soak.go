package command

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
	"github.com/waybillhq/waybill/cmd/waybill/internal/soak"
)

// allSabotages runs every kind.
const allSabotages = "all"

func (a *app) soak() *cobra.Command {
	cfg := soak.Config{Out: a.Out}
	var sabotage, cleanup string
	cmd := &cobra.Command{
		Use: "soak", Short: "Kill and pause real processes on your database and broker, and verify every promise", Args: needs(0, 0, ""),
		Long: `Run producers, relays, consumers and idempotent requests as processes of their own, on the database and the broker of the settings, with tables and
topics of their own, which are removed afterwards. While they work, they are killed (-9), paused and stopped, and kill themselves inside of
transactions. Break more by hand: outages of the servers are noticed and listed. After the time, everything in flight is delivered, and the
tables and the reports of the processes are compared: a verdict for each promise, and a report in two files.

Without settings it uses SQLite and an embedded JetStream server. The user of the database needs the right to create tables; on PostgreSQL, a
schema. The exit code is 0 if every promise was kept, 1 if one was broken, and 2 if the soak could not run.`,
		Example: `  waybill soak                                          # two minutes, without any installation
  waybill soak --for 8h --store postgres://… --sink kafka://…   # a night
  waybill soak --sabotage double-effect                 # break a promise on purpose: the verdict names it
  waybill soak --sabotage all                           # every kind of sabotage, and a table
  waybill soak --cleanup soak_0123abcd                  # remove what a killed run left behind`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if soak.IsChild(a.Environ) {
				return soak.Child(cmd.Context(), a.In, a.Out, a.Err)
			}
			if err := a.soakServers(cmd, &cfg); err != nil {
				return err
			}
			if cleanup != "" {
				return a.cleanSoak(cmd.Context(), cfg, cleanup)
			}
			return a.runSoak(cmd.Context(), cfg, sabotage)
		},
	}
	flags := cmd.Flags()
	flags.DurationVar(&cfg.For, "for", 0, "Duration of the load, such as 10m or 8h (default 2m)")
	flags.IntVar(&cfg.Events, "events", 0, "Number of committed transactions after which the load ends earlier (default: no limit)")
	flags.Float64Var(&cfg.Rate, "rate", 0, "Events per second (default 100)")
	flags.DurationVar(&cfg.FaultEvery, "fault-every", 0, "Mean time between two faults (default 1.5s)")
	flags.DurationVar(&cfg.Lease, "lease", 0, "Lease of the relays (default 3s)")
	flags.Uint64Var(&cfg.Seed, "seed", 0, "Seed of the faults and of the work of every process (default: a random one, which the report names)")
	flags.StringVar(&sabotage, "sabotage", "", "Promise to break on purpose: all, "+strings.Join(soak.Sabotages(), ", "))
	complete(cmd, "sabotage", append(soak.Sabotages(), allSabotages)...)
	flags.StringVar(&cfg.Report, "report", "", "Path of the report, without extension; none: no files (default waybill-RUN)")
	flags.BoolVar(&cfg.Keep, "keep", false, "Tables, topics and logs are kept")
	flags.StringVar(&cleanup, "cleanup", "", "Run whose tables, topics and logs are removed, such as soak_0123abcd")
	settings.AddFlags(flags, func(k settings.Key) bool { return k.Name == "sink.url" })
	return cmd
}

// runSoak runs a soak, or one of every sabotage.
func (a *app) runSoak(ctx context.Context, cfg soak.Config, sabotage string) error {
	if sabotage != "" && sabotage != allSabotages && !slices.Contains(soak.Sabotages(), sabotage) {
		advice := "kinds of sabotage: " + strings.Join(soak.Sabotages(), ", ")
		if near := hint.Nearest(sabotage, soak.Sabotages()); near != "" {
			advice = "did you mean " + near + "?"
		}
		return usage(advice, "soak: unknown sabotage %q", sabotage)
	}
	program, err := os.Executable()
	if err != nil {
		return &coded{err, Usage}
	}
	info, _ := debug.ReadBuildInfo()
	cfg.Command, cfg.Version, cfg.Redraw = []string{program, "soak"}, describe(info).String(), isTerminal(a.Out)
	if sabotage == allSabotages {
		return soakError(soak.RunAll(ctx, cfg))
	}
	cfg.Sabotage = soak.Sabotage(sabotage)
	if a.json {
		cfg.Out, cfg.Redraw = a.Err, isTerminal(a.Err)
	}
	report, err := soak.Run(ctx, cfg)
	if a.json && report != nil {
		err = errors.Join(err, a.printJSON(report))
	}
	return soakError(err)
}

// cleanSoak removes what a run left behind.
func (a *app) cleanSoak(ctx context.Context, cfg soak.Config, run string) error {
	n, err := soak.Cleanup(ctx, cfg, run)
	if err == nil {
		fmt.Fprintf(a.Out, "%s: removed %d tables, the topics and the folder\n", run, n)
	}
	return soakError(err)
}

// soakServers reads the database and the broker from the settings; the defaults
// of waybill serve do not count.
func (a *app) soakServers(cmd *cobra.Command, cfg *soak.Config) error {
	s, err := a.pick(cmd)
	if err != nil {
		return err
	}
	given := func(name string) bool {
		return slices.ContainsFunc(s.Values(), func(v settings.Value) bool { return v.Key.Name == name && v.Source != "default" })
	}
	cfg.Store = s.Store
	if !given("store.url") {
		cfg.Store.URL = settings.Secret{}
	}
	if given("sink.url") {
		cfg.Sink.URL = s.Sink.URL
	}
	return nil
}

// soakError adds the exit code to an error of a soak.
func soakError(err error) error {
	var broken *soak.BrokenError
	switch {
	case err == nil:
		return nil
	case errors.As(err, &broken), errors.Is(err, soak.ErrMissed):
		return &coded{err, Failed}
	}
	return &coded{err, Usage}
}
