// Command bench measures Waybill side by side with the floor, which is the same
// statements written by hand, and with other libraries.
//
//	go run ./internal/e2e/bench write     the cost of an event for the transaction that writes it
//	go run ./internal/e2e/bench drain     the rate at which a backlog is delivered, for Waybill and its peers
//	go run ./internal/e2e/bench steady    producers and relay together: throughput, and the time from commit to handler
//	go run ./internal/e2e/bench inbox     the cost of applying an event once for a consumer
//	go run ./internal/e2e/bench idle      the cost of an idle relay
//	go run ./internal/e2e/bench takeover  the time until a relay is at full speed after kill -9
//	go run ./internal/e2e/bench conditions  the cost of old snapshots and blocked aggregates
//	go run ./internal/e2e/bench destinations  the cost of several destinations, also if one is down
//	go run ./internal/e2e/bench tenants   the latency of a quiet tenant while another one floods the outbox
//	go run ./internal/e2e/bench outboxes  many outboxes whose relays run in one process
//	go run ./internal/e2e/bench apart     the latency while the relay is another process
//	go run ./internal/e2e/bench brokers   the publish rate of a relay for each broker, beside its client library by hand
//	go run ./internal/e2e/bench idempotency  the cost of a key for its request
//	go run ./internal/e2e/bench page docs/benchmarks.md  the results of a page
//	go run ./internal/e2e/bench drain -h  the flags of a command
//
// Bench starts and stops private databases and brokers, unless
// WAYBILL_TEST_POSTGRES, WAYBILL_TEST_MYSQL and the like name existing ones.
// All figures of a table come from one run on one server, and the contenders
// take turns, so that a slow minute of the machine affects all of them: compare
// inside a table, never between two.
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/exec"
	"os/signal"
	"slices"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

func main() {
	// the measured code writes no log
	slog.SetDefault(slog.New(slog.DiscardHandler))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command is one measurement.
type command struct {
	name, about string
	// prepare defines the command's flags; its result is used after they were
	// parsed.
	prepare func(flags *flag.FlagSet) task
}

// task is a command with parsed flags.
type task struct {
	// databases returns the required databases; an error is an invalid flag.
	databases func() ([]string, error)
	run       func(ctx context.Context, out, progress io.Writer) error
}

var commands = []command{
	{"write", `the cost of an event for the transaction that writes it: the business transaction alone, with the same insert by hand (the
          floor), and with Waybill; 1 and 8 connections; 1, 100 and 1000 events per transaction`, prepareWrite},
	{"drain", `the rate at which a backlog is delivered: the same reads and deletes by hand (the floor), Waybill, and on PostgreSQL River,
          watermill-sql and oagudo/outbox, each with defaults and tuned`, prepareDrain},
	{"steady", `producers and relay together (PostgreSQL): the remaining speed of the producers, and the time from commit to handler,
          at full speed and at a fixed rate`, prepareSteady},
	{"inbox", `the cost of applying an event once for a consumer (PostgreSQL): by hand, one by one, in batches, with an empty table and a
          large one`, prepareInbox},
	{"idle", `the cost of an idle relay (PostgreSQL)`, prepareIdle},
	{"takeover", `the time until a relay is at full speed after the process before it was killed with kill -9 (PostgreSQL)`, prepareTakeover},
	{"conditions", `the cost of a relay, and its latency, under conditions that last: an old snapshot, blocked aggregates (PostgreSQL)`, prepareConditions},
	{"apart", `the time from commit to handler while the relay is another process, at fixed rates: PostgreSQL beside other libraries,
          MariaDB, MySQL, SQLite`, prepareApart},
	{"destinations", `a relay with one sink and with 1 to 4 destinations, and with one that is unavailable, hangs or refuses every event: the rate
          of the others, and their latency (PostgreSQL)`, prepareDestinations},
	{"tenants", `the time from commit to handler for quiet tenants while another tenant floods the outbox, beside the same without the flood
          (PostgreSQL)`, prepareTenants},
	{"outboxes", `the cost and the speed of 1, 10 and 100 outboxes whose relays run in one process (PostgreSQL)`, prepareOutboxes},
	{"relay", `a relay in a process of its own, over tables that exist; other commands start it`, prepareRelay},
	{"brokers", `the publish rate of a relay for each broker, every event confirmed, beside the client library publishing the same messages
          by hand; with the outbox in memory and in PostgreSQL`, prepareBrokers},
	{"dashboard", `every page of the dashboard over a large history and many dead letters (PostgreSQL): its time at the server, and the tables that
          it reads as a whole`, prepareDashboard},
	{"idempotency", `the cost of a key for its request (PostgreSQL): by hand, Do and DoTx, first runs and repeats; the overhead of the
          HTTP middleware`, prepareIdempotency},
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		usage(stderr)
		if len(args) > 0 && strings.TrimLeft(args[0], "-") == "h" || len(args) > 0 && strings.TrimLeft(args[0], "-") == "help" {
			return 0
		}
		return 2
	}
	if args[0] == "page" {
		return page(ctx, args[1:], stdout, stderr)
	}
	at := slices.IndexFunc(commands, func(c command) bool { return c.name == args[0] })
	if at < 0 {
		fmt.Fprintf(stderr, "bench: unknown command %q\n\n", args[0])
		usage(stderr)
		return 2
	}
	c := commands[at]
	flags := flag.NewFlagSet("bench "+c.name, flag.ContinueOnError)
	flags.SetOutput(stderr)
	flags.Usage = func() {
		fmt.Fprintf(stderr, "usage: bench %s [flags]\n\n  %s   %s\n\n", c.name, c.name, c.about)
		flags.PrintDefaults()
	}
	t := c.prepare(flags)
	if err := flags.Parse(args[1:]); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return 0
		}
		return 2
	}
	names, err := t.databases()
	if err != nil || flags.NArg() > 0 {
		if err == nil {
			err = fmt.Errorf("%q is not a flag", flags.Arg(0))
		}
		fmt.Fprintln(stderr, "bench:", err)
		return 2
	}
	if servers := missing(names); len(servers) > 0 {
		return underServers(ctx, servers, args, stdout, stderr)
	}
	if err := t.run(ctx, stdout, stderr); err != nil {
		fmt.Fprintln(stderr, "bench:", err)
		return 1
	}
	return 0
}

