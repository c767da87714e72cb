//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

// mysql is Oracle's server. Debian's stable suites contain MariaDB instead.
type mysql struct{ certificates *Certificates }

// secured implements securer, as that of MariaDB.
func (mysql) secured(c Certificates) engine { return mysql{certificates: &c} }

func (mysql) debs() debs {
	return debs{
		name: testserver.MySQLName, roots: []string{"mysql-server-core", "mysql-client-core"},
		useless: []string{"usr/share/doc", "usr/share/man", "usr/share/perl", "usr/share/locale"}, megabytes: 65,
	}
}

func (mysql) name() string        { return testserver.MySQLName }
func (mysql) env() string         { return testserver.EnvMySQL }
func (mysql) ports() int          { return 1 }
func (mysql) programs() []program { return nil }

// account: the packages are in the caller's cache folder, which other users may
// not be able to enter.
func (mysql) account() string { return "" }

// fetch downloads the packages. If that fails, the error suggests a server of
// the user's own.
func (m mysql) fetch(ctx context.Context, h *Home) error {
	if err := m.debs().fetch(ctx, h); err != nil {
		return fmt.Errorf("%w\n  or name a MySQL server that runs already: %s='user:password@tcp(host:port)/database?parseTime=true'", err, m.env())
	}
	return nil
}

var mysqlVersion = regexp.MustCompile(`Ver (\d+\.\d+\.\d+)`)

func (m mysql) version(ctx context.Context) (string, error) {
	argv := m.server("--no-defaults", "--version")
	out, err := exec.CommandContext(ctx, argv[0], argv[1:]...).Output()
	if err != nil {
		return "", fmt.Errorf("mysqld --version: %w", err)
	}
	found := mysqlVersion.FindSubmatch(out)
	if found == nil {
		return "", fmt.Errorf("mysqld --version printed %q", out)
	}
	return string(found[1]), nil
}

// server returns a command line of the server. Running as root needs an
// explicit option.
func (m mysql) server(args ...string) []string {
	argv := append(m.debs().command("usr/sbin/mysqld"), args...)
	if os.Geteuid() == 0 {
		argv = append(argv, "--user=root")
	}
	return append(argv,
		"--lc-messages-dir="+filepath.Join(m.debs().dir(), "usr/share/mysql"),
		"--character-sets-dir="+filepath.Join(m.debs().dir(), "usr/share/mysql/charsets"),
		"--plugin-dir="+filepath.Join(m.debs().dir(), "usr/lib/mysql/plugin"))
}

// recipe creates the system tables, the login and the database. The server
// reads its statements from a file.
func (m mysql) recipe(data string) []step {
	const script = "mysql-init.sql"
	file := filepath.Join(filepath.Dir(data), script)
	return []step{
		{
			argv:  []string{"/bin/sh", "-c", `cat >"$1"`, "sh", script},
			stdin: "CREATE DATABASE " + login + " CHARACTER SET utf8mb4;\n" + grantAll("%") + grantAll("localhost"),
		},
		{argv: m.server("--no-defaults", "--initialize-insecure", "--datadir="+data, "--tmpdir="+filepath.Dir(data), "--init-file="+file)},
	}
}

func (m mysql) start(at place, ports []int) command {
	client := filepath.Join(at.dir, "mysql")
	return m.certificates.need(at, command{
		argv: m.server(
			"--no-defaults",
			"--datadir="+at.data,
			"--bind-address=127.0.0.1",
			"--port="+strconv.Itoa(ports[0]),
			"--skip-name-resolve",
			"--mysqlx=OFF",
			// as MariaDB: a test of the binary log starts its own server
			"--skip-log-bin",
			// Relative to the data folder: a checkout's path can be longer than
			// a socket's path may be.
			"--socket=mysql.sock",
			"--pid-file=mysql.pid",
			"--tmpdir="+at.dir,
			"--secure-file-priv=",
			// Benchmarks need real durability; see noSync.
			"--innodb-flush-log-at-trx-commit=1",
			"--innodb-buffer-pool-size=256M",
			"--max-connections=300",
			"--max-allowed-packet=64M",
			// The tables of locks and of the state remain; what is measured for
			// every statement and wait costs CPU, and no test reads it.
			"--performance-schema-instrument=%=OFF",
			"--performance-schema-consumer-global-instrumentation=OFF",
		),
		files: map[string]string{
			client: "#!/bin/sh\nexec " + shellWords(m.debs().command("usr/bin/mysql")) + ` "$@"` + "\n",
		},
		also: []string{testserver.EnvMySQLClient + "=" + client},
	})
}

func (mysql) noSync() []string { return mariadb{}.noSync() }

// ready waits for the line that the server logs at the end of its start.
func (mysql) ready(_ context.Context, r running) bool {
	return strings.Contains(r.log, "ready for connections")
}

func (mysql) portTaken(log string) bool {
	return strings.Contains(log, "Bind on TCP/IP port") || strings.Contains(log, "Address already in use")
}

func (mysql) dsn(port int) string { return mariadb{}.dsn(port) }
