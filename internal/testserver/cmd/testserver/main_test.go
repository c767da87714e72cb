//go:build linux || darwin

package main

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/signal"
	"strings"
	"syscall"
	"testing"
	"time"
)

// envBeMain makes the test binary run the program itself, so that tests can
// signal and kill it.
const envBeMain = "WAYBILL_TESTSERVER_MAIN"

func TestMain(m *testing.M) {
	if os.Getenv(envBeMain) != "" {
		_ = os.Unsetenv(envBeMain) // not for the commands that it runs
		main()
	}
	os.Exit(m.Run())
}

func TestHelp(t *testing.T) {
	for _, c := range []struct {
		args string
		want string
	}{
		{"--help", "Usage:\n  testserver run"},
		{"help", "WAYBILL_TEST_POSTGRES"},
		{"help run", "--race-tools"},
		{"run --help", "--only NAMES"},
		{"start -h", "eval"},
		{"stop --help", "Usage: testserver stop"},
		{"env --help", "Usage: testserver env"},
		{"status --help", "Usage: testserver status"},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out, errs bytes.Buffer
			code := run(t.Context(), strings.Fields(c.args), nil, &out, &errs)
			if code != 0 || !strings.Contains(out.String(), c.want) || errs.Len() > 0 {
				t.Errorf("exit %d, out %q, err %q; want %q on out", code, &out, &errs, c.want)
			}
		})
	}
}

func TestMistakes(t *testing.T) {
	for _, c := range []struct {
		args string
		code int
		want string
	}{
		{"", exitUsage, "Usage:"},
		{"strat", exitUsage, `unknown command "strat"; see ` + "`testserver --help`"},
		{"run", exitUsage, "no command to run; see `testserver run --help`"},
		{"run --only oracle -- true", exitUsage, `no server is called "oracle"`},
		{"run --fast -- true", exitUsage, "-fast"},
		{"run -- no-such-command", exitNotFound, "no-such-command"},
		{"start now", exitUsage, `unexpected argument "now"`},
		{"stop now", exitUsage, `unexpected argument "now"`},
	} {
		t.Run(c.args, func(t *testing.T) {
			var out, errs bytes.Buffer
			code := run(t.Context(), strings.Fields(c.args), nil, &out, &errs)
			if code != c.code || !strings.Contains(errs.String(), c.want) || out.Len() > 0 {
				t.Errorf("exit %d, out %q, err %q; want exit %d and %q on err", code, &out, &errs, c.code, c.want)
			}
		})
	}
}

func TestExecuteExitsAsItsCommandDoes(t *testing.T) {
	for _, c := range []struct {
		script string
		code   int
	}{
		{"exit 0", 0},
		{"exit 7", 7},
		{"kill -TERM $$", 128 + int(syscall.SIGTERM)},
	} {
		t.Run(c.script, func(t *testing.T) {
			var out bytes.Buffer
			a := app{strings.NewReader(""), &out, &out}
			code, err := a.execute(t.Context(), []string{"/bin/sh", "-c", c.script}, nil)
			if err != nil || code != c.code {
				t.Errorf("execute = %d, %v; want %d", code, err, c.code)
			}
		})
	}
}

func TestExecuteHandsOverTheEnvironment(t *testing.T) {
	t.Setenv("WAYBILL_TEST_MYSQL", "the caller's")
	var out bytes.Buffer
	a := app{strings.NewReader("input"), &out, &out}
	script := `echo "$WAYBILL_TEST_POSTGRES, $WAYBILL_TEST_MYSQL, $(cat)"`
	if _, err := a.execute(t.Context(), []string{"/bin/sh", "-c", script}, []string{"WAYBILL_TEST_POSTGRES=ours"}); err != nil {
		t.Fatal(err)
	}
	if got, want := out.String(), "ours, the caller's, input\n"; got != want {
		t.Errorf("the command printed %q, want %q", got, want)
	}
}

// TestExecutePassesSignalsOn: the command's children get the signal too, and
// the exit code names it.
func TestExecutePassesSignalsOn(t *testing.T) {
	ctx, cancel := context.WithCancelCause(t.Context())
	defer cancel(nil)
	out := &watcher{want: "up", seen: func() { cancel(signalError{syscall.SIGTERM}) }}
	a := app{strings.NewReader(""), out, out}
	inner := `trap "echo inner got it; exit" TERM; echo up; while :; do sleep 0.02; done`
	// The outer shell survives the signal to wait for the inner one.
	outer := `trap ":" TERM; sh -c '` + inner + `' & wait; wait; exit 3`
	_, err := a.execute(ctx, []string{"/bin/sh", "-c", outer}, nil)
	var sig signalError
	if !errors.As(err, &sig) || sig.signal != syscall.SIGTERM {
		t.Errorf("execute = %v, want the signal", err)
	}
	if !strings.Contains(out.text.String(), "inner got it") {
		t.Errorf("the command printed %q: the signal did not reach what it started", out.text.String())
	}
}

func TestUntilSignalEndsTheContext(t *testing.T) {
	// If untilSignal does not catch it, the signal must not end the tests.
	spare := make(chan os.Signal, 1)
	signal.Notify(spare, syscall.SIGHUP)
	defer signal.Stop(spare)
	ctx, release := untilSignal(t.Context())
	defer release()
	if err := syscall.Kill(os.Getpid(), syscall.SIGHUP); err != nil {
		t.Fatal(err)
	}
	select {
	case <-ctx.Done():
	case <-time.After(10 * time.Second):
		t.Fatal("the context did not end")
	}
	var sig signalError
	if !errors.As(context.Cause(ctx), &sig) || sig.signal != syscall.SIGHUP {
		t.Errorf("cause = %v, want SIGHUP", context.Cause(ctx))
	}
}

// watcher calls seen once, when want has been written to it.
type watcher struct {
	text bytes.Buffer
	want string
	seen func()
}

func (w *watcher) Write(b []byte) (int, error) {
	n, err := w.text.Write(b)
	if w.seen != nil && strings.Contains(w.text.String(), w.want) {
		w.seen()
		w.seen = nil
	}
	return n, err
}
