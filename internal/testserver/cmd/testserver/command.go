//go:build linux || darwin

package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
)

// commandPatience is how long COMMAND may take to end after a signal.
const commandPatience = 10 * time.Second

func (a app) run(ctx context.Context, args []string) (code int, err error) {
	var req manage.Request
	var also []string
	command, err := parse(args, func(fs *flag.FlagSet) {
		onlyFlag(fs, "only", &req.Only)
		onlyFlag(fs, "also", &also)
		fs.BoolVar(&req.NoSync, "no-sync", false, "do not wait for the disk")
		fs.BoolVar(&req.RaceTools, "race-tools", false, "install a C compiler")
	})
	if err != nil {
		return 0, err
	}
	if len(also) > 0 {
		if len(req.Only) == 0 {
			req.Only = manage.QuickNames()
		}
		req.Only = append(req.Only, also...)
	}
	if len(command) == 0 {
		return 0, usageError("no command to run")
	}
	// A mistyped command is detected before servers are started.
	if _, err := exec.LookPath(command[0]); err != nil {
		_, _ = fmt.Fprintf(a.stderr, "testserver: %v\n", err)
		return exitNotFound, nil
	}
	home, err := a.home(ctx)
	if err != nil {
		return 0, err
	}
	req.Shells = true
	in, err := home.Run(ctx, req)
	if err != nil {
		return 0, err
	}
	// Deferred, so that a panic stops the servers too.
	defer func() {
		if stopErr := in.Stop(context.WithoutCancel(ctx)); stopErr != nil {
			err = errors.Join(err, fmt.Errorf("stop servers: %w", stopErr))
		}
	}()
	return a.execute(ctx, command, append(in.Env(), testserver.EnvRequire+"="+requirement(req.Only)))
}

// requirement returns the value of EnvRequire: servers that were not requested
// may be missing.
func requirement(only []string) string {
	if len(only) == 0 {
		only = manage.QuickNames()
	}
	return strings.Join(only, ",")
}

// execute runs the command and returns its exit code. For a command ended by a
// signal that is 128 plus the signal, as in a shell.
func (a app) execute(ctx context.Context, command, env []string) (int, error) {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = a.stdin, a.stdout, a.stderr
	cmd.Env = append(slices.Clone(os.Environ()), env...)
	// At a terminal the command shares this program's process group, so that it
	// can read from the terminal and gets Ctrl-C directly. Elsewhere it leads a
	// group of its own, so that a signal also reaches its children: "go test"
	// does not pass SIGTERM on to the test binaries.
	ownGroup := !isTerminal(a.stdin)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: ownGroup}
	send := func(sig syscall.Signal) error {
		if ownGroup {
			return syscall.Kill(-cmd.Process.Pid, sig)
		}
		return cmd.Process.Signal(sig)
	}
	cmd.Cancel = func() error {
		sig := syscall.SIGTERM
		var cause signalError
		if errors.As(context.Cause(ctx), &cause) {
			sig = cause.signal
		}
		return send(sig)
	}
	cmd.WaitDelay = commandPatience
	err := cmd.Run()
	if ownGroup && ctx.Err() != nil && cmd.Process != nil {
		// a process that ignored the signal loses its servers now
		_ = send(syscall.SIGKILL)
	}
	var signaled signalError
	if errors.As(context.Cause(ctx), &signaled) {
		return 0, signaled
	}
	if cmd.ProcessState == nil {
		return 0, err // it never started
	}
	if status, ok := cmd.ProcessState.Sys().(syscall.WaitStatus); ok && status.Signaled() {
		return 128 + int(status.Signal()), nil
	}
	return cmd.ProcessState.ExitCode(), nil
}

// isTerminal reports whether r is a terminal: a character device other than
// the null device.
func isTerminal(r io.Reader) bool {
	f, ok := r.(*os.File)
	if !ok {
		return false
	}
	info, err := f.Stat()
	if err != nil || info.Mode()&os.ModeCharDevice == 0 {
		return false
	}
	null, err := os.Stat(os.DevNull)
	return err != nil || !os.SameFile(info, null)
}
