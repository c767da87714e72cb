//go:build linux || darwin

package main

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"net/url"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/testserver"
)

// runner is a testserver process with a real server, whose command waits until
// its input ends.
type runner struct {
	cmd      *exec.Cmd
	release  func() // ends the command's input
	address  string // of the server
	instance string // folder
	stderr   bytes.Buffer
}

// program prepares the program itself, without the servers of this test run in
// its environment: it must start its own.
func program(t *testing.T, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), self, args...)
	cmd.Env = []string{envBeMain + "=1"}
	for _, pair := range os.Environ() {
		if !strings.HasPrefix(pair, "WAYBILL_TEST_") {
			cmd.Env = append(cmd.Env, pair)
		}
	}
	return cmd
}

// startRunner returns when the command runs.
func startRunner(t *testing.T) *runner {
	t.Helper()
	script := `echo "$WAYBILL_TEST_INSTANCE $WAYBILL_TEST_POSTGRES"; cat >/dev/null; exit 5`
	r := &runner{cmd: program(t, "run", "--only", "postgres", "--", "/bin/sh", "-c", script)}
	// The command gets the pipe itself rather than a copy of its data, so it
	// can outlive a runner that is killed.
	in, hold, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = in.Close() }()
	r.release = func() { _ = hold.Close() }
	t.Cleanup(r.release)
	r.cmd.Stdin, r.cmd.Stderr = in, &r.stderr
	out, err := r.cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := r.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil {
		r.release()
		_ = r.cmd.Wait()
		t.Fatalf("the runner ended early: %v\n%s", err, &r.stderr)
	}
	fields := strings.Fields(line)
	if len(fields) != 2 {
		t.Fatalf("the command printed %q, want a folder and an address", line)
	}
	u, err := url.Parse(fields[1])
	if err != nil {
		t.Fatal(err)
	}
	r.instance, r.address = fields[0], u.Host
	return r
}

// serving reports whether the runner's server accepts connections.
func (r *runner) serving(t *testing.T) bool {
	t.Helper()
	d := net.Dialer{Timeout: 5 * time.Second}
	conn, err := d.DialContext(t.Context(), "tcp", r.address)
	if err != nil {
		return false
	}
	_ = conn.Close()
	return true
}

// mustBeGone checks that neither server nor folder is left.
func (r *runner) mustBeGone(t *testing.T) {
	t.Helper()
	if r.serving(t) {
		t.Errorf("a server still listens on %s", r.address)
	}
	if _, err := os.Stat(r.instance); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is still there (%v)", r.instance, err)
	}
}

func (r *runner) mustServe(t *testing.T) {
	t.Helper()
	if !r.serving(t) {
		t.Fatalf("no server on %s\n%s", r.address, &r.stderr)
	}
}

// exit waits for the runner and returns its exit code.
func (r *runner) exit(t *testing.T) int {
	t.Helper()
	err := r.cmd.Wait()
	var ended *exec.ExitError
	if err != nil && !errors.As(err, &ended) {
		t.Fatal(err)
	}
	return r.cmd.ProcessState.ExitCode()
}

// needServers skips unless real servers may be installed and started.
func needServers(t *testing.T) {
	t.Helper()
	names := strings.Split(os.Getenv(testserver.EnvRequire), ",")
	if !slices.Contains(names, "1") && !slices.Contains(names, testserver.PostgresName) {
		t.Skip("starts real servers: run `make test`, or set " + testserver.EnvRequire + "=1")
	}
}

// TestNextRunSweepsWhatAKilledOneLeft: servers that a killed runner left
// behind, and only those, are stopped and removed by the next run.
func TestNextRunSweepsWhatAKilledOneLeft(t *testing.T) {
	needServers(t)
	killed, bystander := startRunner(t), startRunner(t)
	if killed.instance == bystander.instance || killed.address == bystander.address {
		t.Fatalf("two runs share %s on %s", killed.instance, killed.address)
	}
	if err := killed.cmd.Process.Signal(syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	killed.release() // its command holds the pipes that Wait waits for
	killed.exit(t)
	killed.mustServe(t) // otherwise there is nothing to sweep

	next := startRunner(t)
	killed.mustBeGone(t)
	bystander.mustServe(t)
	next.mustServe(t)
	for _, r := range []*runner{next, bystander} {
		r.release()
		if code := r.exit(t); code != 5 {
			t.Errorf("exit code %d, want the command's 5\n%s", code, &r.stderr)
		}
		r.mustBeGone(t)
	}
}

// TestSignalStopsServers: a runner that gets a signal stops its servers first.
func TestSignalStopsServers(t *testing.T) {
	needServers(t)
	r := startRunner(t)
	r.mustServe(t)
	if err := r.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if code, want := r.exit(t), 128+int(syscall.SIGTERM); code != want {
		t.Errorf("exit code %d, want %d\n%s", code, want, &r.stderr)
	}
	r.mustBeGone(t)
}
