package soak

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// member is a place for a child process, which is started again whenever it has
// ended.
type member struct {
	spec spec
	cmd  *exec.Cmd // nil if it does not run
	in   io.WriteCloser
	up   bool
	// doomed is the fault that ends it; "" if none.
	doomed string
	wake   time.Time // when it continues; zero if it is not paused
	start  time.Time // when it is started
	// failures counts the ends in a row that no fault explains.
	failures int
	retired  bool // it is not started again
}

// name identifies a process among all processes of the run.
func (m *member) name() string { return fmt.Sprintf("%s#%d", m.spec.Name, m.spec.Life) }

// message is a note of a member, or its end.
type message struct {
	from  *member
	name  string
	note  note
	ended bool
	err   error
}

// fleet runs the child processes.
type fleet struct {
	command []string // that runs a child
	folder  string   // of the logs
	members []*member
	inbox   chan message
}

// launch starts a member.
func (f *fleet) launch(m *member) error {
	m.spec.Life++
	m.up, m.doomed, m.wake = false, "", time.Time{}
	m.cmd = exec.Command(f.command[0], f.command[1:]...) //nolint:gosec,noctx // this program; the parent ends it
	apart(m.cmd)
	log, err := os.OpenFile(f.log(m), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the child has its own handle
	m.cmd.Stderr = log
	m.cmd.Env = append(os.Environ(), childVariable+"=1")
	if m.in, err = m.cmd.StdinPipe(); err != nil {
		return err
	}
	out, err := m.cmd.StdoutPipe()
	if err != nil {
		return err
	}
	if err := m.cmd.Start(); err != nil {
		return err
	}
	line, err := json.Marshal(m.spec)
	if err != nil {
		return err
	}
	if _, err := m.in.Write(append(line, '\n')); err != nil && m.cmd.ProcessState == nil {
		_ = m.cmd.Process.Kill() // its end is handled like any other
	}
	go f.read(m, m.cmd, m.name(), out)
	return nil
}

// childVariable marks a process as a child of the soak.
const childVariable = "WAYBILL_SOAK_CHILD"

// IsChild reports whether the environment is that of a child process.
func IsChild(environ []string) bool { return slices.Contains(environ, childVariable+"=1") }

func (f *fleet) log(m *member) string { return filepath.Join(f.folder, m.spec.Name+".log") }

// read passes the notes of a process on, and then its end.
func (f *fleet) read(m *member, cmd *exec.Cmd, name string, out io.Reader) {
	lines := bufio.NewReaderSize(out, 1<<16)
	for {
		line, err := lines.ReadBytes('\n')
		if err != nil { // the rest of a line is that of a process that was killed
			break
		}
		var n note
		if json.Unmarshal(line, &n) == nil {
			f.inbox <- message{from: m, name: name, note: n}
		}
	}
	f.inbox <- message{from: m, name: name, ended: true, err: cmd.Wait()}
}

// running reports whether the member can be harmed.
func (m *member) running() bool { return m.cmd != nil && m.up && m.doomed == "" && m.wake.IsZero() }

// ofRole returns the members of a role.
func (f *fleet) ofRole(role string) []*member {
	var out []*member
	for _, m := range f.members {
		if m.spec.Role == role {
			out = append(out, m)
		}
	}
	return out
}

// killed reports whether a process was killed, by the parent or by itself.
func killed(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && (exit.ExitCode() == -1 || exit.ExitCode() == 137)
}

// crashed returns the first line of a panic or a data race in a log.
func (f *fleet) crashed(m *member) string {
	text, err := os.ReadFile(f.log(m))
	if err != nil {
		return ""
	}
	for line := range strings.Lines(string(text)) {
		if strings.HasPrefix(line, "panic: ") || strings.HasPrefix(line, "fatal error: ") || strings.Contains(line, "WARNING: DATA RACE") {
			return strings.TrimSpace(line)
		}
	}
	return ""
}

// lastLine returns the last line of a member's log.
func (f *fleet) lastLine(m *member) string {
	text, err := os.ReadFile(f.log(m))
	if err != nil {
		return ""
	}
	lines := strings.Split(strings.TrimSpace(string(text)), "\n")
	return lines[len(lines)-1]
}

// end kills every process that still runs, and waits for it.
func (f *fleet) end() {
	left := 0
	for _, m := range f.members {
		m.retired = true
		if m.cmd != nil {
			_ = m.cmd.Process.Kill()
			left++
		}
	}
	for left > 0 {
		if got := <-f.inbox; got.ended {
			got.from.cmd = nil
			left--
		}
	}
}
