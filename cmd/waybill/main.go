// Command waybill runs and operates an outbox: it delivers events and handles
// dead letters, blocked aggregates, inbox records and idempotency keys.
// docs/cli.md describes it.
package main

import (
	"context"
	"io"
	"os"
	"os/signal"
	"syscall"
	_ "time/tzdata" // an image without files has no time zones

	"github.com/mattn/go-isatty"
	_ "golang.org/x/crypto/x509roots/fallback" // and no authorities; the system's are used where they exist

	"github.com/waybillhq/waybill/cmd/waybill/internal/command"
)

func main() { os.Exit(run(context.Background(), os.Args[1:], os.Stdin, os.Stdout, os.Stderr)) }

// run is the program. The first signal starts a graceful stop; a second signal
// kills the process.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	ctx, stop := signal.NotifyContext(ctx, os.Interrupt, syscall.SIGTERM)
	defer stop()
	context.AfterFunc(ctx, stop)
	return command.Run(ctx, args, command.Streams{
		In: stdin, Out: stdout, Err: stderr, Environ: os.Environ(), Interactive: terminal(stdin) && terminal(stderr),
	})
}

func terminal(stream any) bool {
	f, ok := stream.(*os.File)
	return ok && isatty.IsTerminal(f.Fd())
}
