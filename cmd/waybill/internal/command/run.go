// Package command is the command line of waybill: what each command asks for, prints and returns.
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

// Streams is what a command talks to.
type Streams struct {
	In       io.Reader
	Out, Err io.Writer
	// Environ is the environment, as [os.Environ] returns it.
	Environ []string
	// Interactive says that a person sits in front of In and Err: questions are asked, and long work shows how far it is.
	Interactive bool
}

// The exit codes. docs/cli.md lists them; scripts rely on them.
const (
	// Ok: it was done.
	Ok = 0
	// Failed: it was not, or not all of it.
	Failed = 1
	// Usage: the flags, the arguments or the settings are wrong. Nothing was done.
	Usage = 2
	// NotFound: there is no such event, record or key.
	NotFound = 3
	// Unreachable: the store or the sink does not answer.
	Unreachable = 4
	// NoTables: the store answers, and has no tables.
	NoTables = 5
	// Unconfirmed: the command asks, and nobody said yes.
	Unconfirmed = 6
	// Partly: some of it was done, and some was refused; the output says which.
	Partly = 7
	// Interrupted: a signal came before it was done.
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
	a.complain(err)
	return codeOf(ctx, err)
}

// coded is an error that knows its exit code.
type coded struct {
	error
	code int
}

func (e *coded) Unwrap() error { return e.error }

// usage returns an error about how the command was called.
func usage(advice, format string, args ...any) error {
	return &coded{hint.New(advice, format, args...), Usage}
}

func codeOf(ctx context.Context, err error) int {
	var known *coded
	var wrong settings.Problems
	switch {
	case errors.As(err, &known):
		return known.code
	case errors.As(err, &wrong), errors.Is(err, connect.ErrBadURL), errors.Is(err, connect.ErrBadSetting):
		return Usage
	case errors.Is(err, admin.ErrNotFound):
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

// complain prints an error on one line, with its hint; several wrong settings on a line each. Hints are this program's own words: they are
// not scrubbed, or a password that is a word of everyday would make holes in them.
func (a *app) complain(err error) {
	var many settings.Problems
	if !errors.As(err, &many) {
		many = settings.Problems{err}
	}
	for _, one := range many {
		line := a.scrubber.Clean(strings.TrimPrefix(plain(one.Error()), "operate: "))
		if advice := hint.Of(one); advice != "" {
			line += " (hint: " + advice + ")"
		}
		fmt.Fprintln(a.Err, "waybill:", line)
	}
}

// unknownCommand turns cobra's words, which take several lines, into one with a hint.
func unknownCommand(cmd *cobra.Command, args []string) error {
	if len(args) == 0 {
		return usage("see "+cmd.CommandPath()+" --help", "%s needs a command", cmd.CommandPath())
	}
	var names []string
	for _, sub := range cmd.Commands() {
		names = append(names, sub.Name())
	}
	advice := "see " + cmd.CommandPath() + " --help"
	if near := hint.Nearest(args[0], names); near != "" {
		advice = "did you mean " + cmd.CommandPath() + " " + near + "?"
	}
	return usage(advice, "there is no command %s %s", cmd.CommandPath(), args[0])
}

// needs returns a check of how many arguments there are; what says what they are. most < 0: any number.
func needs(least, most int, what string) cobra.PositionalArgs {
	return func(cmd *cobra.Command, args []string) error {
		if len(args) >= least && (most < 0 || len(args) <= most) {
			return nil
		}
		if most == 0 {
			return usage("see "+cmd.CommandPath()+" --help", "%s takes no arguments, and got %q", cmd.CommandPath(), strings.Join(args, " "))
		}
		return usage("write "+cmd.UseLine(), "%s needs %s, and got %d arguments", cmd.CommandPath(), what, len(args))
	}
}
