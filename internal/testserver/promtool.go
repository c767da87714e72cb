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

// Promtool returns the path of Prometheus' own tool for rules. No server belongs
// to it and no service should come with it, so it is not installed: where it is
// neither on PATH nor in the cache, and EnvRequire asks for any server, it is
// taken out of Debian's package. A plain "go test" fetches nothing, and skips.
func Promtool(tb testing.TB) string {
	tb.Helper()
	if path, err := exec.LookPath("promtool"); err == nil {
		return path
	}
	dir, err := os.UserCacheDir()
	if err != nil {
		dir = tb.TempDir() // a folder that others can guess is no place for a program
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

// errNoApt says that this is not a system whose packages we know.
var errNoApt = errors.New("this system has no apt-get and dpkg")

// fetchPromtool takes promtool out of the package prometheus. It is gathered
// beside its place and moved when complete: others may fetch at the same time,
// and a file that exists is whole.
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

// download gets the package. Mirrors have bad moments, so it is tried three
// times; the lists of packages are fetched only when it failed, because there
// may be none, or they name a version that the mirror has no more. Without the
// right to fetch them the next try is as good as it gets.
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

// runIn runs a command in a folder. What it says is part of its error.
func runIn(ctx context.Context, dir string, command ...string) error {
	cmd := exec.CommandContext(ctx, command[0], command[1:]...)
	cmd.Dir = dir
	out, err := cmd.CombinedOutput()
	if err != nil {
		return fmt.Errorf("%s: %w: %s", strings.Join(command, " "), err, strings.TrimSpace(string(out)))
	}
	return nil
}
