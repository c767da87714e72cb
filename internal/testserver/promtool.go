package testserver

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// Promtool returns the path of Prometheus's own tool for rules. No server
// belongs to it, so it is not installed: if it is neither on PATH nor in the
// cache, and EnvRequire requires any server, it is extracted from Debian's
// package. A plain "go test" fetches nothing, and skips.
func Promtool(tb testing.TB) string {
	tb.Helper()
	if path, err := exec.LookPath("promtool"); err == nil {
		return path
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = tb.TempDir() // not in a folder that other users can guess
	}
	path := filepath.Join(dir, "waybill-testserver", "promtool")
	if _, err := os.Stat(path); err == nil {
		return path
	}
	if !required(os.Getenv(EnvRequire), anyServer) {
		tb.Skip("no promtool: `make test` fetches it; or install the package prometheus")
	}
	if err := fetchPromtool(tb.Context(), path); err != nil {
		tb.Fatalf("no promtool, and it cannot be fetched: install the package prometheus, or put promtool on PATH\n%v", err)
	}
	return path
}

// errNoApt reports a system with unknown packages.
var errNoApt = errors.New("this system has no apt-get and dpkg")

// fetchPromtool extracts promtool from the package prometheus. The file is
// written next to its final path and moved when complete: other runs may fetch
// at the same time, and a file that exists is complete.
func fetchPromtool(ctx context.Context, path string) error {
	for _, program := range []string{"apt-get", "dpkg"} {
		if _, err := exec.LookPath(program); err != nil {
			return errNoApt
		}
	}
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	dir, err := os.MkdirTemp(filepath.Dir(path), "promtool-")
	if err != nil {
		return err
	}
	defer func() { _ = os.RemoveAll(dir) }()
	if err := download(ctx, dir); err != nil {
		return err
	}
	packages, err := filepath.Glob(filepath.Join(dir, "prometheus_*.deb"))
	if err != nil {
		return err
	}
	if len(packages) != 1 {
		return fmt.Errorf("apt-get download left %q behind", packages)
	}
	if err := runIn(ctx, dir, "dpkg", "-x", packages[0], "."); err != nil {
		return err
	}
	return os.Rename(filepath.Join(dir, "usr", "bin", "promtool"), path)
}

// download downloads the package. Mirrors fail intermittently, so it is tried
// three times; the package lists are fetched only after a failure, because they
// may be missing or name a version that the mirror no longer has. Without the
// permission to fetch them the next attempt runs anyway.
func download(ctx context.Context, dir string) error {
	update := []string{"apt-get", "-o", "Acquire::Retries=3", "update"}
	if os.Geteuid() != 0 {
		update = append([]string{"sudo", "-n"}, update...)
	}
	var errs []error
	for range 3 {
		err := runIn(ctx, dir, "apt-get", "-o", "Acquire::Retries=3", "download", "prometheus")
		if err == nil {
			return nil
		}
		errs = append(errs, err)
		if err := runIn(ctx, dir, update...); err != nil {
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// runIn runs a command in a folder. Its output is part of its error.
func runIn(ctx context.Context, dir string, command ...string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
