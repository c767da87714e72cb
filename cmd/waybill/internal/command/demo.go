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
	"github.com/waybillhq/waybill/demo/shop"
)

func (a *app) demo() *cobra.Command {
	cfg := shop.Config{Out: a.Out}
	var sabotage string
	cmd := &cobra.Command{
		Use: "demo", Short: "Run a small shop with injected faults and verify it with SQL", Args: needs(0, 0, ""),
		Long: `Run a small shop on SQLite and an embedded JetStream server, without any installation. Orders arrive over HTTP with idempotency keys, some
of them several times; their events go through outbox, relay and broker to an inventory with an inbox. Meanwhile responses are lost, consumers
crash, the broker is stopped and restarted, and messages are published twice. SQL queries over the tables check five promises continuously.
The output begins with the address of the dashboard, which shows the tables in a browser while the demo runs.

Ctrl-C delivers all events in flight and prints the verdict; --show-sql prints its queries. The exit code is 0 if every promise was kept.`,
		Example: `  waybill demo                        # until Ctrl-C
  waybill demo --once                 # a few seconds with every fault once; for CI
  waybill demo --sabotage=lose        # break a promise on purpose: the proof reports the promise and the event
  waybill demo --dir shop --show-sql  # keep the tables for inspection`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if cmd.Flags().Changed("rate") && cfg.Rate <= 0 {
				return usage("write --rate 20 for 20 orders per second", "demo: --rate must be greater than 0")
			}
			cfg.Sabotage = shop.Sabotage(sabotage)
			if sabotage != "" && !slices.Contains(shop.Sabotages(), sabotage) {
				advice := "kinds of sabotage: " + strings.Join(shop.Sabotages(), ", ")
				if near := hint.Nearest(sabotage, shop.Sabotages()); near != "" {
					advice = "did you mean " + near + "?"
				}
				return usage(advice, "demo: unknown sabotage %q", sabotage)
			}
			cfg.Redraw, cfg.Rows = isTerminal(a.Out), func() int { return rows(a.Out) }
			cfg.Color = cfg.Redraw && !slices.ContainsFunc(a.Environ, func(v string) bool { return strings.HasPrefix(v, "NO_COLOR=") && v != "NO_COLOR=" })
			err := demo.Run(cmd.Context(), cfg)
			var broken *shop.BrokenError
			switch {
			case errors.Is(err, shop.ErrConfig):
				return usage("see waybill demo --help", "%w", err)
			case errors.As(err, &broken):
				// A broken promise takes precedence over the signal that ended
				// the demo.
				return &coded{hint.New("--show-sql prints the query that found the event; --dir keeps the tables", "%w", err), Failed}
			}
			return err
		},
	}
	flags := cmd.Flags()
	flags.BoolVar(&cfg.Once, "once", false, "Short fixed scenario with every fault, followed by the proof")
	flags.StringVar(&sabotage, "sabotage", "", "Promise to break on purpose, in the scenario of --once: "+strings.Join(shop.Sabotages(), ", "))
	complete(cmd, "sabotage", shop.Sabotages()...)
	flags.BoolVar(&cfg.ShowSQL, "show-sql", false, "Output of the proof's queries with the verdict")
	flags.Float64Var(&cfg.Rate, "rate", 0, "Orders per second (default 20; with --once 40)")
	flags.DurationVar(&cfg.Duration, "duration", 0, "Duration of the demo, such as 30s (default: until Ctrl-C)")
	flags.Uint64Var(&cfg.Seed, "seed", 1, "Seed of the random orders, repeated requests and faults")
	flags.StringVar(&cfg.Listen, "listen", "127.0.0.1:0", "Loopback address of the shop's orders, /dashboard/ and /metrics; port 0: any free port")
	flags.StringVar(&cfg.Dir, "dir", "", "Folder of the database and the streams, kept after the demo (default: a temporary folder)")
	return cmd
}

// isTerminal reports whether out is a terminal that can be redrawn.
func isTerminal(out any) bool {
	f, ok := out.(*os.File)
	return ok && isatty.IsTerminal(f.Fd()) && os.Getenv("TERM") != "dumb"
}

// rows returns the number of rows of a terminal; 0 if it is unknown.
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
