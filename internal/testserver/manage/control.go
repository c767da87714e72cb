//go:build linux || darwin

package manage

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"syscall"
	"time"
)

// For tests of a client whose server dies, hangs and restarts. The server must
// belong to a user that this program may signal: one of an instance that the
// test has started.

// dir returns the server's own folder.
func (s Server) dir() string { return filepath.Dir(s.Data) }

// Kill ends the server at once, without a chance to write anything, and returns
// when its processes are gone. Its data stays.
func (s Server) Kill(ctx context.Context) error { return stopServers(ctx, s.dir()) }

// Restart starts a killed server on the same ports and the same data, and
// returns when it serves clients. It waits for a port that another program has
// taken meanwhile.
func (s Server) Restart(ctx context.Context) error {
	e, err := engineOf(s.Name)
	if err != nil {
		return err
	}
	acct, err := accountOf(s.User)
	if err != nil {
		return err
	}
	return s.restart(ctx, e, acct)
}

func (s Server) restart(ctx context.Context, e engine, acct account) error {
	left, err := serversIn(ctx, s.dir())
	if err != nil {
		return err
	}
	if len(left) > 0 {
		return fmt.Errorf("%s is still running", s.Name)
	}
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience, fmt.Errorf("%s did not get its ports %v back within %v", s.Name, s.Ports, startPatience))
	defer cancel()
	for {
		if err := awaitPorts(ctx, s.Ports); err != nil {
			return err
		}
		_, err := launch(ctx, e, acct, placeOf(filepath.Dir(s.dir()), s.Name), s.Ports)
		if !errors.Is(err, errPortTaken) {
			return err
		}
	}
}

// awaitPorts waits until the ports are free.
func awaitPorts(ctx context.Context, ports []int) error {
	for _, port := range ports {
		for !portFree(ctx, port) {
			pause(ctx, 20*time.Millisecond)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

// Freeze stops the server's processes, and returns when they are stopped:
// connections stay open, and nothing answers.
func (s Server) Freeze(ctx context.Context) error { return s.signal(ctx, syscall.SIGSTOP, true) }

// Thaw continues a frozen server.
func (s Server) Thaw(ctx context.Context) error { return s.signal(ctx, syscall.SIGCONT, false) }

func (s Server) signal(ctx context.Context, sig syscall.Signal, stopped bool) error {
	ours, err := serversIn(ctx, s.dir())
	if err != nil {
		return err
	}
	if len(ours) == 0 {
		return fmt.Errorf("%s is not running", s.Name)
	}
	for _, p := range ours {
		signalVerified(p, s.dir(), sig)
	}
	for _, p := range ours {
		for {
			// A process that ends is a zombie as long as its parent is stopped.
			if state := procState(p.pid); state == 0 || state == 'Z' || (state == 'T') == stopped {
				break
			}
			pause(ctx, time.Millisecond)
			if ctx.Err() != nil {
				return context.Cause(ctx)
			}
		}
	}
	return nil
}

func engineOf(name string) (engine, error) {
	for _, e := range engines() {
		if e.name() == name {
			return e, nil
		}
	}
	return nil, CheckNames([]string{name})
}
