//go:build linux || darwin

package doctor

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"net/url"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats-server/v2/server"
	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/natsembed"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

func TestJetStream(t *testing.T) {
	dir := t.TempDir()
	embedded, err := natsembed.Start(t.Context(), natsembed.Config{Dir: dir})
	if err != nil {
		t.Fatal(err)
	}
	defer embedded.Close()
	w := newWard(t, "sink.url", embedded.URL()+"/orders")
	conn, err := nats.Connect(embedded.URL())
	w.must(err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	w.must(err)
	w.well("sink")
	w.sees("jetstream stream", Fail, "stream orders does not exist", "nats stream add orders")
	w.sees("jetstream storage", NotChecked, "does not exist", "")
	w.sees("jetstream limits", NotChecked, "does not exist", "")
	stream := jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, Storage: jetstream.MemoryStorage}
	_, err = js.CreateStream(t.Context(), stream)
	w.must(err)
	w.well("jetstream stream")
	w.sees("jetstream storage", Fail, "in memory", "--storage file")
	w.must(js.DeleteStream(t.Context(), "orders"))
	stream.Storage, stream.MaxMsgsPerSubject = jetstream.FileStorage, 1
	_, err = js.CreateStream(t.Context(), stream)
	w.must(err)
	w.well("jetstream storage")
	w.sees("jetstream subjects", NotChecked, "no event", "waybill send")
	_, err = w.open().Send(t.Context(), waybill.Event{Type: "bills.paid", Payload: []byte("{}")})
	w.must(err)
	w.sees("jetstream subjects", Fail, "no stream has the subject bills.paid", "nats stream edit orders --subjects orders.>,bills.paid")
	_, err = js.CreateStream(t.Context(), jetstream.StreamConfig{Name: "bills", Subjects: []string{"bills.*"}})
	w.must(err)
	w.sees("jetstream subjects", Warn, "bills.paid is one of stream bills", "")
	w.set("sink.topic", "orders.{type}")
	w.well("jetstream subjects")
	edit := func(change func(*jetstream.StreamConfig)) {
		t.Helper()
		change(&stream)
		_, err := js.UpdateStream(t.Context(), stream)
		w.must(err)
	}
	w.sees("jetstream limits", Fail, "only 1 messages of each subject", "--max-msgs-per-subject=-1")
	edit(func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject, c.MaxBytes = -1, 1<<20 })
	w.sees("jetstream limits", Fail, "drops its oldest", "--discard new")
	edit(func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew })
	w.well("jetstream limits")
	edit(func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour })
	w.sees("jetstream limits", Warn, "dropped after 1h", "--max-age=-1")
	edit(func(c *jetstream.StreamConfig) { c.MaxAge = 0 })
	w.well("jetstream limits")
	w.sees("jetstream sync", NotChecked, "not visible to clients", "sync_interval: always")
	_, at, _ := strings.Cut(embedded.URL(), "@")
	w.set("sink.url", "nats:embedded?dir="+url.QueryEscape(dir)+"&listen="+at)
	w.well("jetstream sync")
}

// TestJetStreamCluster checks replicas, which require several servers.
func TestJetStreamCluster(t *testing.T) {
	address := natsCluster(t, 3)
	w := newWard(t, "sink.url", address+"/orders")
	conn, err := nats.Connect(address)
	w.must(err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	w.must(err)
	// apply creates or edits the stream after the servers have elected a
	// leader.
	apply := func(replicas int) {
		t.Helper()
		w.await("the stream", func() bool {
			ctx, cancel := context.WithTimeout(t.Context(), time.Second)
			defer cancel()
			_, err := js.CreateOrUpdateStream(ctx, jetstream.StreamConfig{Name: "orders", Subjects: []string{"orders.>"}, Replicas: replicas})
			return err == nil
		})
	}
	const check = "jetstream storage"
	apply(1)
	w.sees(check, Warn, "has 1 replicas in a cluster", "nats stream edit orders --replicas 3")
	apply(3)
	w.well(check)
	// A server that is stopped while it replicates a stream leaves a goroutine
	// running.
	w.await("every server has its copy", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		stream, err := js.Stream(ctx, "orders")
		if err != nil {
			return false
		}
		c := stream.CachedInfo().Cluster
		return c != nil && c.Leader != "" && len(c.Replicas) == 2 && c.Replicas[0].Current && c.Replicas[1].Current
	})
}

