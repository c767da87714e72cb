//go:build linux || darwin

package manage

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// process holds the data that decides whether a process is one of this
// program's servers.
type process struct {
	pid     int
	program string // base name of the executable
	args    []string
	cwd     string // empty where the system does not report it
}

// isServerProgram lists the programs that run in a data folder. A user's shell
// in that folder is not one of them.
func isServerProgram(name string) bool {
	switch name {
	case "postgres", "initdb", "mariadbd", "mysqld",
		// on Debian one file, whose other name is a link
		"redis-server", "redis-check-rdb",
		"beam.smp", "epmd", // Erlang
		"java", "nats-server":
		return true
	}
	// the loader, as which MySQL runs
	return strings.HasPrefix(name, "ld-linux")
}

// serves reports whether p is a server program that works in, or was started
// with, a path below dir.
func (p process) serves(dir string) bool {
	if !isServerProgram(p.program) {
		return false
	}
	if within(p.cwd, dir) {
		return true
	}
	for _, arg := range p.args {
		_, value, found := strings.Cut(arg, "=")
		if within(arg, dir) || found && within(value, dir) {
			return true
		}
	}
	return false
}

func within(path, dir string) bool {
	return path == dir || strings.HasPrefix(path, dir+string(filepath.Separator))
}

// serversIn returns the server processes of a folder.
func serversIn(ctx context.Context, dir string) ([]process, error) {
	all, err := processes(ctx)
	if err != nil {
		return nil, err
	}
	var ours []process
	for _, p := range all {
		if p.serves(dir) {
			ours = append(ours, p)
		}
	}
	return ours, nil
}

func processes(ctx context.Context) ([]process, error) {
	entries, err := os.ReadDir("/proc")
	if err != nil || len(entries) == 0 {
		return processesFromPS(ctx)
	}
	var all []process
	for _, e := range entries {
		pid, err := strconv.Atoi(e.Name())
		if err != nil {
			continue
		}
		if p, ok := readProc(pid); ok {
			all = append(all, p)
		}
	}
	return all, nil
}

// readProc reads one process. It fails for a process that is gone, dead but not
// reaped, or of another user: none of these can be a running server that this
// program may stop.
func readProc(pid int) (process, bool) {
	dir := filepath.Join("/proc", strconv.Itoa(pid))
	exe, err := os.Readlink(filepath.Join(dir, "exe"))
	if err != nil {
		return process{}, false
	}
	cmdline, err := os.ReadFile(filepath.Join(dir, "cmdline"))
	if err != nil {
		return process{}, false
	}
	cwd, err := os.Readlink(filepath.Join(dir, "cwd"))
	if err != nil {
		cwd = ""
	}
	args := strings.Split(string(bytes.TrimRight(cmdline, "\x00")), "\x00")
	// An upgraded package or a removed data folder shows as "NAME (deleted)".
	return process{
		pid:     pid,
		program: filepath.Base(strings.TrimSuffix(exe, " (deleted)")),
		args:    args,
		cwd:     strings.TrimSuffix(cwd, " (deleted)"),
	}, true
}

// processesFromPS supports systems without /proc. Arguments that contain spaces
// are split, which can only make a process look less like a server.
func processesFromPS(ctx context.Context) ([]process, error) {
	out, err := exec.CommandContext(ctx, "ps", "-axww", "-o", "pid=", "-o", "command=").Output()
	if err != nil {
		return nil, fmt.Errorf("list processes: %w", err)
	}
	var all []process
	for line := range strings.Lines(string(out)) {
		fields := strings.Fields(line)
		if len(fields) < 2 {
			continue
		}
		pid, err := strconv.Atoi(fields[0])
		if err != nil {
			continue
		}
		all = append(all, process{pid: pid, program: filepath.Base(fields[1]), args: fields[1:]})
	}
	return all, nil
}

