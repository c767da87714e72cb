// Command bench measures Waybill side by side with the floor: the same statements, written by hand.
//
//	go run ./bench write            what an event costs the transaction that writes it
//	go run ./bench write -db sqlite only there
//	go run ./bench -h               everything else
//
// PostgreSQL and MariaDB are private servers that it starts and stops by itself, unless WAYBILL_TEST_POSTGRES and
// WAYBILL_TEST_MYSQL name existing ones. All figures of a table come from one run on one server, and the contenders take turns,
// so that a slow minute of the machine is a slow minute for all: compare inside a table, never between two.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"
	"time"

	"github.com/waybillhq/waybill/internal/testserver"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

const usage = `usage: bench write [flags]

  write   an event's cost to the transaction that writes it: the business transaction alone, with the same
          insert by hand (the floor), and with Waybill; 1 and 8 connections; 1, 100 and 1000 events a transaction

`

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	flags := flag.NewFlagSet("bench", flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprint(stderr, usage)
		flags.PrintDefaults()
	}
	databases := flags.String("db", "postgres,mariadb,sqlite", "databases, separated by commas")
	rounds := flags.Int("rounds", 5, "how often every contender takes its turn")
	turn := flags.Duration("turn", 500*time.Millisecond, "how long a turn takes; longer is less noisy")
	only := flags.String("only", "", "a part of a title, such as \"1 conn, 1 ev\": only those tables")
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		flags.Usage()
		if len(args) > 0 && (args[0] == "-h" || args[0] == "--help" || args[0] == "-help") {
			return 0
		}
		return 2
	}
	command := args[0]
	if err := flags.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	if command != "write" {
		fmt.Fprintf(stderr, "bench: unknown command %q\n\n", command)
		flags.Usage()
		return 2
	}
	names := strings.Split(*databases, ",")
	for _, name := range names {
		if !slices.Contains([]string{"postgres", "mariadb", "sqlite"}, name) {
			fmt.Fprintf(stderr, "bench: unknown database %q; there are postgres, mariadb and sqlite\n", name)
			return 2
		}
	}
	if servers := missing(names); len(servers) > 0 {
		return underServers(ctx, servers, args, stdout, stderr)
	}
	if err := writes(ctx, names, *only, *rounds, *turn, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

// missing returns the servers that the environment does not name.
func missing(names []string) []string {
	var out []string
	for name, variable := range map[string]string{"postgres": testserver.EnvPostgres, "mariadb": testserver.EnvMySQL} {
		if slices.Contains(names, name) && os.Getenv(variable) == "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// underServers runs this program again with servers at its side.
func underServers(ctx context.Context, servers, args []string, stdout, stderr io.Writer) int {
	self, err := os.Executable()
	if err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	command := append([]string{
		"run", "github.com/waybillhq/waybill/internal/testserver/cmd/testserver", "run", "--only", strings.Join(servers, ","), "--", self,
	}, args...)
	cmd := exec.CommandContext(ctx, "go", command...)
	cmd.Stdout, cmd.Stderr = stdout, stderr
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	if err := cmd.Run(); err != nil {
		var exit *exec.ExitError
		if errors.As(err, &exit) {
			return exit.ExitCode()
		}
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}