func usage(w io.Writer) {
	fmt.Fprint(w, "usage: bench COMMAND [flags]\n\n")
	for _, c := range commands {
		fmt.Fprintf(w, "  %-7s  %s\n", c.name, c.about)
	}
	fmt.Fprintf(w, "  %-7s  %s\n", "page", "the blocks of a page, such as docs/benchmarks.md: runs their commands and replaces their results")
	fmt.Fprint(w, "\nbench COMMAND -h lists the flags of a command.\n")
}

// parseDatabases parses comma-separated names of databases.
func parseDatabases(text string) ([]string, error) {
	names := strings.Split(text, ",")
	for _, name := range names {
		if !slices.Contains([]string{"postgres", testserver.MariaDBName, testserver.MySQLName, "sqlite"}, name) {
			return nil, fmt.Errorf("unknown database %q; use postgres, mariadb, mysql or sqlite", name)
		}
	}
	return names, nil
}

// oneDatabase parses the name of one database.
func oneDatabase(text string) ([]string, error) {
	names, err := parseDatabases(text)
	if err == nil && len(names) > 1 {
		err = fmt.Errorf("-db %s: one at a time", text)
	}
	return names, err
}

// missing returns the servers that the environment does not name.
func missing(names []string) []string {
	var out []string
	for name, variable := range map[string]string{
		"postgres": testserver.EnvPostgres, testserver.MariaDBName: testserver.EnvMariaDB, testserver.MySQLName: testserver.EnvMySQL, testserver.RedisName: testserver.EnvRedis,
		testserver.RabbitMQName: testserver.EnvRabbitMQ, testserver.KafkaName: testserver.EnvKafka, testserver.PulsarName: testserver.EnvPulsar,
	} {
		if slices.Contains(names, name) && os.Getenv(variable) == "" {
			out = append(out, name)
		}
	}
	slices.Sort(out)
	return out
}

// underServers runs this program again under testserver.
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
