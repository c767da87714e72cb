package command

import (
	"errors"
	"os"
	"slices"
	"strings"

	"github.com/mattn/go-isatty"
	"github.com/spf13/cobra"
	"golang.org/x/term"

	"github.com/waybillhq/waybill/cmd/waybill/internal/demo"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
)

func (a *app) demo() *cobra.Command {
	cfg := demo.Config{Out: a.Out}
	var sabotage string
	cmd := &cobra.Command{
		Use: "demo", Short: "Watch it work: a small shop, disturbed on purpose", Args: needs(0, 0, ""),
		Long: `Run a small shop on SQLite and an embedded JetStream, with nothing to install. Orders arrive over HTTP with idempotency keys, some of them
several times; their events go through outbox, relay and broker to an inventory with an inbox. Meanwhile answers get lost, consumers crash, the
broker is stopped and started, messages are published twice. Five promises are checked all the time, by SQL over the tables.

Ctrl-C lets everything arrive that is on its way and prints the verdict; --show-sql prints its queries. It exits with 0 if every promise was kept.`,
		Example: `  waybill demo                        # until Ctrl-C
  waybill demo --once                 # a few seconds, every fault once; for CI
  waybill demo --sabotage=lose        # breaks a promise on purpose: the proof names it, and the event
  waybill demo --dir shop --show-sql  # keeps the tables, to look at them afterwards`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("rate") && cfg.Rate <= 0 {
				return usage("orders per second, such as 20", "demo: the rate is above 0")
			}
			cfg.Sabotage = demo.Sabotage(sabotage)
			if sabotage != "" && !slices.Contains(demo.Sabotages(), sabotage) {
				advice := "there are " + strings.Join(demo.Sabotages(), ", ")
				if near := hint.Nearest(sabotage, demo.Sabotages()); near != "" {
					advice = "did you mean " + near + "?"
				}
				return usage(advice, "demo: there is no sabotage %q", sabotage)
			}
			cfg.Redraw, cfg.Rows = isTerminal(a.Out), func() int { return rows(a.Out) }
			cfg.Color = cfg.Redraw && !slices.ContainsFunc(a.Environ, func(v string) bool { return strings.HasPrefix(v, "NO_COLOR=") && v != "NO_COLOR=" })
			err := demo.Run(cmd.Context(), cfg)
			var broken *demo.BrokenError
			switch {
			case errors.Is(err, demo.ErrConfig):
				return usage("see waybill demo --help", "%w", err)
			case errors.As(err, &broken):
				// Found in the verdict, whatever else happened: a signal that ended the demonstration is not why it failed.
				return &coded{hint.New("--show-sql prints the query that found it; --dir keeps the tables", "%w", err), Failed}
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&cfg.Once, "once", false, "Run a short fixed scenario with every fault, print the proof, and end")
	flags.StringVar(&sabotage, "sabotage", "", "Break a promise on purpose, in the scenario of --once: "+strings.Join(demo.Sabotages(), ", "))
	complete(cmd, "sabotage", demo.Sabotages()...)
	flags.BoolVar(&cfg.ShowSQL, "show-sql", false, "Print the queries of the proof with the verdict")
	flags.Float64Var(&cfg.Rate, "rate", 0, "Orders per second (default 20; with --once 40)")
	flags.DurationVar(&cfg.Duration, "duration", 0, "After how long it ends by itself, such as 30s (default: at Ctrl-C)")
	flags.Uint64Var(&cfg.Seed, "seed", 1, "Decides who orders what, who repeats himself, and which faults come")
	flags.StringVar(&cfg.Listen, "listen", "127.0.0.1:0", "Where the shop takes orders and shows /metrics; loopback, port 0 is any")
	flags.StringVar(&cfg.Dir, "dir", "", "Where tables and streams are kept; they stay (default: a folder that is gone afterwards)")
	return cmd
}

// isTerminal reports whether what is written there can be drawn over.
func isTerminal(out any) bool {
	f, ok := out.(*os.File)
	return ok && isatty.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb"
}

// rows returns how many rows a terminal has; 0 if it does not say.
func rows(out any) int {
	f, ok := out.(*os.File)
	if !ok {
		return 0
	}
	_, height, err := term.GetSize(int(f.Fd()))
	if err != nil {
		return 0
	}
	return height
}
