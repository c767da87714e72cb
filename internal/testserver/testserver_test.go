package testserver_test

import (
	"fmt"
	"os"
	"runtime"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
)

// fakeTB records how a call ends a test. As in testing.T, Skip and Fatal do not
// return.
type fakeTB struct {
	testing.TB
	outcome string
	lines   []string
}

func (f *fakeTB) Helper() {}

func (f *fakeTB) Skip(args ...any) { f.end("skip", fmt.Sprint(args...)) }

func (f *fakeTB) Fatal(args ...any) { f.end("fatal", fmt.Sprint(args...)) }

func (f *fakeTB) Fatalf(format string, args ...any) { f.end("fatal", fmt.Sprintf(format, args...)) }

func (f *fakeTB) end(outcome, text string) {
	f.outcome = outcome
	f.lines = append(f.lines, strings.Split(text, "\n")...)
	runtime.Goexit()
}

// try makes a call with a test of its own and reports its result.
func try(ask func(testing.TB) string) (result string, tb *fakeTB) {
	tb = &fakeTB{outcome: "pass"}
	done := make(chan struct{})
	go func() {
		defer close(done)
		result = ask(tb)
	}()
	<-done
	return result, tb
}

func shell(name string) func(testing.TB) string {
	return func(tb testing.TB) string { return testserver.Shell(tb, name) }
}

func TestAddressesComeFromTheEnvironment(t *testing.T) {
	t.Setenv(testserver.EnvPostgres, "postgres://somewhere")
	t.Setenv(testserver.EnvMySQL, "me@tcp(somewhere)/db")
	if got, tb := try(testserver.Postgres); got != "postgres://somewhere" || tb.outcome != "pass" {
		t.Errorf("Postgres = %q, %s", got, tb.outcome)
	}
	if got, tb := try(testserver.MySQL); got != "me@tcp(somewhere)/db" || tb.outcome != "pass" {
		t.Errorf("MySQL = %q, %s", got, tb.outcome)
	}
}

func TestMissingServerSkipsOrFails(t *testing.T) {
	cases := []struct {
		name    string
		ask     func(testing.TB) string
		require string
		outcome string
		hint    string
	}{
		{"postgres, not required", testserver.Postgres, "", "skip", testserver.EnvPostgres},
		{"postgres, all required", testserver.Postgres, "1", "fatal", testserver.EnvPostgres},
		{"postgres, required by name", testserver.Postgres, "postgres", "fatal", testserver.EnvPostgres},
		{"postgres, only the other required", testserver.Postgres, "mariadb", "skip", testserver.EnvPostgres},
		{"mariadb, not required", testserver.MariaDB, "", "skip", testserver.EnvMariaDB},
		{"mariadb, required in a list", testserver.MariaDB, "postgres,mariadb", "fatal", testserver.EnvMariaDB},
		{"mysql, not required", testserver.MySQL, "postgres,mariadb", "skip", testserver.EnvMySQL},
		{"mysql, required in a list", testserver.MySQL, "postgres,mysql", "fatal", testserver.EnvMySQL},
		{"mysql's client, required", shell("mysql"), "mysql", "fatal", testserver.EnvMySQLClient},
		{"psql, not required", shell("psql"), "mariadb", "skip", "postgresql-client"},
		{"psql, required", shell("psql"), "1", "fatal", "postgresql-client"},
		{"mariadb, required", shell("mariadb"), "mariadb", "fatal", "mariadb-client"},
		{"sqlite3, not required", shell("sqlite3"), "", "skip", "sqlite3"},
		{"sqlite3, required by any", shell("sqlite3"), "mariadb", "fatal", "sqlite3"},
		{"redis, required by name", testserver.Redis, "redis", "fatal", testserver.EnvRedis},
		{"rabbitmq, not required", testserver.RabbitMQ, "redis", "skip", testserver.EnvRabbitMQ},
		{"kafka, left out of the quick run", testserver.Kafka, "postgres,mariadb,redis,rabbitmq", "skip", "`make test-all` runs it"},
		{"kafka, required", testserver.Kafka, "kafka,pulsar", "fatal", testserver.EnvKafka},
		{"pulsar, required", testserver.Pulsar, "kafka,pulsar", "fatal", testserver.EnvPulsar},
		{"kcat, not required", shell("kcat"), "postgres", "skip", "kcat"},
		{"kcat, required", shell("kcat"), "kafka", "fatal", "kcat"},
		{"redis-cli, required", shell("redis-cli"), "redis", "fatal", "redis-tools"},
		{"pulsar-client, required", shell("pulsar-client"), "pulsar", "fatal", testserver.EnvPulsarClient},
		{"unknown server", func(tb testing.TB) string { return testserver.Address(tb, "oracle") }, "", "fatal", "oracle"},
		{"unknown shell", shell("sqlplus"), "", "fatal", "sqlplus"},
	}
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			for _, env := range []string{
				testserver.EnvPostgres, testserver.EnvMariaDB, testserver.EnvMySQL, testserver.EnvMySQLClient, testserver.EnvRedis, testserver.EnvRabbitMQ,
				testserver.EnvKafka, testserver.EnvPulsar, testserver.EnvPulsarClient,
			} {
				t.Setenv(env, "")
			}
			t.Setenv(testserver.EnvRequire, c.require)
			t.Setenv("PATH", t.TempDir())
			_, tb := try(c.ask)
			if tb.outcome != c.outcome {
				t.Errorf("outcome = %s, want %s", tb.outcome, c.outcome)
			}
			if len(tb.lines) != 1 || !strings.Contains(tb.lines[0], c.hint) {
				t.Errorf("message = %q, want one line that names %s", tb.lines, c.hint)
			}
		})
	}
}

func TestShellReturnsThePath(t *testing.T) {
	dir := t.TempDir()
	path := dir + "/sqlite3"
	if err := os.WriteFile(path, []byte("#!/bin/sh\n"), 0o755); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir)
	if got, tb := try(shell("sqlite3")); got != path || tb.outcome != "pass" {
		t.Errorf("Shell = %q, %s; want %q", got, tb.outcome, path)
	}
}
