//go:build linux || darwin

package manage

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"time"
)

// errPortTaken reports that another program took the port first.
var errPortTaken = errors.New("port taken")

// launch starts the server on these ports and waits until it serves clients.
// The process outlives ctx; a launch that fails leaves none.
func launch(ctx context.Context, e engine, acct account, at place, ports []int) (Server, error) {
	c := e.start(at, ports)
	for path, text := range c.files {
		if err := acct.write(path, text); err != nil {
			return Server{}, err
		}
	}
	logFile, err := os.OpenFile(at.log, os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return Server{}, err
	}
	defer func() { _ = logFile.Close() }()
	// The log may contain lines of an earlier process of this folder.
	begin, err := logFile.Seek(0, io.SeekEnd)
	if err != nil {
		return Server{}, err
	}
	detached := context.WithoutCancel(ctx)
	cmd := acct.command(detached, at.data, c.argv[0], c.argv[1:]...)
	cmd.Env = append(cmd.Env, c.environ...)
	cmd.Stdout, cmd.Stderr = logFile, logFile
	if err := cmd.Start(); err != nil {
		return Server{}, err
	}
	// The goroutine reaps the server: it ends when the server does, or with
	// this program when "start" leaves the server running.
	exited := make(chan error, 1)
	go func() { exited <- cmd.Wait() }()
	if err := awaitReady(ctx, e, running{at: at, ports: ports, pid: cmd.Process.Pid}, begin, exited); err != nil {
		return Server{}, errors.Join(err, stopServers(detached, at.dir))
	}
	return Server{
		Name: e.name(), Port: ports[0], Ports: ports, DSN: e.dsn(ports[0]), Env: e.env(), Also: c.also, User: acct.name,
		Data: at.data, Log: at.log, Argv: c.argv,
	}, nil
}

func awaitReady(ctx context.Context, e engine, r running, begin int64, exited <-chan error) error {
	ctx, cancel := context.WithTimeoutCause(ctx, startPatience,
		fmt.Errorf("%s did not get ready within %v", e.name(), startPatience))
	defer cancel()
	tick := time.NewTicker(15 * time.Millisecond)
	defer tick.Stop()
	for {
		log, err := logFrom(r.at.log, begin)
		if err != nil {
			return err
		}
		r.log = log
		if e.ready(ctx, r) {
			return nil
		}
		select {
		case err := <-exited:
			log, _ := logFrom(r.at.log, begin) // an unreadable log is not shown
			if e.portTaken(log) {
				return errPortTaken
			}
			return fmt.Errorf("%s ended while starting (%w); the end of its log:\n%s", e.name(), exitErr(err), tail(log, 20))
		case <-ctx.Done():
			return fmt.Errorf("%w; the end of its log:\n%s", context.Cause(ctx), tail(log, 20))
		case <-tick.C:
		}
	}
}

func logFrom(path string, begin int64) (string, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return "", err
	}
	return string(b[min(begin, int64(len(b))):]), nil
}

// exitErr describes an exit with status 0: for a server that should be running
// it is a failure too.
func exitErr(err error) error {
	if err == nil {
		return errors.New("exit status 0")
	}
	return err
}

// Servers get ports below those that the kernel assigns to connections (from
// 32768 on Linux, 49152 elsewhere). Otherwise a client that connects to an
// unavailable server may be assigned the server's own port as its local port.
const (
	lowestPort = 16384
	endOfPorts = 32768
)

// freePorts finds loopback ports without a listener, all different.
func freePorts(ctx context.Context, n int) ([]int, error) {
	var ports []int
	for range 200 {
		if len(ports) == n {
			break
		}
		port := lowestPort + rand.IntN(endOfPorts-lowestPort)
		if !slices.Contains(ports, port) && portFree(ctx, port) {
			ports = append(ports, port)
		}
	}
	if len(ports) < n {
		return nil, fmt.Errorf("no %d free ports between %d and %d", n, lowestPort, endOfPorts)
	}
	return ports, nil
}

func portFree(ctx context.Context, port int) bool {
	var lc net.ListenConfig
	l, err := lc.Listen(ctx, "tcp", net.JoinHostPort("127.0.0.1", strconv.Itoa(port)))
	if err != nil {
		return false
	}
	return l.Close() == nil
}
