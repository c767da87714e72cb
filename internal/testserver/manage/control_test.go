//go:build linux || darwin

package manage

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// startScripted starts a server that is a script, and returns it when it has
// ended.
func startScripted(t *testing.T, e scripted) Server {
	t.Helper()
	in, err := testHome(t).newInstance(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(in.lock.unlock)
	if err := in.start(t.Context(), []engine{e}); err != nil {
		t.Fatal(err)
	}
	s := in.Servers[0]
	// ends the server
	if err := os.Remove(filepath.Join(s.Data, "ready")); err != nil {
		t.Fatal(err)
	}
	return s
}

// TestRestartTriesTheSamePortAgain: if another program takes the port between
// the check and its use, the server ends and is started again on the same port.
func TestRestartTriesTheSamePortAgain(t *testing.T) {
	t.Parallel()
	script := `echo try >>"$1/tries"; case $(wc -l <"$1/tries") in 2|3)
		echo "could not bind: Address already in use"; exit 1; esac; ` + serve
	e := scripted{script: script}
	s := startScripted(t, e)
	if err := s.restart(t.Context(), e, account{}); err != nil {
		t.Fatal(err)
	}
	tries, err := os.ReadFile(filepath.Join(s.Data, "tries"))
	if err != nil {
		t.Fatal(err)
	}
	if got := strings.Count(string(tries), "try"); got != 4 {
		t.Errorf("the server was started %d times, want once and three times", got)
	}
}

// TestRestartReadsOnlyItsOwnLog: log lines of an earlier process count neither
// as success nor as failure.
func TestRestartReadsOnlyItsOwnLog(t *testing.T) {
	t.Parallel()
	script := `if [ -e "$1/second" ]; then echo the disk is on fire; exit 3; fi
		touch "$1/second"; echo "Address already in use"; ` + serve
	e := scripted{script: script}
	s := startScripted(t, e)
	err := s.restart(t.Context(), e, account{})
	if err == nil || !strings.Contains(err.Error(), "the disk is on fire") || strings.Contains(err.Error(), "already in use") {
		t.Errorf("restart = %v, want the log of the second process alone", err)
	}
}

func TestOnlyARunningServerCanBeFrozen(t *testing.T) {
	t.Parallel()
	s := Server{Name: "redis", Data: filepath.Join(t.TempDir(), "data")}
	if err := s.Freeze(t.Context()); err == nil || !strings.Contains(err.Error(), "is not running") {
		t.Errorf("Freeze = %v", err)
	}
	if err := s.Kill(t.Context()); err != nil {
		t.Errorf("Kill of a stopped server = %v", err)
	}
}

func TestFreezeStopsTheProcess(t *testing.T) {
	if !exists("/proc/self") {
		t.Skip("this system does not tell the state of a process: it has no /proc")
	}
	dir := t.TempDir()
	p := pretend(t, "redis-server", dir)
	s := Server{Name: "redis", Data: filepath.Join(dir, "data")}
	if err := s.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if state := procState(p.cmd.Process.Pid); state != 'T' {
		t.Errorf("a frozen process is in the state %c", state)
	}
	if err := s.Thaw(t.Context()); err != nil {
		t.Fatal(err)
	}
	if state := procState(p.cmd.Process.Pid); state == 'T' {
		t.Error("a thawed process stands still")
	}
	if err := s.Freeze(t.Context()); err != nil {
		t.Fatal(err)
	}
	if err := s.Kill(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.mustEnd(t)
}
