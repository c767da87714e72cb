//go:build linux || darwin

package manage

import (
	"context"
	"errors"
	"fmt"
	"os"
	"strconv"
	"strings"
	"syscall"
	"time"
)

// errLocked reports that another process holds the lock.
var errLocked = errors.New("locked by another process")

// fileLock is an advisory lock that ends with the process that took it. The
// file is opened close-on-exec, so the servers do not inherit the lock.
type fileLock struct{ f *os.File }

// lockFile waits for the lock on path, creating the file if needed. It polls
// rather than blocking in the kernel, where a Ctrl-C cannot interrupt it.
func lockFile(ctx context.Context, path string) (*fileLock, error) {
	for {
		lock, err := tryLockFile(path)
		if !errors.Is(err, errLocked) {
			return lock, err
		}
		pause(ctx, 20*time.Millisecond)
		if ctx.Err() != nil {
			return nil, fmt.Errorf("waiting for the lock on %s: %w", path, context.Cause(ctx))
		}
	}
}

// tryLockFile takes the lock on path or returns errLocked at once, creating the
// file if needed.
func tryLockFile(path string) (*fileLock, error) { return tryLock(path, os.O_CREATE) }

// tryLock is tryLockFile, with flags for opening the file.
func tryLock(path string, flags int) (*fileLock, error) {
	f, err := os.OpenFile(path, os.O_RDWR|flags, 0o644)
	if err != nil {
		return nil, err
	}
	for {
		err = syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB)
		if !errors.Is(err, syscall.EINTR) {
			break
		}
	}
	if err == nil {
		return &fileLock{f}, nil
	}
	_ = f.Close()
	if errors.Is(err, syscall.EWOULDBLOCK) {
		return nil, errLocked
	}
	return nil, fmt.Errorf("lock %s: %w", path, err)
}

// sign writes the owner's process id into the file. The id is for people and
// messages; only the lock decides whether the owner is alive.
func (l *fileLock) sign() error {
	if err := l.f.Truncate(0); err != nil {
		return err
	}
	_, err := l.f.WriteAt([]byte(strconv.Itoa(os.Getpid())+"\n"), 0)
	return err
}

func (l *fileLock) unlock() {
	if l != nil {
		_ = l.f.Close()
	}
}

// signature returns the process id in a lock file, or "unknown".
func signature(path string) string {
	b, err := os.ReadFile(path)
	if pid := strings.TrimSpace(string(b)); err == nil && pid != "" {
		return pid
	}
	return "unknown"
}