// natsCluster starts a cluster of servers, and returns the address of one of
// them.
func natsCluster(t *testing.T, n int) (address string) {
	t.Helper()
	var lc net.ListenConfig
	var free []net.Listener
	var routes []string
	for len(free) < n { // below the kernel's range for connections, so that the ports stay free
		l, err := lc.Listen(t.Context(), "tcp", fmt.Sprintf("127.0.0.1:%d", 16384+rand.IntN(16384)))
		if err != nil {
			continue
		}
		free = append(free, l)
		routes = append(routes, "nats://"+l.Addr().String())
	}
	var started []*server.Server
	for i, l := range free {
		at, ok := l.Addr().(*net.TCPAddr)
		if err := l.Close(); err != nil || !ok {
			t.Fatal(l.Addr(), err)
		}
		s, err := server.NewServer(&server.Options{
			ServerName: fmt.Sprintf("doctor-%d", i), Host: "127.0.0.1", Port: server.RANDOM_PORT, JetStream: true, StoreDir: t.TempDir(), NoSigs: true, NoLog: true,
			Cluster: server.ClusterOpts{Name: "doctor", Host: "127.0.0.1", Port: at.Port}, Routes: server.RoutesFromStr(strings.Join(routes, ",")),
		})
		if err != nil {
			t.Fatal(err)
		}
		s.Start()
		t.Cleanup(func() {
			s.Shutdown()
			s.WaitForShutdown()
		})
		started = append(started, s)
	}
	for _, s := range started {
		if !s.ReadyForConnections(time.Minute) {
			t.Fatal("the server does not become ready")
		}
	}
	return started[0].ClientURL()
}

func TestRedisServer(t *testing.T) {
	server := private.Start(t, testserver.RedisName)
	opts, err := redis.ParseURL(server.DSN)
	if err != nil {
		t.Fatal(err)
	}
	client := redis.NewClient(opts)
	defer func() { _ = client.Close() }()
	w := newWard(t, "sink.url", server.DSN)
	// do executes the advice of a finding, except for the server's
	// configuration file, which does not exist.
	do := func(advice string) {
		t.Helper()
		line, _, _ := strings.Cut(advice, ";")
		var args []any
		for _, word := range strings.Fields(line)[1:] {
			args = append(args, word)
		}
		w.must(client.Do(t.Context(), args...).Err())
	}
	w.well("sink")
	w.well("redis persistence")
	do("redis-cli CONFIG SET appendonly no")
	do(w.sees("redis persistence", Fail, "no append-only file", "appendonly yes"))
	w.well("redis persistence")
	do("redis-cli CONFIG SET appendfsync no")
	do(w.sees("redis persistence", Fail, "appendfsync is no", "appendfsync always"))
	do("redis-cli CONFIG SET appendfsync everysec")
	do(w.sees("redis persistence", Warn, "about a second", "appendfsync always"))
	w.well("redis persistence")

	w.well("redis eviction")
	do("redis-cli CONFIG SET maxmemory-policy allkeys-lru")
	do(w.sees("redis eviction", Fail, "evicts whole streams", "noeviction"))
	do("redis-cli CONFIG SET maxmemory-policy volatile-ttl")
	do(w.sees("redis eviction", Warn, "time to live", "noeviction"))
	w.well("redis eviction")

	const replication = "redis replication"
	w.well(replication)
	w.set("sink.url", server.DSN+"?replicas=1")
	w.sees(replication, Fail, "requires 1 replicas, 0 are connected", "INFO replication")
	replica := private.Start(t, testserver.RedisName)
	follow := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", replica.Port)})
	defer func() { _ = follow.Close() }()
	w.must(follow.ReplicaOf(t.Context(), "127.0.0.1", strconv.Itoa(server.Port)).Err())
	w.await("the replica is connected", func() bool {
		text, err := client.Info(t.Context(), "replication").Result()
		return err == nil && strings.Contains(text, "state=online")
	})
	w.well(replication)
	w.set("sink.url", server.DSN)
	w.sees(replication, Warn, "a failover loses accepted events", "replicas=1")
	do("redis-cli CONFIG SET min-replicas-to-write 1")
	w.sees(replication, Warn, "min-replicas-max-lag", "replicas=1")
	w.set("sink.url", server.DSN+"?replicas=1")
	w.well(replication)
	w.set("sink.url", server.DSN)
	do("redis-cli CONFIG SET min-replicas-to-write 0")
	w.must(follow.ReplicaOf(t.Context(), "NO", "ONE").Err())

	w.must(server.Kill(t.Context()))
	w.sees("sink", Fail, "sink.url", "check that the server is running")
	w.must(server.Restart(t.Context()))
	w.well("sink")

	w.must(client.Do(t.Context(), "ACL", "SETUSER", "relay", "on", ">a-Password", "~*", "+@all", "-config").Err())
	w.set("sink.url", strings.Replace(server.DSN, "redis://", "redis://relay:a-Password@", 1))
	w.sees("redis persistence", NotChecked, "cannot be inspected", "")
}

