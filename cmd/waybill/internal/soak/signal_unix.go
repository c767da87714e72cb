//go:build unix

package soak

import (
	"os"
	"os/exec"
	"syscall"
)

// canPause reports whether processes can be paused and stopped here.
const canPause = true

// apart puts a child in a process group of its own: an interrupt from the
// terminal reaches the parent only, and a paused child ends with its parent.
func apart(cmd *exec.Cmd) { cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true} }

func pauseProcess(p *os.Process) error    { return p.Signal(syscall.SIGSTOP) }
func continueProcess(p *os.Process) error { return p.Signal(syscall.SIGCONT) }
func stopProcess(p *os.Process) error     { return p.Signal(syscall.SIGTERM) }

// killSelf ends this process as kill -9 does.
func killSelf() {
	_ = syscall.Kill(os.Getpid(), syscall.SIGKILL)
	select {}
}
