//go:build linux || darwin

package main

const usage = `testserver starts private databases and brokers for tests, on free loopback
ports, with their data below .servers in the repository: postgres, mariadb,
mysql, redis and rabbitmq, and if they are asked for kafka and pulsar, which
take long.

Usage:
  testserver run [flags] -- COMMAND [ARGS...]   start, run COMMAND, stop
  testserver start [flags]                      start and leave running
  testserver env                                print the variables of "start" again
  testserver status                             list instances and servers
  testserver stop                               stop what "start" started

Run "testserver COMMAND --help" for more about one of them.

Missing programs are installed with apt-get, as root or through sudo -n. Kafka
and Pulsar are fetched with Maven, once, into the user's cache folder. So is
MySQL, from Debian's unstable suite, with the mirror that this machine's apt
sources name; it is not installed. Where that suite is out of reach, name a
MySQL server with WAYBILL_TEST_MYSQL.
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
      Set by testserver for COMMAND. If one is set already, that server is used
      and none of its kind is started. The user of a database must be allowed
      to create databases and to end other sessions.
  WAYBILL_TEST_MYSQL_CLIENT    a script: MySQL's own command line client
  WAYBILL_TEST_PULSAR_CLIENT   a script: Pulsar's own command line client
  WAYBILL_TEST_REQUIRE    set by run: a missing server fails tests instead of
      skipping them ("1" for all, or the names of those that were started)
  WAYBILL_TEST_SERVERS    set by testserver: the folder of all instances
  WAYBILL_TEST_INSTANCE   set by testserver: the folder of this instance
`

const runUsage = `Usage: testserver run [--only NAMES] [--also NAMES] [--race-tools] -- COMMAND [ARGS...]

Starts servers, runs COMMAND with their addresses in the environment, stops
the servers, and exits with COMMAND's exit code. Also stops them when COMMAND
fails and on SIGINT, SIGTERM and SIGHUP, which are passed on to COMMAND; it has
ten seconds to end. Several runs at once get servers of their own.

Flags:
  --only NAMES   start these, separated by commas (defaults to
                 postgres,mariadb,mysql,redis,rabbitmq; there are kafka and pulsar too)
  --also NAMES   start these, too: postgres14, postgres16, postgres17 or
                 postgres18, of which one at a time gets an address
  --race-tools   also install a C compiler, which go test -race needs

Example:
  testserver run --only postgres -- go test -race ./...
`

const startUsage = `Usage: testserver start [--only NAMES]

Starts servers, leaves them running, and prints their addresses for a shell:

  eval "$(testserver start)"
  go test ./...
  testserver stop

Servers of an earlier start that still run are used as they are.

Flags:
  --only NAMES   start these, separated by commas (defaults to
                 postgres,mariadb,mysql,redis,rabbitmq; there are kafka and pulsar too)
`

const stopUsage = `Usage: testserver stop

Stops the servers of "testserver start", removes their data, and sweeps what
dead runs left behind. Servers of runs in progress are left alone.
`

const envUsage = `Usage: testserver env

Prints the addresses of the servers of "testserver start" as export lines.
`

const statusUsage = `Usage: testserver status

Lists the instances of this checkout: who owns each, and which servers run.
`
