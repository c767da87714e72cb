//go:build linux || darwin

package private

import (
	"context"
	"strconv"
	"strings"
	"testing"

	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/manage"
)

// Start starts a server that ends with the test; the names are those of package
// testserver. If the shared server of that name is missing, the test is skipped
// or fails, as with [testserver.Address].
func Start(tb testing.TB, name string) manage.Server {
	tb.Helper()
	return start(tb, manage.Request{Only: []string{name}, Private: true}).Servers[0]
}

// StartSecure starts a server that ends with the test, and returns the host and
// port of its TLS listener. Not every server can: see [manage.Request].
func StartSecure(tb testing.TB, name string, c manage.Certificates) string {
	tb.Helper()
	s := start(tb, manage.Request{Only: []string{name}, Private: true, Secure: &c}).Servers[0]
	return "127.0.0.1:" + strconv.Itoa(s.Ports[len(s.Ports)-1])
}

// KafkaCluster starts a cluster of Kafka brokers that end with the test. Only
// the first, which is the controller, can be restarted after a kill.
func KafkaCluster(tb testing.TB, brokers int) []manage.Server {
	tb.Helper()
	in := start(tb, manage.Request{Only: []string{testserver.KafkaName}, Private: true})
	if err := in.AddBrokers(tb.Context(), brokers-1); err != nil {
		tb.Fatal(err)
	}
	return in.Servers
}

// Galera starts a MariaDB server that is the only node of a Galera cluster, and
// ends with the test.
func Galera(tb testing.TB) manage.Server {
	tb.Helper()
	return start(tb, manage.Request{Only: []string{testserver.MariaDBName}, Private: true, Galera: true}).Servers[0]
}

// PostgresPair starts a primary and a standby that end with the test.
func PostgresPair(tb testing.TB) *manage.PostgresPair {
	tb.Helper()
	pair, err := start(tb, manage.Request{Only: []string{testserver.PostgresName}, Private: true}).AddStandby(tb.Context())
	if err != nil {
		tb.Fatal(err)
	}
	return pair
}

// NATSCluster starts a cluster of NATS servers with JetStream that end with the
// test. They reach each other via proxies if via is not nil.
func NATSCluster(tb testing.TB, servers int, via manage.Via) *manage.Cluster {
	tb.Helper()
	return run(tb, func(home *manage.Home) (*manage.Cluster, error) { return home.RunNATS(tb.Context(), servers, via) })
}

// RabbitCluster starts a cluster of RabbitMQ servers that end with the test.
func RabbitCluster(tb testing.TB, servers int) *manage.Cluster {
	tb.Helper()
	return run(tb, func(home *manage.Home) (*manage.Cluster, error) { return home.RunRabbitMQ(tb.Context(), servers) })
}

// KafkaReplicas starts a cluster of three Kafka servers that end with the test.
// Each is broker and controller and can be restarted, and every topic has three
// replicas of which two must have a message.
func KafkaReplicas(tb testing.TB) *manage.Cluster {
	tb.Helper()
	return run(tb, func(home *manage.Home) (*manage.Cluster, error) { return home.RunKafka(tb.Context()) })
}

// RedisSentinels starts Redis servers that end with the test, of which one is
// the primary, and three sentinels, which are the last servers of the cluster.
func RedisSentinels(tb testing.TB, servers int) *manage.Cluster {
	tb.Helper()
	return run(tb, func(home *manage.Home) (*manage.Cluster, error) { return home.RunRedis(tb.Context(), servers) })
}

// MySQLGroup starts a replication group of MySQL servers with a single primary
// that end with the test.
func MySQLGroup(tb testing.TB, servers int) *manage.Cluster {
	tb.Helper()
	return run(tb, func(home *manage.Home) (*manage.Cluster, error) { return home.RunMySQLGroup(tb.Context(), servers) })
}

// GaleraCluster starts a Galera cluster of MariaDB servers that end with the
// test.
func GaleraCluster(tb testing.TB, servers int) *manage.Cluster {
	tb.Helper()
	return run(tb, func(home *manage.Home) (*manage.Cluster, error) { return home.RunGalera(tb.Context(), servers) })
}

// RedisCluster starts a Redis Cluster that ends with the test: primaries, and
// replicas of each.
func RedisCluster(tb testing.TB, primaries, replicas int) *manage.Cluster {
	tb.Helper()
	return run(tb, func(home *manage.Home) (*manage.Cluster, error) {
		return home.RunRedisCluster(tb.Context(), primaries, replicas)
	})
}

func start(tb testing.TB, req manage.Request) *manage.Instance {
	tb.Helper()
	testserver.Address(tb, req.Only[0])
	return run(tb, func(home *manage.Home) (*manage.Instance, error) { return home.Run(tb.Context(), req) })
}

// run starts servers that end with the test.
func run[S interface {
	Stop(ctx context.Context) error
}](tb testing.TB, start func(home *manage.Home) (S, error)) S {
	tb.Helper()
	home, err := manage.Open(tb.Context(), ".", lines{tb})
	if err != nil {
		tb.Fatal(err)
	}
	servers, err := start(home)
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		if err := servers.Stop(context.WithoutCancel(tb.Context())); err != nil {
			tb.Error(err)
		}
	})
	return servers
}

// lines passes progress on to the test's log.
type lines struct{ tb testing.TB }

// Write implements [io.Writer].
func (l lines) Write(b []byte) (int, error) {
	l.tb.Logf("%s", strings.TrimSpace(string(b)))
	return len(b), nil
}
