//go:build linux || darwin

package manage

import (
	"context"
	"crypto/hmac"
	"crypto/pbkdf2"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/waybillhq/waybill/internal/testserver"
)

// The one login of the test servers. It protects nothing: they listen on
// loopback only and hold nothing but test data.
const login = "waybill"

// postgres is the system's server, or one of a downloaded release.
type postgres struct {
	release      release
	certificates *Certificates
}

// secured implements securer: clients need TLS and a certificate.
func (p postgres) secured(c Certificates) engine {
	p.certificates = &c
	return p
}

func (p postgres) name() string {
	if p.release != "" {
		return testserver.PostgresName + p.release.major()
	}
	return testserver.PostgresName
}

func (p postgres) env() string {
	if p.release != "" {
		return testserver.EnvPostgresNew
	}
	return testserver.EnvPostgres
}

func (postgres) account() string { return "postgres" }
func (postgres) ports() int      { return 1 }

func (p postgres) programs() []program {
	if p.release != "" {
		return p.release.programs()
	}
	return []program{
		{names: []string{"postgres"}, packages: []string{"postgresql"}},
		{names: []string{"initdb"}, packages: []string{"postgresql"}},
	}
}

// binary returns a program of the server that will run. Taking it from the
// server's own folder keeps initdb and postgres at one version.
func (p postgres) binary(name string) string {
	if p.release != "" {
		return p.release.binary(name)
	}
	server, _ := p.programs()[0].find()
	if name == "postgres" {
		return server
	}
	beside := filepath.Join(filepath.Dir(server), name)
	if _, err := os.Stat(beside); err == nil {
		return beside
	}
	path, _ := findProgram(name)
	return path
}

// fetch implements fetcher.
func (p postgres) fetch(ctx context.Context, h *Home) error {
	if p.release == "" {
		return nil
	}
	return p.release.fetch(ctx, h)
}

var postgresVersion = regexp.MustCompile(`PostgreSQL\) (\S+)`)

func (p postgres) version(ctx context.Context) (string, error) {
	line, err := versionOutput(ctx, p.binary("postgres"))
	if err != nil {
		return "", err
	}
	m := postgresVersion.FindStringSubmatch(line)
	if m == nil {
		return "", fmt.Errorf("postgres --version printed %q", line)
	}
	return m[1], nil
}

// recipe creates the cluster with the login as its superuser, and the database
// in single-user mode, which needs no client and no port. There the login also
// gets the verifier of its password.
func (p postgres) recipe(data string) []step {
	return []step{
		{
			// initdb reads the password from a file. It may only open a pipe by
			// name that its own user created.
			argv: []string{
				"/bin/sh", "-c", `password=$1; shift; echo "$password" | "$@"`, "sh", login,
				p.binary("initdb"), "-D", data, "-U", login, "--pwfile=/dev/stdin", "--auth=scram-sha-256",
				"--encoding=UTF8", "--locale=C", "--no-sync",
			},
		},
		{
			argv:  []string{p.binary("postgres"), "--single", "-D", data, "-F", "postgres"},
			stdin: "CREATE DATABASE " + login + "\nALTER ROLE " + login + " PASSWORD '" + verifier(login) + "'\n",
		},
	}
}

// verifier returns a password as PostgreSQL stores it for SCRAM, with one
// iteration. The server would take 4,096, which every client repeats for every
// connection: with the race detector they take longer than most tests use the
// connection.
func verifier(password string) string {
	const iterations = 1
	salt := []byte("waybill test salt")
	salted, err := pbkdf2.Key(sha256.New, password, salt, iterations, sha256.Size)
	if err != nil {
		panic(err) // only of a FIPS module, about the length of the salt
	}
	sign := func(text string) []byte {
		mac := hmac.New(sha256.New, salted)
		mac.Write([]byte(text))
		return mac.Sum(nil)
	}
	stored := sha256.Sum256(sign("Client Key"))
	encode := base64.StdEncoding.EncodeToString
	return fmt.Sprintf("SCRAM-SHA-256$%d:%s$%s:%s", iterations, encode(salt), encode(stored[:]), encode(sign("Server Key")))
}

func (p postgres) start(at place, ports []int) command {
	argv := []string{p.binary("postgres"), "-D", at.data, "-p", strconv.Itoa(ports[0])}
	for _, setting := range []string{
		"listen_addresses=127.0.0.1",
		// a checkout's path can be longer than a socket's path may be
		"unix_socket_directories=",
		// benchmarks and crash tests need real durability
		"fsync=on",
		"synchronous_commit=on",
		"full_page_writes=on",
		// a test reads the WAL, as change data capture does
		"wal_level=logical",
		"max_connections=200",
		"shared_buffers=256MB",
		"max_wal_size=4GB",
		"logging_collector=off",
		"log_line_prefix=%m [%p] %q%a ",
	} {
		argv = append(argv, "-c", setting)
	}
	if p.certificates == nil {
		return command{argv: argv}
	}
	files, names := p.certificates.copies(at)
	clients := filepath.Join(at.dir, "clients.conf")
	files[clients] = "hostssl all all all scram-sha-256 clientcert=verify-ca\n"
	for _, setting := range []string{
		"ssl=on", "ssl_cert_file=" + names.Cert, "ssl_key_file=" + names.Key, "ssl_ca_file=" + names.CA, "hba_file=" + clients,
	} {
		argv = append(argv, "-c", setting)
	}
	return command{argv: argv, files: files}
}

// ready reads the state in the postmaster's pid file: unlike an answer on the
// port, it cannot come from another program. A file of a killed server has a
// different process id.
func (postgres) ready(_ context.Context, r running) bool {
	b, err := os.ReadFile(filepath.Join(r.at.data, "postmaster.pid"))
	if err != nil {
		return false
	}
	lines := strings.Split(string(b), "\n")
	return len(lines) > 7 && lines[0] == strconv.Itoa(r.pid) && strings.TrimSpace(lines[7]) == "ready"
}

func (postgres) portTaken(log string) bool {
	return strings.Contains(log, "Address already in use")
}

func (postgres) dsn(port int) string {
	return fmt.Sprintf("postgres://%[1]s:%[1]s@127.0.0.1:%[2]d/%[1]s?sslmode=disable", login, port)
}
