//go:build unix

package sqlitestore_test

import (
	"os/signal"
	"syscall"
)

// limitFiles lets no file of this process grow beyond a size: writing more fails, as on a full disk.
func limitFiles(size uint64) error {
	signal.Ignore(syscall.SIGXFSZ)
	return syscall.Setrlimit(syscall.RLIMIT_FSIZE, &syscall.Rlimit{Cur: size, Max: size})
}
