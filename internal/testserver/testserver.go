package testserver

import (
	"os"
	"os/exec"
	"strings"
	"testing"
)

// The environment variables between the program that starts servers and the
// tests that use them.
const (
	// EnvPostgres holds a PostgreSQL URL. Its role is a superuser, because
	// tests create databases and terminate other sessions.
	EnvPostgres = "WAYBILL_TEST_POSTGRES"
	// EnvMySQL holds a go-sql-driver data source name. Its user holds every
	// privilege, with the right to grant them.
	EnvMySQL = "WAYBILL_TEST_MYSQL"
	// EnvRequire makes a missing server a failure instead of a skip: "1" for
	// all of them, or a comma-separated list of names.
	EnvRequire = "WAYBILL_TEST_REQUIRE"
	// EnvServers names the folder that holds every instance folder.
	EnvServers = "WAYBILL_TEST_SERVERS"
	// EnvInstance names the folder of the instance that this test run uses:
	// data folders, logs, and for each server a NAME.json that says how it
	// was started.
	EnvInstance = "WAYBILL_TEST_INSTANCE"
)

// The names of the servers, as EnvRequire and the command line spell them.
const (
	PostgresName = "postgres"
	MariaDBName  = "mariadb"
)

// Postgres returns the URL of a PostgreSQL server on which the test may create
// databases. Without a server it skips the test, or fails it when EnvRequire
// asks for one.
func Postgres(tb testing.TB) string {
	tb.Helper()
	return address(tb, PostgresName, EnvPostgres, "postgres://user:password@host:port/database")
}

// MySQL returns the go-sql-driver data source name of a MySQL or MariaDB
// server on which the test may create databases. Without a server it skips the
// test, or fails it when EnvRequire asks for one.
func MySQL(tb testing.TB) string {
	tb.Helper()
	return address(tb, MariaDBName, EnvMySQL, "user:password@tcp(host:port)/database?parseTime=true")
}

// Shell returns the path of a database's command line client: "psql",
// "mariadb" or "sqlite3". Without it the test is skipped, or fails when
// EnvRequire asks for the database that the client belongs to.
func Shell(tb testing.TB, name string) string {
	tb.Helper()
	server, install := "", ""
	switch name {
	case "psql":
		server, install = PostgresName, "postgresql-client"
	case "mariadb":
		server, install = MariaDBName, "mariadb-client"
	case "sqlite3":
		// No server belongs to sqlite3, so any requirement includes it.
		server, install = anyServer, "sqlite3"
	default:
		tb.Fatalf("testserver.Shell(%q): know only psql, mariadb and sqlite3", name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		missing(tb, server, name+" is not installed: run `make test`, or install the package "+install)
	}
	return path
}

func address(tb testing.TB, server, env, form string) string {
	tb.Helper()
	dsn := os.Getenv(env)
	if dsn == "" {
		missing(tb, server, "no "+server+" server: run `make test`, or set "+env+"="+form)
	}
	return dsn
}

// missing ends the test: an absent server must be loud where it was promised,
// and must not stand in the way of a quick "go test" where it was not.
func missing(tb testing.TB, server, line string) {
	tb.Helper()
	if required(os.Getenv(EnvRequire), server) {
		tb.Fatal(line)
	}
	tb.Skip(line)
}

// anyServer stands for a requirement of whichever server.
const anyServer = "any"

func required(list, server string) bool {
	for name := range strings.SplitSeq(list, ",") {
		switch strings.TrimSpace(name) {
		case "":
		case "1", server:
			return true
		default:
			if server == anyServer {
				return true
			}
		}
	}
	return false
}
