//go:build linux || darwin

package server

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/user"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
)

// Postgres is a running server.
type Postgres struct {
	manage.Server
}

// patience bounds how long starting and stopping may take.
const patience = 90 * time.Second

// Start starts a server that ends with the test. The test is skipped, or fails, as with [testserver.Postgres].
func Start(t *testing.T) *Postgres {
	t.Helper()
	testserver.Postgres(t)
	t.Setenv(testserver.EnvPostgres, "") // a server that is named there would be used
	home, err := manage.Open(t.Context(), ".", lines{t})
	if err != nil {
		t.Fatal(err)
	}
	in, err := home.Run(t.Context(), manage.Request{Only: []string{testserver.PostgresName}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := in.Stop(context.Background()); err != nil {
			t.Error(err)
		}
	})
	return &Postgres{in.Servers[0]}
}

// lines passes progress on to the test's log.
type lines struct{ t *testing.T }

// Write implements [io.Writer].
func (l lines) Write(b []byte) (int, error) {
	l.t.Logf("%s", strings.TrimSpace(string(b)))
	return len(b), nil
}

// Crash ends the server at once, without a checkpoint, as pg_ctl stop -m immediate does: what was not written yet is lost.
func (p *Postgres) Crash(ctx context.Context) error {
	text, err := os.ReadFile(filepath.Join(p.Data, "postmaster.pid"))
	if err != nil {
		return err
	}
	first, _, _ := strings.Cut(string(text), "\n")
	pid, err := strconv.Atoi(first)
	if err != nil {
		return err
	}
	if err := syscall.Kill(pid, syscall.SIGQUIT); err != nil {
		return err
	}
	return until(ctx, "the server ends", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
}

// Restart starts the server again, on the same port, and waits until it answers.
func (p *Postgres) Restart(ctx context.Context) error {
	log, err := os.OpenFile(p.Log, os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return err
	}
	defer log.Close() //nolint:errcheck // the server has it open
	cmd := exec.CommandContext(context.WithoutCancel(ctx), p.Argv[0], p.Argv[1:]...)
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.Data, log, log
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C", "HOME=/"}
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true}
	if p.User != "" {
		if cmd.SysProcAttr.Credential, err = credential(p.User); err != nil {
			return err
		}
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	go func() { _ = cmd.Wait() }() // it ends with the instance
	return until(ctx, "the server answers", func() bool {
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		conn, err := pgx.Connect(ctx, p.DSN)
		if err != nil {
			return false
		}
		return conn.Close(ctx) == nil
	})
}

func credential(name string) (*syscall.Credential, error) {
	u, err := user.Lookup(name)
	if err != nil {
		return nil, err
	}
	uid, err := strconv.ParseUint(u.Uid, 10, 32)
	if err != nil {
		return nil, err
	}
	gid, err := strconv.ParseUint(u.Gid, 10, 32)
	if err != nil {
		return nil, err
	}
	return &syscall.Credential{Uid: uint32(uid), Gid: uint32(gid)}, nil
}

func until(ctx context.Context, what string, ok func() bool) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("waited in vain for this: %s", what))
	defer cancel()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-tick.C:
		}
	}
	return nil
}
