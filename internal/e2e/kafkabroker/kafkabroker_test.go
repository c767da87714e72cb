package kafkabroker_test

import (
	"context"
	"crypto/tls"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kerr"
	"github.com/twmb/franz-go/pkg/kfake"
	"github.com/twmb/franz-go/pkg/kgo"
	"github.com/twmb/franz-go/pkg/kmsg"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/kafkabroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
)

func noDeadLetters() kfake.Fault {
	return kfake.Fault{Keys: []kmsg.Key{kmsg.Produce}, Topic: "orders.dead", Err: kerr.TopicAuthorizationFailed, Count: -1}
}

// kcat shows key, ids, headers and payload as documented.
func TestKcatReadsIt(t *testing.T) {
	address := testserver.Kafka(t)
	kcat := testserver.Shell(t, "kcat")
	name := topic(t, plain(t, address), 1, nil)
	d := event(name, "A-1")
	d.TenantID, d.Headers, d.Replay = "acme", map[string]string{"color": "red"}, 1
	s := sink(t, open(t, address, kafkabroker.Config{}), kafkabroker.SinkConfig{EventSource: "/shop"})
	if err := s.Deliver(t.Context(), []waybill.Delivery{d})[0]; err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	out, err := exec.CommandContext(ctx, kcat, "-C", "-q", "-b", address, "-t", name, "-o", "beginning", "-c", "1", "-f", `%k\n%s\n%h\n`).Output() //nolint:gosec // a test's own
	if err != nil {
		t.Fatal(err)
	}
	lines := strings.Split(string(out), "\n")
	if len(lines) < 3 || lines[0] != "acme/order/A-1" || lines[1] != "1" {
		t.Fatalf("kcat shows\n%s", out)
	}
	headers := map[string]string{}
	for pair := range strings.SplitSeq(lines[2], ",") {
		name, value, _ := strings.Cut(pair, "=")
		headers[name] = value
	}
	for name, want := range map[string]string{
		"ce_id": d.ID.String(), "ce_type": "OrderPlaced", "ce_source": "/shop", "ce_specversion": "1.0", "ce_subject": "A-1", "ce_aggregateid": "A-1",
		"ce_tenantid": "acme", "waybill_color": "red", "content-type": "application/json", "publish_id": d.ID.String() + "-r1",
	} {
		if headers[name] != want {
			t.Errorf("%s is %q, want %q", name, headers[name], want)
		}
	}
}

// Sinks and sources create missing topics if configured.
func TestAutoCreate(t *testing.T) {
	address := testserver.Kafka(t)
	b := open(t, address, kafkabroker.Config{Create: true})
	name := "test." + waybill.NewID().String()
	d := event(name, "a")
	insist(t, sink(t, b, kafkabroker.SinkConfig{}), d)
	src, err := b.Source(kafkabroker.SourceConfig{Group: name, Topics: []string{name}, Receive: broker.ReceiverConfig{ReconnectMax: 200 * time.Millisecond}})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	c := &consumer{}
	ended := make(chan error, 1)
	go func() { ended <- src.Run(ctx, c) }()
	await(t, "delivery", func() bool { return len(c.ids()) == 1 })
	cancel()
	if err := <-ended; err != nil {
		t.Error(err)
	}
}

// A missing topic does not affect another topic.
func TestAMissingTopicIsDownByItself(t *testing.T) {
	_, address := fake(t)
	s := sink(t, open(t, address, kafkabroker.Config{}), kafkabroker.SinkConfig{})
	a, b := event("nowhere", "a"), event("orders", "a")
	results := s.Deliver(t.Context(), []waybill.Delivery{a, b, event("orders", "b")})
	if classOf(results[0]) != waybill.ClassUnavailable || results[2] != nil {
		t.Errorf("results %v", results)
	}
	if s.Destination(&a.Event) == s.Destination(&b.Event) {
		t.Error("both have one destination")
	}
}

