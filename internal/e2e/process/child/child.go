//go:build linux || darwin

package child

import (
	"errors"
	"os"
	"os/exec"
	"sync"
	"syscall"
)

// Process is a child process.
type Process struct {
	cmd   *exec.Cmd
	ended chan struct{}
	once  sync.Once
	err   error
}

// Start runs the test binary with one additional environment variable. Its
// output goes to this process's output. A child does not outlive its pipe: see
// [Bind].
func Start(env string) (*Process, error) {
	cmd := exec.Command(os.Args[0]) //nolint:noctx // the caller ends it with a signal
	// A data race ends the child with an exit code of its own.
	cmd.Env = append(os.Environ(), env, "GORACE=halt_on_error=1 exitcode=66")
	cmd.Stdout, cmd.Stderr = os.Stderr, os.Stderr
	// Nothing is ever written: the pipe breaks when this process ends in any
	// way.
	if _, err := cmd.StdinPipe(); err != nil {
		return nil, err
	}
	if err := cmd.Start(); err != nil {
		return nil, err
	}
	p := &Process{cmd: cmd, ended: make(chan struct{})}
	go func() {
		p.err = cmd.Wait()
		close(p.ended)
	}()
	return p, nil
}

// Bind ends this process when its parent is gone, so that a killed test run
// leaves no process behind.
func Bind() {
	go func() {
		_, _ = os.Stdin.Read(make([]byte, 1))
		os.Exit(3)
	}()
}

// PID returns the process id.
func (p *Process) PID() int { return p.cmd.Process.Pid }

// Signal sends a signal, unless the process has ended.
func (p *Process) Signal(sig syscall.Signal) error {
	err := p.cmd.Process.Signal(sig)
	if errors.Is(err, os.ErrProcessDone) {
		return nil
	}
	return err
}

// Ended is closed when the process is gone.
func (p *Process) Ended() <-chan struct{} { return p.ended }

// Alive reports whether the process is running.
func (p *Process) Alive() bool {
	select {
	case <-p.ended:
		return false
	default:
		return true
	}
}

// Wait waits for the end of the process and returns its result: nil for exit
// code 0.
func (p *Process) Wait() error {
	<-p.ended
	return p.err
}

// Kill kills the process, even if it is stopped, and waits for its end.
func (p *Process) Kill() {
	p.once.Do(func() { _ = p.Signal(syscall.SIGKILL) })
	<-p.ended
}
