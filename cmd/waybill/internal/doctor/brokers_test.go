//go:build linux || darwin

package doctor

import (
	"strings"
	"testing"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	amqp "github.com/rabbitmq/amqp091-go"
	"github.com/redis/go-redis/v9"
	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/natsbroker/natsembed"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
)

func TestJetStream(t *testing.T) {
	server, err := natsembed.Start(t.Context(), natsembed.Config{Dir: t.TempDir()})
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	w := newWard(t, "sink.url", server.URL()+"/orders")
	conn, err := nats.Connect(server.URL())
	w.must(err)
	defer conn.Close()
	js, err := jetstream.New(conn)
	w.must(err)
	w.well("sink")
	w.sees("jetstream stream", Fail, "there is no stream orders", "nats stream add orders")
	w.sees("jetstream storage", NotChecked, "no stream", "")
	w.sees("jetstream limits", NotChecked, "no stream", "")
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
	edit := func(change func(*jetstream.StreamConfig)) {
		t.Helper()
		change(&stream)
		_, err := js.UpdateStream(t.Context(), stream)
		w.must(err)
	}
	w.sees("jetstream limits", Fail, "of each subject only 1", "--max-msgs-per-subject=-1")
	edit(func(c *jetstream.StreamConfig) { c.MaxMsgsPerSubject, c.MaxBytes = -1, 1<<20 })
	w.sees("jetstream limits", Fail, "drops its oldest", "--discard new")
	edit(func(c *jetstream.StreamConfig) { c.Discard = jetstream.DiscardNew })
	w.well("jetstream limits")
	edit(func(c *jetstream.StreamConfig) { c.MaxAge = time.Hour })
	w.sees("jetstream limits", Warn, "dropped after 1h", "--max-age=-1")
	edit(func(c *jetstream.StreamConfig) { c.MaxAge = 0 })
	w.well("jetstream limits")
	w.sees("jetstream sync", NotChecked, "no client can see it", "sync_interval: always")
	w.set("sink.url", "nats:embedded?listen="+strings.TrimPrefix(server.URL(), "nats://"))
	w.well("jetstream sync")
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
	// do types what a finding says, but for writing the server's file: it has none.
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
	do(w.sees("redis eviction", Fail, "throws whole streams away", "noeviction"))
	do("redis-cli CONFIG SET maxmemory-policy volatile-ttl")
	do(w.sees("redis eviction", Warn, "time to live", "noeviction"))
	w.well("redis eviction")

	w.must(client.Do(t.Context(), "ACL", "SETUSER", "relay", "on", ">a-Password", "~*", "+@all", "-config").Err())
	w.set("sink.url", strings.Replace(server.DSN, "redis://", "redis://relay:a-Password@", 1))
	w.sees("redis persistence", NotChecked, "cannot be seen", "")
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
	w.sees(check, Fail, "there is no exchange "+name, "declare exchange name="+name)
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
	w.set("sink.url", address+sep+"queues=true", "sink.topic", name)
	w.sees(check, Fail, "there is no queue "+name, "declare queue name="+name)
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

func TestKafka(t *testing.T) {
	address := testserver.Kafka(t)
	client, err := kgo.NewClient(kgo.SeedBrokers(address))
	if err != nil {
		t.Fatal(err)
	}
	boss := kadm.NewClient(client)
	defer boss.Close()
	name := unique()
	w := newWard(t, "sink.url", "kafka://"+address, "sink.topic", name)
	w.well("sink")
	w.sees("kafka replication", Fail, "there is no topic "+name, "--create --topic "+name)
	w.sees("kafka loss", NotChecked, "there is no topic", "")
	compact := "compact"
	_, err = boss.CreateTopic(t.Context(), 1, 1, map[string]*string{"cleanup.policy": &compact}, name)
	w.must(err)
	defer func() { _, _ = boss.DeleteTopics(t.Context(), name) }()
	w.await("the topic", func() bool { return w.look("kafka replication").Status == Warn })
	w.sees("kafka replication", Warn, "has 1 replicas", "three replicas")
	set := func(advice string) {
		t.Helper()
		_, setting, _ := strings.Cut(advice, "--add-config ")
		key, value, _ := strings.Cut(setting, "=")
		_, err := boss.AlterTopicConfigs(t.Context(), []kadm.AlterConfig{{Op: kadm.SetConfig, Name: key, Value: &value}}, name)
		w.must(err)
	}
	set(w.sees("kafka loss", Fail, "is compacted", "cleanup.policy=delete"))
	w.await("the setting", func() bool { return w.look("kafka loss").Status == OK })
	set("--add-config unclean.leader.election.enable=true")
	w.await("the setting", func() bool { return w.look("kafka loss").Status == Fail })
	set(w.sees("kafka loss", Fail, "lacks events", "unclean.leader.election.enable=false"))
	w.await("the setting", func() bool { return w.look("kafka loss").Status == OK })
}

// TestKafkaReplication is about clusters of several brokers, which the test server is not.
func TestKafkaReplication(t *testing.T) {
	for _, c := range []struct {
		replicas int
		insync   string
		want     Status
		advice   string
	}{
		{3, "1", Warn, "min.insync.replicas=2"},
		{3, "2", OK, ""},
		{2, "2", Warn, "three replicas"},
	} {
		f := kafkaReplication(kafkaTopic{name: "orders", replicas: c.replicas, settings: map[string]string{"min.insync.replicas": c.insync}})
		if f.Status != c.want || !strings.Contains(f.Type, c.advice) {
			t.Errorf("%+v: %+v", c, f)
		}
	}
}

func TestPulsar(t *testing.T) {
	address := testserver.Pulsar(t)
	w := newWard(t, "sink.url", address)
	w.well("sink")
	w.sees("pulsar subscriptions", Warn, "deleted at once", "?subscriptions=")
	w.set("sink.url", address+"/public/default?subscriptions=billing")
	w.well("pulsar subscriptions")
	w.sees("pulsar persistence", NotChecked, "no client can see", "get-persistence")
	w.set("sink.topic", "non-persistent://public/default/x")
	w.sees("pulsar persistence", Fail, "not persistent", "sink.topic")
	w.set("sink.topic", "")
}