// stopServers ends every server process of a folder and returns when none is
// left. The data is about to be deleted, so servers stop at once rather than
// finish a checkpoint.
func stopServers(ctx context.Context, dir string) error {
	for _, step := range []struct {
		signal   func(process) syscall.Signal
		patience time.Duration
	}{
		{quitSignal, 8 * time.Second},
		{func(process) syscall.Signal { return syscall.SIGKILL }, 8 * time.Second},
	} {
		left, err := signalAndWait(ctx, dir, step.signal, step.patience)
		if err != nil {
			return err
		}
		if len(left) == 0 {
			return nil
		}
	}
	return fmt.Errorf("servers in %s do not end: see `ps -ef | grep %s`", dir, dir)
}

// quitSignal returns the quickest signal that ends a server and leaves nothing
// behind. PostgreSQL's immediate shutdown frees its shared memory, which
// SIGKILL would not; MariaDB has nothing outside its folder, and its orderly
// shutdown writes pages that will not be read.
func quitSignal(p process) syscall.Signal {
	if p.program == "postgres" {
		return syscall.SIGQUIT
	}
	return syscall.SIGKILL
}

func signalAndWait(ctx context.Context, dir string, signal func(process) syscall.Signal, patience time.Duration) ([]process, error) {
	ours, err := serversIn(ctx, dir)
	if err != nil {
		return nil, err
	}
	for _, p := range ours {
		signalVerified(p, dir, signal(p))
	}
	signaled := ours
	deadline := time.Now().Add(patience)
	for (len(ours) > 0 || slices.ContainsFunc(signaled, stillExiting)) && time.Now().Before(deadline) {
		pause(ctx, 10*time.Millisecond)
		if ours, err = serversIn(ctx, dir); err != nil {
			return nil, err
		}
	}
	return ours, nil
}

// stillExiting reports whether threads of a process are left. A process that is
// about to end no longer has a program, but holds its sockets and files until
// the last thread is gone.
func stillExiting(p process) bool {
	dir := filepath.Join("/proc", strconv.Itoa(p.pid))
	threads, err := os.ReadDir(filepath.Join(dir, "task"))
	if err != nil || len(threads) == 0 {
		return false
	}
	if _, err := os.Readlink(filepath.Join(dir, "exe")); err == nil {
		return false // it is running, or its id was reused
	}
	return len(threads) > 1 || procState(p.pid) != 'Z'
}

// procState returns the state of a process as one letter, where the system
// reports it: T was stopped by a signal, Z has ended and was not waited for.
func procState(pid int) byte {
	b, err := os.ReadFile(filepath.Join("/proc", strconv.Itoa(pid), "stat"))
	if err != nil {
		return 0
	}
	// The state follows the program's name, which may contain any character.
	rest := bytes.TrimLeft(b[bytes.LastIndexByte(b, ')')+1:], " ")
	if len(rest) == 0 {
		return 0
	}
	return rest[0]
}

// signalVerified signals p if it still is a server of dir. Between listing a
// process and signaling it, the process can end and its id can be reused.
// FindProcess pins the id first (a pidfd on Linux), then the process is read
// again: the process read after pinning is the one that is signaled.
func signalVerified(p process, dir string, sig syscall.Signal) {
	handle, err := os.FindProcess(p.pid)
	if err != nil {
		return
	}
	defer func() { _ = handle.Release() }()
	if _, err := os.Stat("/proc/self"); err == nil {
		now, ok := readProc(p.pid)
		if !ok || !now.serves(dir) {
			return
		}
	}
	_ = handle.Signal(sig)
	// A test may have frozen the process: only SIGKILL reaches a stopped one.
	if sig != syscall.SIGSTOP {
		_ = handle.Signal(syscall.SIGCONT)
	}
}

// pause waits for a short time or until ctx ends.
func pause(ctx context.Context, d time.Duration) {
	t := time.NewTimer(d)
	defer t.Stop()
	select {
	case <-ctx.Done():
	case <-t.C:
	}
}