func TestConfigs(t *testing.T) {
	_, address := fake(t)
	b := open(t, address, kafkabroker.Config{})
	_, err := b.Source(kafkabroker.SourceConfig{Topics: []string{"a b"}, SessionTimeout: -1, Receive: broker.ReceiverConfig{Workers: -1}})
	says(t, err, "kafkabroker: SourceConfig.Group: empty\nSourceConfig.Topics: \"a b\" has an invalid character\n"+
		"SourceConfig.SessionTimeout: -1ns is less than 1s\nReceiverConfig.Workers: -1 is negative")
	_, err = b.Source(kafkabroker.SourceConfig{Group: "g", Topics: []string{"a"}, DeadLetter: "a b", SessionTimeout: -1})
	says(t, err, "kafkabroker: SourceConfig.DeadLetter: \"a b\" has an invalid character\nSourceConfig.SessionTimeout: -1ns is less than 1s")
	_, err = b.Sink(kafkabroker.SinkConfig{EventSource: "a b"})
	says(t, err, "kafkabroker: SinkConfig.EventSource: not a URI reference of at most 512 printable ASCII characters")
	if _, err := b.Source(kafkabroker.SourceConfig{Group: "x", Topics: []string{"a", "b"}, DeadLetter: "b"}); err == nil {
		t.Error("a source that reads its own dead letters")
	}
	_, err = kafkabroker.Open(t.Context(), "kafka://"+address, kafkabroker.Config{PublishTimeout: 1, MaxMessageBytes: 1})
	says(t, err, "kafkabroker: Config.PublishTimeout: 1ns is less than 2s\nConfig.MaxMessageBytes: 1 is less than 1024")
	for _, bad := range []string{
		"", "nats://h", "kafka://", "kafka://a,,b", "kafka://u:canary@[bad", "kafka://h/topic", "kafka://h?tls=canary", "kafka://h?sasl=plain",
		"kafka://u:canary@h?sasl=gssapi", "kafka://h?password=canary", "kafka://u:can%ary@h", "kafka://h:9092:9093",
	} {
		if _, err := kafkabroker.Open(t.Context(), bad, kafkabroker.Config{}); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%q: %v", bad, err)
		}
	}
}

// One reachable host of several is enough.
func TestSeveralHosts(t *testing.T) {
	_, address := fake(t)
	open(t, "127.0.0.1:1,"+address, kafkabroker.Config{})
}

func says(t *testing.T, err error, want string) {
	t.Helper()
	if err == nil || err.Error() != want {
		t.Errorf("the error is %v, want %s", err, want)
	}
}

// New uses the address and options of the caller's client, and works after the
// client is closed.
func TestNew(t *testing.T) {
	_, address := fake(t)
	newClient := func(opts ...kgo.Opt) *kgo.Client {
		client, err := kgo.NewClient(append(opts, kgo.SeedBrokers(address), kgo.ClientID("shop"))...)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(client.Close)
		return client
	}
	client := newClient()
	b, err := kafkabroker.New(client, kafkabroker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	client.Close()
	t.Cleanup(func() { _ = b.Close() })
	s, err := b.Sink(kafkabroker.SinkConfig{Topics: broker.OneTopic("orders")})
	if err != nil {
		t.Fatal(err)
	}
	d := waybill.Delivery{Event: eventfill.Defaults(waybill.NewEvent("x", 1)), Attempt: 1}
	if err := s.Deliver(t.Context(), []waybill.Delivery{d})[0]; err != nil {
		t.Error(err)
	}
	for _, tc := range []struct {
		client *kgo.Client
		want   string
	}{
		{newClient(kgo.ConsumerGroup("g"), kgo.ConsumeTopics("orders")), "it has the consumer group or transactional id g; want a client without"},
		{newClient(kgo.TransactionalID("x")), "it has the consumer group or transactional id x; want a client without"},
		{newClient(kgo.ConsumeTopics("orders")), "it consumes topics; want a client without topics"},
		{newClient(kgo.ConsumePartitions(map[string]map[int32]kgo.Offset{"orders": {0: kgo.NewOffset()}})), "it consumes topics; want a client without topics"},
		{nil, "nil"},
	} {
		_, err := kafkabroker.New(tc.client, kafkabroker.Config{})
		says(t, err, "kafkabroker: client: "+tc.want)
	}
	_, err = kafkabroker.New(newClient(), kafkabroker.Config{PublishTimeout: 1, TLS: &tls.Config{MinVersion: tls.VersionTLS13}, Options: []kgo.Opt{kgo.ClientID("x")}})
	says(t, err, "kafkabroker: Config.PublishTimeout: 1ns is less than 2s\nConfig.TLS: not nil, but New uses the caller's client\n"+
		"Config.Options: not empty, but New uses the caller's client")
}
