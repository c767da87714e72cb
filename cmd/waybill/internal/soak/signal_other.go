//go:build !unix

package soak

import (
	"os"
	"os/exec"
)

// canPause reports whether processes can be paused and stopped here.
const canPause = false

func apart(*exec.Cmd) {}

func pauseProcess(*os.Process) error    { return nil }
func continueProcess(*os.Process) error { return nil }
func stopProcess(p *os.Process) error   { return p.Kill() }

// killSelf ends this process at once.
func killSelf() {
	if p, err := os.FindProcess(os.Getpid()); err == nil {
		_ = p.Kill()
	}
	os.Exit(137)
}