// TestRedisCluster checks every primary of a cluster.
func TestRedisCluster(t *testing.T) {
	cluster := private.RedisCluster(t, 3, 1)
	w := newWard(t, "sink.url", "redis://"+strings.TrimSuffix(strings.TrimPrefix(cluster.Servers[0].DSN, "redis://"), "/0")+"?cluster=true")
	w.well("sink")
	w.well("redis persistence")
	for _, primary := range cluster.Servers[:3] {
		client := redis.NewClient(&redis.Options{Addr: fmt.Sprintf("127.0.0.1:%d", primary.Port)})
		defer func() { _ = client.Close() }()
		w.must(client.ConfigSet(t.Context(), "appendonly", "no").Err())
		w.sees("redis persistence", Fail, "no append-only file", "appendonly yes")
		w.must(client.ConfigSet(t.Context(), "appendonly", "yes").Err())
		w.well("redis persistence")
	}
	w.sees("redis replication", Warn, "a failover loses accepted events", "replicas=1")
}

func TestRabbitMQ(t *testing.T) {
	address := testserver.RabbitMQ(t)
	conn, err := amqp.Dial(address)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = conn.Close() }()
	ch, err := conn.Channel()
	if err != nil {
		t.Fatal(err)
	}
	const check = "rabbitmq durability"
	w := newWard(t, "sink.url", address, "sink.topic", "x.{type}")
	w.well("sink")
	w.sees(check, NotChecked, "no event", "waybill send")
	name := unique()
	st := w.open()
	_, err = st.Send(t.Context(), waybill.Event{Type: name, Payload: []byte("{}")})
	w.must(err)
	name = "x." + name
	w.sees(check, Fail, "exchange "+name+" does not exist", "declare exchange name="+name)
	for _, kind := range []string{amqp.ExchangeTopic, amqp.ExchangeFanout} {
		w.must(ch.ExchangeDeclare(name, kind, false, false, false, false, nil))
		w.sees(check, Fail, "is not durable", "durable=true")
		w.must(ch.ExchangeDelete(name, false, false))
		w.must(ch.ExchangeDeclare(name, kind, true, false, false, false, nil))
		w.well(check)
		w.must(ch.ExchangeDelete(name, false, false))
	}

	sep := "?"
	if strings.Contains(address, "?") {
		sep = "&"
	}
	w.sees("rabbitmq routing", NotChecked, "management API", "")
	w.set("sink.url", address+sep+"queues=true", "sink.topic", name)
	w.well("rabbitmq routing")
	w.sees(check, Fail, "queue "+name+" does not exist", "declare queue name="+name)
	declare := func(durable bool) {
		t.Helper()
		_, err := ch.QueueDeclare(name, durable, false, false, false, nil)
		w.must(err)
	}
	declare(false)
	w.sees(check, Fail, "is not durable", "durable=true")
	_, err = ch.QueueDelete(name, false, false, false)
	w.must(err)
	declare(true)
	w.well(check)
	_, err = ch.QueueDelete(name, false, false, false)
	w.must(err)
}

// boss is a Kafka client with all rights on a topic.
type boss struct {
	w     *ward
	admin *kadm.Client
	topic string
}

func newBoss(w *ward, topic string, brokers ...string) *boss {
	w.t.Helper()
	client, err := kgo.NewClient(kgo.SeedBrokers(brokers...))
	w.must(err)
	b := &boss{w, kadm.NewClient(client), topic}
	w.t.Cleanup(b.admin.Close)
	return b
}

// create creates the topic, with one partition and one replica.
func (b *boss) create(settings map[string]*string) {
	b.w.t.Helper()
	_, err := b.admin.CreateTopic(b.w.t.Context(), 1, 1, settings, b.topic)
	b.w.must(err)
	b.w.await("the topic", func() bool { return b.w.look("kafka replication").Status == Warn })
}

// set executes the advice of a finding, and waits until the brokers have
// applied it.
func (b *boss) set(advice string) {
	b.w.t.Helper()
	_, setting, _ := strings.Cut(advice, "--add-config ")
	key, value, _ := strings.Cut(setting, "=")
	_, err := b.admin.AlterTopicConfigs(b.w.t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, b.topic)
	b.w.must(err)
	b.w.await(setting, func() bool {
		all, err := (&kafkaProbe{b.admin}).describe(b.w.t.Context(), []string{b.topic})
		return err == nil && all[0].settings[key] == value
	})
}

