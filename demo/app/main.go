// Command app is the demo: a shop on SQLite with injected faults, whose
// inventory is a process of its own behind webhooks. The command in the folder
// above compiles and starts it with a view of the progress.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"golang.org/x/term"

	"github.com/waybillhq/waybill/demo/shop"
)

func main() {
	if shop.Inventory() {
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	context.AfterFunc(ctx, stop) // a second signal kills the process
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// Exit codes, as those of the command waybill.
const (
	success = 0
	failure = 1
	usage   = 2
)

// run is the program.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	cfg := shop.Config{Line: &shop.Webhooks{}, Out: stdout}
	flags := flag.NewFlagSet("demo", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.BoolVar(&cfg.Once, "once", false, "short fixed scenario with every fault, followed by the proof")
	flags.StringVar((*string)(&cfg.Sabotage), "sabotage", "", "promise to break on purpose, in the scenario of --once: "+strings.Join(shop.Sabotages(), ", "))
	flags.BoolVar(&cfg.ShowSQL, "show-sql", false, "output of the proof's queries with the verdict")
	flags.Float64Var(&cfg.Rate, "rate", 0, "orders per second (default 20; with --once 40)")
	flags.DurationVar(&cfg.Duration, "duration", 0, "duration of the demo, such as 30s (default: until Ctrl-C)")
	flags.Uint64Var(&cfg.Seed, "seed", 1, "seed of the random orders, repeated requests and faults")
	flags.StringVar(&cfg.Listen, "listen", "127.0.0.1:0", "loopback address of the shop's orders and /dashboard/; port 0: any free port")
	flags.StringVar(&cfg.Dir, "dir", "", "folder of the database, kept after the demo (default: a temporary folder)")
	switch err := flags.Parse(args); {
	case errors.Is(err, flag.ErrHelp):
		return success
	case err != nil:
		return usage
	case flags.NArg() > 0:
		fmt.Fprintf(stderr, "demo: unexpected argument %q; --help lists the flags\n", flags.Arg(0))
		return usage
	}
	if f, ok := stdout.(*os.File); ok && term.IsTerminal(int(f.Fd())) && os.Getenv("TERM") != "dumb" {
		cfg.Redraw, cfg.Color = true, os.Getenv("NO_COLOR") == ""
		cfg.Rows = func() int {
			_, rows, err := term.GetSize(int(f.Fd()))
			if err != nil {
				return 0
			}
			return rows
		}
	}
	err := shop.Run(ctx, cfg)
	if err == nil {
		return success
	}
	fmt.Fprintln(stderr, err)
	var broken *shop.BrokenError
	switch {
	case errors.As(err, &broken):
		fmt.Fprintln(stderr, "hint: --show-sql prints the query that found the event; --dir keeps the tables")
	case errors.Is(err, shop.ErrConfig):
		fmt.Fprintln(stderr, "hint: --help lists the flags")
		return usage
	}
	return failure
}
