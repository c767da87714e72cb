//go:build linux || darwin

package upgrade_test

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"

	"github.com/waybillhq/waybill/internal/docblock"
)

// beforeDestinations is the last commit before the tables of destinations.
const beforeDestinations = "8cb9e2dd5215c43135f1481995bc819175485ef8"

// build builds the program testdata/before in a checkout of a commit. Without
// that commit, in a shallow clone, the test is skipped.
func build(t *testing.T, commit string) string {
	t.Helper()
	root, folder := docblock.Root(t), t.TempDir()
	if err := git(t, root, "cat-file", "-e", commit+"^{commit}"); err != nil {
		t.Skipf("commit %s is not in the history of this clone: %v", commit, err)
	}
	archive := filepath.Join(folder, "archive.tar")
	if err := git(t, root, "archive", "--output", archive, commit); err != nil {
		t.Fatal(err)
	}
	tree := filepath.Join(folder, "tree")
	program := filepath.Join(tree, "internal", "e2e", "before")
	if err := os.MkdirAll(program, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, err := exec.CommandContext(t.Context(), "tar", "-xf", archive, "-C", tree).CombinedOutput(); err != nil {
		t.Fatalf("tar: %v\n%s", err, out)
	}
	text, err := os.ReadFile(filepath.Join("testdata", "before", "main.go"))
	if err == nil {
		err = os.WriteFile(filepath.Join(program, "main.go"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	binary := filepath.Join(folder, "before")
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", binary, "./internal/e2e/before")
	cmd.Dir = tree
	// Without cgo and without paths the compiler finds most packages in its
	// cache.
	cmd.Env = append(os.Environ(), "GOWORK="+filepath.Join(tree, "go.work"), "GOFLAGS=-buildvcs=false -trimpath", "CGO_ENABLED=0")
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build: %v\n%s", err, out)
	}
	return binary
}

// git runs git in a checkout that may belong to another user.
func git(t *testing.T, root string, args ...string) error {
	t.Helper()
	var text bytes.Buffer
	cmd := exec.CommandContext(t.Context(), "git", append([]string{"-c", "safe.directory=*", "-C", root}, args...)...)
	cmd.Stderr = &text
	if err := cmd.Run(); err != nil {
		return errors.Join(err, errors.New(text.String()))
	}
	return nil
}

// old is a running program of the earlier version.
type old struct {
	*testing.T
	cmd    *exec.Cmd
	number atomic.Int64 // the last number that it printed
	mu     sync.Mutex
	log    bytes.Buffer
	ended  chan struct{}
	err    error
}

// start starts a program, which is killed when the test ends.
func start(t *testing.T, name string, args ...string) *old {
	t.Helper()
	p := &old{T: t, ended: make(chan struct{})}
	p.cmd = exec.CommandContext(context.WithoutCancel(t.Context()), name, args...)
	p.cmd.Stderr = p
	out, err := p.cmd.StdoutPipe()
	if err == nil {
		err = p.cmd.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		defer close(p.ended)
		for lines := bufio.NewScanner(out); lines.Scan(); {
			if n, err := strconv.ParseInt(strings.TrimSpace(lines.Text()), 10, 64); err == nil {
				p.number.Store(n)
			}
		}
		p.err = p.cmd.Wait()
	}()
	t.Cleanup(func() {
		_ = p.cmd.Process.Kill()
		<-p.ended
		if t.Failed() {
			t.Logf("%v:\n%s", args[:1], p.said())
		}
	})
	return p
}

// Write implements [io.Writer] for the log of the program.
func (p *old) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.Write(b)
}

// said returns the log of the program.
func (p *old) said() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.log.String()
}

// wait waits for the end of the program.
func (p *old) wait() error {
	<-p.ended
	return p.err
}

// stop asks the program to end, which must succeed.
func (p *old) stop() {
	p.Helper()
	if err := p.cmd.Process.Signal(syscall.SIGTERM); err != nil {
		p.Fatal(err)
	}
	if err := p.wait(); err != nil {
		p.Fatalf("%v: %s", err, p.said())
	}
}