func TestKafka(t *testing.T) {
	address, name := testserver.Kafka(t), unique()
	w := newWard(t, "sink.url", "kafka://"+address, "sink.topic", name)
	b := newBoss(w, name, address)
	const loss, retention = "kafka loss", "kafka retention"
	w.well("sink")
	w.sees(loss, NotChecked, "does not exist", "")
	w.sees(retention, NotChecked, "does not exist", "")
	compact := "compact"
	b.create(map[string]*string{"cleanup.policy": &compact})
	defer func() { _, _ = b.admin.DeleteTopics(context.WithoutCancel(t.Context()), name) }()

	b.set(w.sees(loss, Fail, "is compacted", "cleanup.policy=delete"))
	w.well(loss)
	b.set("--add-config unclean.leader.election.enable=true")
	b.set(w.sees(loss, Fail, "lacks events", "unclean.leader.election.enable=false"))
	w.well(loss)

	w.well(retention)
	b.set("--add-config retention.bytes=1048576")
	b.set(w.sees(retention, Fail, "1048576 bytes", "retention.bytes=-1"))
	w.well(retention)
	b.set("--add-config retention.ms=3600000")
	b.set(w.sees(retention, Warn, "after 1h: a consumer that is down", "retention.ms=86400000"))
	w.well(retention)

	// Now the settings limit the redelivery and the retention of inbox records.
	w.set("inbox.redelivery-window", "2d")
	b.set(w.sees(retention, Fail, "after 1d, read or not, and inbox.redelivery-window is 2d", "retention.ms=172800000"))
	w.well(retention)
	w.set("inbox.retention", "3d")
	_, kept, _ := strings.Cut(w.sees(retention, Warn, "for 9d", "set inbox.retention to 9d"), "set inbox.retention to ") // two days, plus seven of a segment
	w.set("inbox.retention", kept)
	w.well(retention)
	b.set("--add-config retention.ms=-1")
	w.sees(retention, Warn, "forever, and inbox.retention is 9d", "set inbox.retention to 0s")
	w.set("inbox.retention", "0s")
	w.well(retention)
}

// TestKafkaCluster checks replicas, which require several brokers.
func TestKafkaCluster(t *testing.T) {
	cluster, name := private.KafkaCluster(t, 3), unique()
	w := newWard(t, "sink.url", "kafka://"+cluster[0].DSN+","+cluster[1].DSN+","+cluster[2].DSN, "sink.topic", name)
	b := newBoss(w, name, cluster[0].DSN)
	const check = "kafka replication"
	w.well("sink")
	w.sees(check, Fail, "topic "+name+" does not exist", "--create --topic "+name)
	b.create(nil)
	reassign := func(brokers ...int32) {
		t.Helper()
		var to kadm.AlterPartitionAssignmentsReq
		to.Assign(name, 0, brokers)
		got, err := b.admin.AlterPartitionAssignments(t.Context(), to)
		w.must(errors.Join(err, got.Error()))
	}
	// Each broker applies a change at its own time, and any of them may answer.
	w.awaits(check, Warn, "has 1 replicas", "three replicas")
	reassign(1, 2)
	b.set(w.awaits(check, Warn, "only one broker has", "min.insync.replicas=2"))
	w.awaits(check, Warn, "has 2 replicas", "three replicas")
	reassign(1, 2, 3)
	w.awaits(check, OK, "", "")
	b.set("--add-config min.insync.replicas=3")
	b.set(w.awaits(check, Warn, "when all 3 replicas have", "min.insync.replicas=2"))
	w.awaits(check, OK, "", "")
	b.set("--add-config min.insync.replicas=1")
	b.set(w.awaits(check, Warn, "only one broker has", "min.insync.replicas=2"))
	w.awaits(check, OK, "", "")
}

func TestPulsar(t *testing.T) {
	address := testserver.Pulsar(t)
	w := newWard(t, "sink.url", address)
	w.well("sink")
	w.sees("pulsar subscriptions", Warn, "deleted immediately", "?subscriptions=")
	w.set("sink.url", address+"/public/default?subscriptions=billing")
	w.well("pulsar subscriptions")
	w.sees("pulsar persistence", NotChecked, "not visible to clients", "get-persistence")
	w.set("sink.topic", "non-persistent://public/default/x")
	w.sees("pulsar persistence", Fail, "not persistent", "sink.topic")
	w.set("sink.topic", "")
	w.gone("pulsar persistence")
}
