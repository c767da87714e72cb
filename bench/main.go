// Command bench measures Waybill side by side with the floor, which is the same statements written by hand, and with other
// libraries.
//
//	go run ./bench write     what an event costs the transaction that writes it
//	go run ./bench drain     how fast a backlog goes to handlers, for Waybill and its peers
//	go run ./bench steady    producers and relay together: throughput, and the time from commit to handler
//	go run ./bench inbox     what applying an event once costs a consumer
//	go run ./bench idle      what a relay costs that has nothing to do
//	go run ./bench brokers   how fast a relay publishes to each broker, beside its client library by hand
//	go run ./bench idempotency  what a key costs the request that has one
//	go run ./bench drain -h  the flags of a command
//
// Databases and brokers are private servers that it starts and stops by itself, unless WAYBILL_TEST_POSTGRES,
// WAYBILL_TEST_MYSQL and the like name existing ones. All figures of a table come from one run on one server, and the contenders take turns,
// so that a slow minute of the machine is a slow minute for all: compare inside a table, never between two.
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
	slog.SetDefault(slog.New(slog.DiscardHandler)) // what is measured writes no log
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// command is one thing to measure.
type command struct {
	name, about string
	// prepare defines the command's flags; what it returns is used after they were parsed.
	prepare func(flags *flag.FlagSet) task
}

// task is a command whose flags are known.
type task struct {
	// databases returns what it runs on; an error is a wrong flag.
	databases func() ([]string, error)
	run       func(ctx context.Context, out, progress io.Writer) error
}

var commands = []command{
	{"write", `an event's cost to the transaction that writes it: the business transaction alone, with the same insert by hand (the
          floor), and with Waybill; 1 and 8 connections; 1, 100 and 1000 events a transaction`, prepareWrite},
	{"drain", `how fast a backlog goes to handlers: the same reads and deletes by hand (the floor), Waybill, and on PostgreSQL River,
          watermill-sql and oagudo/outbox, each as it comes and tuned`, prepareDrain},
	{"steady", `producers and relay together (PostgreSQL): what is left of the producers' speed, and the time from commit to handler,
          flat out and at a fixed rate`, prepareSteady},
	{"inbox", `what applying an event once costs a consumer (PostgreSQL): by hand, one by one, in batches, with an empty table and a
          large one`, prepareInbox},
	{"idle", `what a relay costs that has nothing to do (PostgreSQL)`, prepareIdle},
	{"brokers", `how fast a relay publishes to each broker, every event confirmed, beside the client library publishing the same messages
          by hand; with the outbox in memory and in PostgreSQL`, prepareBrokers},
	{"idempotency", `what a key costs the request that has one (PostgreSQL): by hand, Do and DoTx, first runs and repeats; what the HTTP middleware
          adds to a handler`, prepareIdempotency},
}

func run(ctx context.Context, args []string, stdout, stderr io.Writer) int {
	if len(args) == 0 || strings.HasPrefix(args[0], "-") {
		usage(stderr)
		if len(args) > 0 && strings.TrimLeft(args[0], "-") == "h" || len(args) > 0 && strings.TrimLeft(args[0], "-") == "help" {
			return 0
		}
		return 2
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
	fmt.Fprint(w, "\nbench COMMAND -h lists the flags of a command.\n")
}

// parseDatabases reads names of databases that are separated by commas.
func parseDatabases(text string) ([]string, error) {
	names := strings.Split(text, ",")
	for _, name := range names {
		if !slices.Contains([]string{"postgres", testserver.MariaDBName, testserver.MySQLName, "sqlite"}, name) {
			return nil, fmt.Errorf("unknown database %q; there are postgres, mariadb, mysql and sqlite", name)
		}
	}
	return names, nil
}

// oneDatabase reads the name of one.
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
