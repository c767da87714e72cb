// Package command is the command line of waybill: the commands, their flags,
// output and exit codes.
package command

import (
	"context"
	"errors"
	"fmt"
	"io"
	"strings"

	"github.com/spf13/cobra"

	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/cmd/waybill/internal/connect"
	"github.com/waybillhq/waybill/cmd/waybill/internal/hint"
	"github.com/waybillhq/waybill/cmd/waybill/internal/settings"
)

// Streams are the inputs and outputs of a command.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// Environ is the environment, as [os.Environ] returns it.
	Environ []string
	// Interactive reports that In and Err are a terminal: the command asks for
	// confirmation and shows progress.
	Interactive bool
}

// The exit codes. docs/cli.md lists them; scripts rely on them.
const (
	// Ok: the command succeeded.
	Ok = 0
	// Failed: the command failed, in whole or in part.
	Failed = 1
	// Usage: the flags, the arguments or the settings are invalid. Nothing was
	// done.
	Usage = 2
	// NotFound: the event, record, key or destination does not exist.
	NotFound = 3
	// Unreachable: the store or the sink does not answer.
	Unreachable = 4
	// NoTables: the store answers, and its tables are missing.
	NoTables = 5
	// Unconfirmed: the command requires a confirmation and got none.
	Unconfirmed = 6
	// Partly: a part was done, and another part was refused; the output lists
	// both.
	Partly = 7
	// Interrupted: a signal arrived before the command finished.
	Interrupted = 130
)

// Run runs a command and returns its exit code.
func Run(ctx context.Context, args []string, streams Streams) int {
	a := &app{Streams: streams}
	root := a.root()
	root.SetArgs(args)
	root.SetIn(streams.In)
	root.SetOut(streams.Out)
	root.SetErr(streams.Err)
	err := root.ExecuteContext(ctx)
	if err == nil {
		return Ok
	}
	a.printError(err)
	return codeOf(ctx, err)
}

// coded is an error with an exit code.
type coded struct {
	error
	code int
}

func (e *coded) Unwrap() error { return e.error }

// usage returns an error about an invalid call of the command.
func usage(advice, format string, args ...any) error {
	return &coded{hint.New(advice, format, args...), Usage}
}

func codeOf(ctx context.Context, err error) int {
	var known *coded
	var wrong settings.Problems
	switch {
	case errors.As(err, &known):
		return known.code
	case errors.As(err, &wrong), errors.Is(err, connect.ErrBadURL), errors.Is(err, connect.ErrBadSetting), errors.Is(err, admin.ErrInvalid):
		return Usage
	case errors.Is(err, admin.ErrNotFound), errors.Is(err, admin.ErrNoDestination):
		return NotFound
	case errors.Is(err, connect.ErrUnreachable):
		return Unreachable
	case errors.Is(err, connect.ErrNoTables):
		return NoTables
	case ctx.Err() != nil:
		return Interrupted
	}
	return Failed
}

// printError prints an error on one line, with its hint; several invalid
// settings get one line each. Hints are texts of this program and are not
// scrubbed: a password that is an ordinary word would otherwise make them
// unreadable.
func (a *app) printError(err error) {
	var many settings.Problems
	if !errors.As(err, &many) {
		many = settings.Problems{err}
	}
	for _, one := range many {
		line := a.scrubber.Clean(strings.TrimPrefix(plain(one.Error()), "admin: "))
		if advice := hint.Of(one); advice != "" {
			line += " (hint: " + advice + ")"
		}
		fmt.Fprintln(a.Err, "waybill:", line)
	}
}

// unknownCommand returns an error with a hint on one line, instead of cobra's
// text of several lines.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage("see "+cmd.CommandPath()+" --help", "%s requires a command", cmd.CommandPath())
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	advice := "see " + cmd.CommandPath() + " --help"
	if near := hint.Nearest(args[0], names); near != "" {
		advice = "did you mean " + cmd.CommandPath() + " " + near + "?"
	}
	return usage(advice, "unknown command %s %s", cmd.CommandPath(), args[0])
}

// needs returns a check of the number of arguments; what describes them.
// maximum < 0: any number.
func needs(minimum, maximum int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= minimum && (maximum < 0 || len(args) <= maximum) {
			return nil
		}
		if maximum == 0 {
			return usage("see "+cmd.CommandPath()+" --help", "%s takes no arguments, got %q", cmd.CommandPath(), strings.Join(args, " "))
		}
		return usage("write "+cmd.UseLine(), "%s requires %s, got %d arguments", cmd.CommandPath(), what, len(args))
	}
}
