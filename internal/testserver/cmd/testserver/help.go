//go:build linux || darwin

package main

const usage = `testserver starts private databases and brokers for tests, on free loopback
ports, with their data below .servers in the repository: postgres, mariadb,
mysql, redis and rabbitmq, and on request kafka and pulsar, which start slowly.

Usage:
  testserver run [flags] -- COMMAND [ARGS...]   start, run COMMAND, stop
  testserver start [flags]                      start and leave running
  testserver env                                print the variables of "start" again
  testserver status                             list instances and servers
  testserver stop                               stop the servers of "start"

Run "testserver COMMAND --help" for the help of one command.

Missing programs are installed with apt-get, as root or through sudo -n. Kafka
and Pulsar are fetched with Maven, once, into the user's cache folder. So is
MySQL, from Debian's unstable suite, with the mirror of this machine's apt
sources; it is not installed. If that suite is not available, name a MySQL
server with WAYBILL_TEST_MYSQL.
Servers that an earlier run left behind, even after kill -9, are stopped and
removed by the next one.

Environment:
  WAYBILL_TEST_POSTGRES   postgres://user:password@host:port/database?sslmode=disable
  WAYBILL_TEST_POSTGRES_NEW   the same, of another major version
  WAYBILL_TEST_MARIADB    user:password@tcp(host:port)/database?parseTime=true
  WAYBILL_TEST_MYSQL      user:password@tcp(host:port)/database?parseTime=true
  WAYBILL_TEST_REDIS      redis://host:port/0
  WAYBILL_TEST_RABBITMQ   amqp://user:password@host:port/
  WAYBILL_TEST_KAFKA      host:port
  WAYBILL_TEST_PULSAR     pulsar://host:port
      Set by testserver for COMMAND. If a variable is already set, that server is used
      and none of its kind is started. The user of a database must be allowed
      to create databases and to end other sessions.
  WAYBILL_TEST_MYSQL_CLIENT    a script: MySQL's own command line client
  WAYBILL_TEST_PULSAR_CLIENT   a script: Pulsar's own command line client
  WAYBILL_TEST_REQUIRE    set by run: a missing server fails tests instead of
      skipping them ("1" for all, or the names of the started ones)
  WAYBILL_TEST_SERVERS    set by testserver: the folder of all instances
  WAYBILL_TEST_INSTANCE   set by testserver: the folder of this instance
`

const runUsage = `Usage: testserver run [--only NAMES] [--also NAMES] [--no-sync] [--race-tools] -- COMMAND [ARGS...]

Starts servers, runs COMMAND with their addresses in the environment, stops
the servers, and exits with COMMAND's exit code. Also stops them when COMMAND
fails and on SIGINT, SIGTERM and SIGHUP, which are passed on to COMMAND;
COMMAND has ten seconds to end. Each concurrent run has servers of its own.

Flags:
  --only NAMES   comma-separated servers to start (defaults to
                 postgres,mariadb,mysql,redis,rabbitmq; kafka and pulsar also exist)
  --also NAMES   additional servers: postgres14, postgres16, postgres17 or
                 postgres18, of which one at a time gets an address
  --no-sync      MariaDB and MySQL that answer before the disk has the data, for
                 tests; benchmarks need the disk
  --race-tools   installation of a C compiler, which go test -race needs

Example:
  testserver run --only postgres -- go test -race ./...
`

const startUsage = `Usage: testserver start [--only NAMES]

Starts servers, leaves them running, and prints their addresses for a shell:

  eval "$(testserver start)"
  go test ./...
  testserver stop

Running servers of an earlier start are reused.

Flags:
  --only NAMES   comma-separated servers to start (defaults to
                 postgres,mariadb,mysql,redis,rabbitmq; kafka and pulsar also exist)
`

const stopUsage = `Usage: testserver stop

Stops the servers of "testserver start", removes their data, and sweeps the
instances of dead runs. Servers of runs in progress are not touched.
`

const envUsage = `Usage: testserver env

Prints the addresses of the servers of "testserver start" as export lines.
`

const statusUsage = `Usage: testserver status

Lists the instances of this checkout with their owners and running servers.
`
