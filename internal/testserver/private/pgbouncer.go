//go:build linux || darwin

package private

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"testing"
	"time"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
)

// PgBouncer starts a PgBouncer in front of a PostgreSQL server, and returns the
// URL of the same database through it. It ends with the test. mode is
// PgBouncer's pool_mode; settings are further lines of its configuration.
// Without the program the test is skipped, or fails, as with
// [testserver.Shell].
func PgBouncer(tb testing.TB, dsn, mode string, settings ...string) string {
	tb.Helper()
	return pgBouncer(tb, []string{testserver.Shell(tb, "pgbouncer")}, dsn, mode, settings)
}

// NewPgBouncer is PgBouncer with a version that keeps prepared statements
// (max_prepared_statements), from Debian's unstable suite. If it cannot be
// fetched, the test is skipped, or fails if servers are required.
func NewPgBouncer(tb testing.TB, dsn, mode string, settings ...string) string {
	tb.Helper()
	home, err := manage.Open(tb.Context(), ".", lines{tb})
	if err != nil {
		tb.Fatal(err)
	}
	argv, err := home.PgBouncer(tb.Context())
	if _, missing := exec.LookPath("apt-get"); err != nil && (missing != nil || os.Getenv(testserver.EnvRequire) == "") {
		tb.Skip("a newer PgBouncer is not available:", err)
	}
	if err != nil {
		tb.Fatal(err)
	}
	return pgBouncer(tb, argv, dsn, mode, settings)
}

func pgBouncer(tb testing.TB, argv []string, dsn, mode string, settings []string) string {
	tb.Helper()
	server, err := url.Parse(dsn)
	if err != nil {
		tb.Fatal(err)
	}
	const attempts = 5
	for attempt := 1; ; attempt++ {
		address, err := startPgBouncer(tb, argv, server, mode, settings)
		if err == nil {
			through := *server
			through.Host = address
			return through.String()
		}
		if attempt == attempts {
			tb.Fatal(err)
		}
	}
}

func startPgBouncer(tb testing.TB, argv []string, server *url.URL, mode string, settings []string) (string, error) {
	tb.Helper()
	listener, err := net.Listen("tcp", "127.0.0.1:0") //nolint:noctx // it is closed at once
	if err != nil {
		return "", err
	}
	address := listener.Addr().String()
	_, port, _ := net.SplitHostPort(address)
	if err := listener.Close(); err != nil {
		return "", err
	}
	password, _ := server.User.Password()
	config := fmt.Sprintf(`[databases]
* = host=%s port=%s user=%s password=%s
[pgbouncer]
listen_addr = 127.0.0.1
listen_port = %s
unix_socket_dir =
auth_type = any
pool_mode = %s
default_pool_size = 20
max_client_conn = 500
`, server.Hostname(), server.Port(), server.User.Username(), password, port, mode)
	for _, line := range settings {
		config += line + "\n"
	}
	// Not tb.TempDir, which another user cannot enter.
	dir, err := os.MkdirTemp("", "pgbouncer-")
	if err != nil {
		return "", err
	}
	tb.Cleanup(func() { _ = os.RemoveAll(dir) })
	file := filepath.Join(dir, "pgbouncer.ini")
	if err := errors.Join(os.Chmod(dir, 0o755), os.WriteFile(file, []byte(config), 0o644)); err != nil {
		return "", err
	}
	if os.Geteuid() == 0 { // it refuses to run as root
		argv = append(slices.Clone(argv), "-u", "nobody")
	}
	argv = append(slices.Clone(argv), file)
	cmd := exec.CommandContext(context.WithoutCancel(tb.Context()), argv[0], argv[1:]...)
	log := &tailLog{}
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Start(); err != nil {
		return "", err
	}
	ended := make(chan error, 1)
	go func() { ended <- cmd.Wait() }()
	stop := func() {
		_ = cmd.Process.Kill()
		<-ended
	}
	for deadline := time.Now().Add(time.Minute); ; {
		conn, err := (&net.Dialer{Timeout: time.Second}).DialContext(tb.Context(), "tcp", address)
		if err == nil {
			tb.Cleanup(stop)
			return address, conn.Close()
		}
		select {
		case err := <-ended:
			return "", fmt.Errorf("pgbouncer ended while starting: %w\n%s", err, log)
		case <-time.After(10 * time.Millisecond):
		}
		if time.Now().After(deadline) {
			stop()
			return "", fmt.Errorf("pgbouncer does not listen: %w\n%s", err, log)
		}
	}
}
