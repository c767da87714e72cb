//go:build linux || darwin

package manage

import (
	"context"
	"fmt"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

type mariadb struct{ certificates *Certificates }

// secured implements securer: clients need TLS. The server demands certificates
// of users that were created so, and of no others.
func (mariadb) secured(c Certificates) engine { return mariadb{certificates: &c} }

func (mariadb) name() string    { return testserver.MariaDBName }
func (mariadb) env() string     { return testserver.EnvMariaDB }
func (mariadb) account() string { return "mysql" }
func (mariadb) ports() int      { return 1 }

func (mariadb) programs() []program {
	return []program{
		{names: []string{"mariadbd", "mysqld"}, packages: []string{"mariadb-server"}},
		{names: []string{"mariadb-install-db", "mysql_install_db"}, packages: []string{"mariadb-server"}},
	}
}

func (m mariadb) server() string {
	path, _ := m.programs()[0].find()
	return path
}

var mariadbVersion = regexp.MustCompile(`Ver (\S+?)-MariaDB`)

func (m mariadb) version(ctx context.Context) (string, error) {
	line, err := versionOutput(ctx, m.server())
	if err != nil {
		return "", err
	}
	found := mariadbVersion.FindStringSubmatch(line)
	if found == nil {
		return "", fmt.Errorf("%s is not MariaDB (%q): install mariadb-server, or name a running MariaDB with %s",
			m.server(), line, m.env())
	}
	return found[1], nil
}

// recipe creates the system tables, then the login and the database in
// bootstrap mode, which needs no client and no port.
func (m mariadb) recipe(data string) []step {
	install, _ := m.programs()[1].find()
	// A starting server deletes the temporary tables in its temporary folder.
	// In a shared folder they may belong to a concurrent run.
	tmp := "--tmpdir=" + filepath.Dir(data)
	return []step{
		{argv: []string{
			install, "--no-defaults", "--datadir=" + data, tmp, "--skip-test-db", "--skip-name-resolve",
			"--auth-root-authentication-method=normal",
		}},
		{
			argv: []string{m.server(), "--no-defaults", "--datadir=" + data, tmp, "--bootstrap"},
			// Bootstrap mode takes one statement per line, and starts without
			// the grant tables: FLUSH PRIVILEGES loads them.
			stdin: "FLUSH PRIVILEGES;\n" +
				"CREATE DATABASE " + login + " CHARACTER SET utf8mb4;\n" +
				grantAll("%") + grantAll("localhost"),
		},
	}
}

func grantAll(host string) string {
	return fmt.Sprintf("CREATE USER '%[1]s'@'%[2]s' IDENTIFIED BY '%[1]s';\n"+
		"GRANT ALL PRIVILEGES ON *.* TO '%[1]s'@'%[2]s' WITH GRANT OPTION;\n", login, host)
}

func (m mariadb) start(at place, ports []int) command {
	return m.certificates.need(at, command{argv: []string{
		m.server(),
		"--no-defaults", // not the configuration of the system's server
		"--datadir=" + at.data,
		"--bind-address=127.0.0.1",
		"--port=" + strconv.Itoa(ports[0]),
		"--skip-networking=0",
		"--skip-name-resolve",
		// Relative to the data folder: a checkout's path can be longer than a
		// socket's path may be.
		"--socket=mariadb.sock",
		"--pid-file=mariadb.pid",
		"--tmpdir=" + at.dir,
		// Benchmarks need real durability; see noSync.
		"--innodb-flush-log-at-trx-commit=1",
		"--innodb-buffer-pool-size=256M",
		"--max-connections=300",
		"--max-allowed-packet=64M",
	}})
}

// need adds the arguments with which MariaDB and MySQL accept connections with
// TLS only. Without certificates it adds none.
func (c *Certificates) need(at place, server command) command {
	if c == nil {
		return server
	}
	files, names := c.copies(at)
	for name, text := range server.files {
		files[name] = text
	}
	server.files = files
	server.argv = append(server.argv, "--ssl-cert="+names.Cert, "--ssl-key="+names.Key, "--ssl-ca="+names.CA, "--require-secure-transport=ON")
	return server
}

// noSync: the server writes to its files all the same, so the data outlives the
// process.
func (mariadb) noSync() []string {
	return []string{"--innodb-flush-method=nosync"}
}

// ready waits for the line that the server logs at the end of its start. The
// pid file appears earlier.
func (mariadb) ready(_ context.Context, r running) bool {
	return strings.Contains(r.log, "ready for connections")
}

func (mariadb) portTaken(log string) bool {
	return strings.Contains(log, "Bind on TCP/IP port") || strings.Contains(log, "Address already in use")
}

func (mariadb) dsn(port int) string {
	return fmt.Sprintf("%[1]s:%[1]s@tcp(127.0.0.1:%[2]d)/%[1]s?parseTime=true", login, port)
}
