//go:build linux || darwin

package manage

import (
	"bufio"
	"context"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"testing"
	"time"
)

// envPretend makes the test binary play a server: it reports that it is up, and
// stays until it is killed or its input ends.
const envPretend = "WAYBILL_PRETEND_SERVER"

func TestMain(m *testing.M) {
	if os.Getenv(envPretend) != "" {
		_, _ = os.Stdout.WriteString("up\n")
		_, _ = io.Copy(io.Discard, os.Stdin)
		os.Exit(0)
	}
	os.Exit(m.Run())
}

// pretender is a process with a given program name. The system's data about a
// process decides whether it is considered a server, so the test needs a real
// process with a real executable of that name.
type pretender struct {
	cmd   *exec.Cmd
	ended chan struct{}
}

// pretend starts a process whose executable is called name, in the folder dir.
func pretend(t *testing.T, name, dir string, args ...string) *pretender {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	program := filepath.Join(t.TempDir(), name)
	// A symbolic link would show under its target's name; a hard link may cross
	// file systems, and then the file is copied.
	if err := os.Link(self, program); err != nil {
		copyFile(t, self, program)
	}
	cmd := exec.CommandContext(context.WithoutCancel(t.Context()), program, args...)
	cmd.Dir = dir
	cmd.Env = append(os.Environ(), envPretend+"=1")
	// Closed with this process, if it ends early.
	if _, err := cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	p := &pretender{cmd, make(chan struct{})}
	if _, err := bufio.NewReader(out).ReadString('\n'); err != nil {
		t.Fatalf("%s did not come up: %v", name, err)
	}
	go func() {
		_ = cmd.Wait() // its exit status does not matter
		close(p.ended)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.ended
	})
	return p
}

func copyFile(t *testing.T, from, to string) {
	t.Helper()
	b, err := os.ReadFile(from)
	if err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(to, b, 0o755); err != nil {
		t.Fatal(err)
	}
}

// mustEnd waits for the process to be gone.
func (p *pretender) mustEnd(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
	case <-time.After(10 * time.Second):
		t.Errorf("process %d still runs", p.cmd.Process.Pid)
	}
}

// mustLive fails if the process has ended. Stopping waits until the stopped
// processes are gone, so a process that outlives the call was not signaled.
func (p *pretender) mustLive(t *testing.T) {
	t.Helper()
	select {
	case <-p.ended:
		t.Errorf("process %d was ended", p.cmd.Process.Pid)
	default:
	}
}

// lines collects the progress lines of a Home.
type lines struct{ t *testing.T }

func (l lines) Write(b []byte) (int, error) {
	l.t.Logf("%s", b)
	return len(b), nil
}

// testHome returns an empty home folder, without looking for a checkout.
func testHome(t *testing.T) *Home {
	t.Helper()
	dir := filepath.Join(t.TempDir(), ".servers")
	if err := os.MkdirAll(filepath.Join(dir, "templates"), 0o755); err != nil {
		t.Fatal(err)
	}
	// the system never reports a link for a process
	resolved, err := filepath.EvalSymlinks(dir)
	if err != nil {
		t.Fatal(err)
	}
	return &Home{dir: resolved, log: lines{t}}
}

func exists(path string) bool {
	_, err := os.Lstat(path)
	return err == nil
}
