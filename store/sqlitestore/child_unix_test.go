//go:build unix

package sqlitestore_test

import (
	"os/signal"
	"syscall"
)

// limitFiles limits the size of every file of this process: a larger write
// fails, as on a full disk.
func limitFiles(size uint64) error {
	signal.Ignore(syscall.SIGXFSZ)
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size, Max: size})
}
