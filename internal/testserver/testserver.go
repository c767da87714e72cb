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
	// EnvPostgresNew holds the PostgreSQL URL of a server of another major
	// version than the first.
	EnvPostgresNew = "WAYBILL_TEST_POSTGRES_NEW"
	// EnvMariaDB holds a go-sql-driver data source name of a MariaDB server.
	// Its user holds every privilege, with the right to grant them.
	EnvMariaDB = "WAYBILL_TEST_MARIADB"
	// EnvMySQL is the same for a MySQL server.
	EnvMySQL = "WAYBILL_TEST_MYSQL"
	// EnvMySQLClient names a script that runs MySQL's own command line client.
	EnvMySQLClient = "WAYBILL_TEST_MYSQL_CLIENT"
	// EnvRedis holds a Redis URL.
	EnvRedis = "WAYBILL_TEST_REDIS"
	// EnvRabbitMQ holds an AMQP URL. Its user may do everything in the virtual
	// host.
	EnvRabbitMQ = "WAYBILL_TEST_RABBITMQ"
	// EnvKafka holds host:port of a Kafka broker that creates topics at their
	// first use.
	EnvKafka = "WAYBILL_TEST_KAFKA"
	// EnvPulsar holds a Pulsar service URL. Topics are created at their first
	// use.
	EnvPulsar = "WAYBILL_TEST_PULSAR"
	// EnvPulsarClient names a script that runs Pulsar's own command line
	// client.
	EnvPulsarClient = "WAYBILL_TEST_PULSAR_CLIENT"
	// EnvRequire makes a missing server a failure instead of a skip: "1" for
	// all of them, or a comma-separated list of names.
	EnvRequire = "WAYBILL_TEST_REQUIRE"
	// EnvServers names the folder with all instance folders.
	EnvServers = "WAYBILL_TEST_SERVERS"
	// EnvInstance names the folder of the instance of this test run: data
	// folders, logs, and for each server a NAME.json that describes its start.
	EnvInstance = "WAYBILL_TEST_INSTANCE"
	// EnvFull makes the whole suite run for each way to connect to a store; see
	// [Full].
	EnvFull = "WAYBILL_TEST_FULL"
)

// Full reports whether tests that repeat a suite over another way to connect
// run all checks. Otherwise the large checks run once per store. make
// test-stores-full sets it.
func Full() bool { return os.Getenv(EnvFull) == "1" }

// The names of the servers, as in EnvRequire and on the command line.
const (
	PostgresName = "postgres"
	// PostgresNewName is the newest major version.
	PostgresNewName = "postgres18"
	MariaDBName     = "mariadb"
	MySQLName       = "mysql"
	RedisName       = "redis"
	RabbitMQName    = "rabbitmq"
	KafkaName       = "kafka"
	PulsarName      = "pulsar"
)

// servers maps a name to the variable with the address and the address's form.
var servers = map[string]struct{ env, form string }{
	PostgresName: {EnvPostgres, "postgres://user:password@host:port/database"},
	MariaDBName:  {EnvMariaDB, "user:password@tcp(host:port)/database?parseTime=true"},
	MySQLName:    {EnvMySQL, "user:password@tcp(host:port)/database?parseTime=true"},
	RedisName:    {EnvRedis, "redis://host:port/0"},
	RabbitMQName: {EnvRabbitMQ, "amqp://user:password@host:port/"},
	KafkaName:    {EnvKafka, "host:port"},
	PulsarName:   {EnvPulsar, "pulsar://host:port"},
}

// Address returns the address of the server of that name. Without a server it
// skips the test, or fails it if EnvRequire requires the server.
func Address(tb testing.TB, server string) string {
	tb.Helper()
	known, ok := servers[server]
	if !ok {
		tb.Fatalf("testserver.Address(%q): no server is called that", server)
	}
	return address(tb, server, known.env, known.form)
}

// Postgres is the [Address] of a PostgreSQL server, on which the test may
// create databases.
func Postgres(tb testing.TB) string {
	tb.Helper()
	return Address(tb, PostgresName)
}

// PostgresNew is the [Address] of a PostgreSQL server of another major version
// than [Postgres].
func PostgresNew(tb testing.TB) string {
	tb.Helper()
	return address(tb, PostgresNewName, EnvPostgresNew, "postgres://user:password@host:port/database")
}

