//go:build linux || darwin

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

	"github.com/waybillhq/waybill/internal/testserver/manage"
)

// Exit codes of the program itself; otherwise "run" exits with the exit code of
// its command.
const (
	exitFailure  = 1
	exitUsage    = 2
	exitNotFound = 127 // as in a shell, for a command that does not exist
)

// app is one invocation.
type app struct {
	stdin          io.Reader
	stdout, stderr io.Writer
}

// run is the program. The context of commands ends at the first SIGINT, SIGTERM
// or SIGHUP, with a signalError as its cause.
func run(ctx context.Context, args []string, stdin io.Reader, stdout, stderr io.Writer) int {
	a := app{stdin, stdout, stderr}
	if len(args) == 0 {
		a.print(stderr, usage)
		return exitUsage
	}
	commands := map[string]struct {
		usage string
		run   func(context.Context, []string) (int, error)
	}{
		"run":    {runUsage, a.run},
		"start":  {startUsage, a.start},
		"stop":   {stopUsage, a.stop},
		"env":    {envUsage, a.env},
		"status": {statusUsage, a.status},
	}
	name, rest := args[0], args[1:]
	switch name {
	case "help", "-h", "-help", "--help":
		if len(rest) == 1 && commands[rest[0]].run != nil {
			a.print(stdout, commands[rest[0]].usage)
		} else {
			a.print(stdout, usage)
		}
		return 0
	}
	c, ok := commands[name]
	if !ok {
		return a.fail(usageError(fmt.Sprintf("unknown command %q", name)), "")
	}
	ctx, release := untilSignal(ctx)
	defer release()
	code, err := c.run(ctx, rest)
	var signaled signalError
	if err != nil && !errors.As(err, &signaled) && errors.As(context.Cause(ctx), &signaled) {
		// it failed because of the signal
		err = fmt.Errorf("%w: %w", signaled, err)
	}
	switch {
	case errors.Is(err, flag.ErrHelp):
		a.print(stdout, c.usage)
		return 0
	case err != nil:
		return a.fail(err, name)
	}
	return code
}

// usageError is an error in the arguments.
type usageError string

func (e usageError) Error() string { return string(e) }

// signalError is the cause of a context that a signal ended.
type signalError struct{ signal syscall.Signal }

func (e signalError) Error() string { return "stopped by signal: " + e.signal.String() }

// untilSignal ends the context at the first signal. Later signals are ignored
// until release is called: the cleanup is bounded in time and must not be
// interrupted, or servers are left behind.
func untilSignal(parent context.Context) (context.Context, func()) {
	ctx, cancel := context.WithCancelCause(parent)
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGINT, syscall.SIGTERM, syscall.SIGHUP)
	go func() {
		select {
		case s := <-signals:
			if sig, ok := s.(syscall.Signal); ok {
				cancel(signalError{sig})
			}
		case <-ctx.Done():
		}
	}()
	return ctx, func() {
		signal.Stop(signals)
		cancel(nil)
	}
}

func (a app) print(w io.Writer, text string) { _, _ = io.WriteString(w, text) }

// fail reports an error and returns its exit code.
func (a app) fail(err error, command string) int {
	var sig signalError
	var wrong usageError
	switch {
	case errors.As(err, &wrong):
		help := strings.Join(strings.Fields("testserver "+command+" --help"), " ")
		_, _ = fmt.Fprintf(a.stderr, "testserver: %v; see `%s`\n", err, help)
		return exitUsage
	case errors.As(err, &sig):
		_, _ = fmt.Fprintf(a.stderr, "testserver: %v\n", err)
		return 128 + int(sig.signal)
	default:
		_, _ = fmt.Fprintf(a.stderr, "testserver: %v\n", err)
		return exitFailure
	}
}

// parse reads the flags of a command; define defines them.
func parse(args []string, define func(*flag.FlagSet)) ([]string, error) {
	fs := flag.NewFlagSet("testserver", flag.ContinueOnError)
	fs.SetOutput(io.Discard)
	define(fs)
	if err := fs.Parse(args); err != nil {
		if errors.Is(err, flag.ErrHelp) {
			return nil, err
		}
		return nil, usageError(err.Error())
	}
	return fs.Args(), nil
}

// onlyFlag defines a flag that names servers.
func onlyFlag(fs *flag.FlagSet, name string, only *[]string) {
	fs.Func(name, "servers to start", func(list string) error {
		for name := range strings.SplitSeq(list, ",") {
			if name = strings.TrimSpace(name); name != "" {
				*only = append(*only, name)
			}
		}
		return manage.CheckNames(*only)
	})
}

// noArgs parses a command without flags and arguments.
func noArgs(args []string) error {
	rest, err := parse(args, func(*flag.FlagSet) {})
	if err == nil && len(rest) > 0 {
		return usageError(fmt.Sprintf("unexpected argument %q", rest[0]))
	}
	return err
}

func (a app) home(ctx context.Context) (*manage.Home, error) {
	return manage.Open(ctx, ".", a.stderr)
}

func (a app) start(ctx context.Context, args []string) (int, error) {
	var req manage.Request
	rest, err := parse(args, func(fs *flag.FlagSet) { onlyFlag(fs, "only", &req.Only) })
	if err != nil {
		return 0, err
	}
	if len(rest) > 0 {
		return 0, usageError(fmt.Sprintf("unexpected argument %q", rest[0]))
	}
	home, err := a.home(ctx)
	if err != nil {
		return 0, err
	}
	req.Shells = true
	in, err := home.Keep(ctx, req)
	if err != nil {
		return 0, err
	}
	a.exports(in)
	return 0, nil
}

func (a app) stop(ctx context.Context, args []string) (int, error) {
	if err := noArgs(args); err != nil {
		return 0, err
	}
	home, err := a.home(ctx)
	if err != nil {
		return 0, err
	}
	return 0, home.StopKept(context.WithoutCancel(ctx))
}

func (a app) env(ctx context.Context, args []string) (int, error) {
	if err := noArgs(args); err != nil {
		return 0, err
	}
	home, err := a.home(ctx)
	if err != nil {
		return 0, err
	}
	in, err := home.Kept(ctx)
	if err != nil {
		return 0, err
	}
	if len(in.Servers) == 0 {
		return 0, errors.New("no servers are running: start them with `testserver start` (or `make servers`)")
	}
	a.exports(in)
	return 0, nil
}

func (a app) exports(in *manage.Instance) {
	for _, pair := range in.Env() {
		name, value, _ := strings.Cut(pair, "=")
		_, _ = fmt.Fprintf(a.stdout, "export %s='%s'\n", name, strings.ReplaceAll(value, "'", `'\''`))
	}
}

func (a app) status(ctx context.Context, args []string) (int, error) {
	if err := noArgs(args); err != nil {
		return 0, err
	}
	home, err := a.home(ctx)
	if err != nil {
		return 0, err
	}
	list, err := home.List(ctx)
	if err != nil {
		return 0, err
	}
	if len(list) == 0 {
		a.print(a.stdout, "no instances in "+home.Dir()+"\n")
	}
	for _, s := range list {
		_, _ = fmt.Fprintf(a.stdout, "%s (%s)\n", s.Name, s.Owner)
		for _, server := range s.Servers {
			_, _ = fmt.Fprintf(a.stdout, "  %s %s on 127.0.0.1:%d, log %s\n", server.Name, server.Version, server.Port, server.Log)
		}
	}
	return 0, nil
}