// MariaDB is the [Address] of a MariaDB server, for go-sql-driver, on which the
// test may create databases.
func MariaDB(tb testing.TB) string {
	tb.Helper()
	return Address(tb, MariaDBName)
}

// MySQL is the [Address] of a MySQL server, for go-sql-driver, on which the
// test may create databases.
func MySQL(tb testing.TB) string {
	tb.Helper()
	return Address(tb, MySQLName)
}

// Redis is the [Address] of a Redis server. Its data is shared: a test uses
// keys of its own.
func Redis(tb testing.TB) string {
	tb.Helper()
	return Address(tb, RedisName)
}

// RabbitMQ is the [Address] of a RabbitMQ server, on which the test may declare
// queues and exchanges of its own.
func RabbitMQ(tb testing.TB) string {
	tb.Helper()
	return Address(tb, RabbitMQName)
}

// Kafka is the [Address] of a Kafka broker that creates topics at their first
// use.
func Kafka(tb testing.TB) string {
	tb.Helper()
	return Address(tb, KafkaName)
}

// Pulsar is the [Address] of a Pulsar broker that creates topics of
// public/default at their first use.
func Pulsar(tb testing.TB) string {
	tb.Helper()
	return Address(tb, PulsarName)
}

// Shell returns the path of a server's command line client: "psql", "pg_dump",
// "mariadb", "mariadb-dump", "mysql", "sqlite3", "redis-cli", "kcat" or
// "pulsar-client"; also of "pgbouncer", which is a server, of "chromium", a
// browser, and of "hugo", which builds the documentation's site. Without it the
// test is skipped, or fails if EnvRequire requires the server that the client
// belongs to.
func Shell(tb testing.TB, name string) string {
	tb.Helper()
	client, ok := clients[name]
	if !ok {
		tb.Fatalf("testserver.Shell(%q): know only psql, pg_dump, pgbouncer, mariadb, mariadb-dump, mysql, sqlite3, redis-cli, kcat, pulsar-client, chromium and hugo", name)
	}
	if client.env != "" {
		return address(tb, client.server, client.env, "/path/to/"+name)
	}
	path, err := exec.LookPath(name)
	if err != nil {
		// not on the PATH of ordinary users
		path, err = exec.LookPath("/usr/sbin/" + name)
	}
	if err != nil {
		missing(tb, client.server, name+" is not installed: run `"+target(client.server)+"`, or install the package "+client.install)
	}
	return path
}

// clients are the command line clients: the server that each belongs to, and
// the package that contains it or the variable that names it.
var clients = map[string]struct{ server, install, env string }{
	"psql":         {server: PostgresName, install: "postgresql-client"},
	"pg_dump":      {server: PostgresName, install: "postgresql-client"},
	"pgbouncer":    {server: PostgresName, install: "pgbouncer"},
	"mariadb":      {server: MariaDBName, install: "mariadb-client"},
	"mariadb-dump": {server: MariaDBName, install: "mariadb-client"},
	"mysql":        {server: MySQLName, env: EnvMySQLClient},
	// belongs to no server, so any requirement includes it
	"sqlite3":       {server: anyServer, install: "sqlite3"},
	"chromium":      {server: PostgresName, install: "chromium"},
	"hugo":          {server: anyServer, install: "hugo"},
	"redis-cli":     {server: RedisName, install: "redis-tools"},
	"kcat":          {server: KafkaName, install: "kcat"},
	"pulsar-client": {server: PulsarName, env: EnvPulsarClient},
}

// target returns the command that tests with a server. The quick one omits
// servers that take long to start.
func target(server string) string {
	if server == KafkaName || server == PulsarName {
		return "make test-all"
	}
	return "make test"
}

func address(tb testing.TB, server, env, form string) string {
	tb.Helper()
	dsn := os.Getenv(env)
	if dsn == "" {
		missing(tb, server, "no "+server+" server: `"+target(server)+"` runs it; or set "+env+"="+form)
	}
	return dsn
}

// missing ends the test: a required server that is missing must fail the test,
// and an optional one must not fail a quick "go test".
func missing(tb testing.TB, server, line string) {
	tb.Helper()
	if required(os.Getenv(EnvRequire), server) {
		tb.Fatal(line)
	}
	tb.Skip(line)
}

// anyServer stands for a requirement of any server.
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
