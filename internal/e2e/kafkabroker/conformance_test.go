package kafkabroker_test

import (
	"context"
	"errors"
	"net/url"
	"strings"
	"testing"
	"time"

	"github.com/twmb/franz-go/pkg/kadm"
	"github.com/twmb/franz-go/pkg/kgo"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/drivertest"
	"github.com/waybillhq/waybill/broker/kafkabroker"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/internal/testserver/private"
	"github.com/waybillhq/waybill/relay"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// The relay and the inbox detect these interfaces.
var (
	_ relay.OrderedSink     = (*kafkabroker.Sink)(nil)
	_ relay.DestinationSink = (*kafkabroker.Sink)(nil)
	_ broker.Source         = (*kafkabroker.Source)(nil)
)

func open(t *testing.T, address string, cfg kafkabroker.Config) *kafkabroker.Broker {
	t.Helper()
	b, err := kafkabroker.Open(t.Context(), "kafka://"+address, cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	return b
}

func sink(t *testing.T, b *kafkabroker.Broker, cfg kafkabroker.SinkConfig) *kafkabroker.Sink {
	t.Helper()
	s, err := b.Sink(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// plain returns a client that does not depend on Waybill.
func plain(t *testing.T, address string, opts ...kgo.Opt) *kgo.Client {
	t.Helper()
	c, err := kgo.NewClient(append(opts, kgo.SeedBrokers(address))...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(c.Close)
	return c
}

// topic creates topics with an unused name and deletes them at the end of the
// test.
func topic(t *testing.T, client *kgo.Client, partitions int32, config map[string]*string, suffixes ...string) string {
	t.Helper()
	name := "test." + waybill.NewID().String()
	admin := kadm.NewClient(client)
	var all []string
	for _, suffix := range append(suffixes, "") {
		all = append(all, name+suffix)
	}
	made, err := admin.CreateTopics(t.Context(), partitions, 1, config, all...)
	if err == nil {
		err = made.Error()
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _, _ = admin.DeleteTopics(context.WithoutCancel(t.Context()), all...) })
	led(t, admin, int(partitions), all...)
	return name
}

// led waits until every partition of new topics has a leader that answers. The
// cluster reports a topic as created, and lists it, before that.
func led(t *testing.T, admin *kadm.Client, partitions int, topics ...string) {
	t.Helper()
	for deadline := time.Now().Add(time.Minute); ; {
		ends, err := admin.ListEndOffsets(t.Context(), topics...)
		answered := 0
		ends.Each(func(o kadm.ListedOffset) {
			if o.Err == nil {
				answered++
			}
		})
		if answered == partitions*len(topics) {
			return
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d partitions of %v answer: %v, %v", answered, partitions*len(topics), topics, err, ends.Error())
		}
	}
}

// event returns an event for a topic, of an aggregate.
func event(topic, aggregate string) waybill.Delivery {
	ev := waybill.NewEvent("OrderPlaced", 1)
	ev.Topic, ev.AggregateType, ev.AggregateID = topic, "order", aggregate
	return waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1}
}

func TestConformance(t *testing.T) {
	address := testserver.Kafka(t)
	drivertest.Run(t, drivertest.Harness{
		Name: "kafkabroker",
		Capabilities: drivertest.Capabilities{
			Source: true, Outage: true, Restart: true, Secrets: true, MaxPayload: maxPayload, Unroutable: waybill.ClassUnavailable,
		},
		Open: func(t *testing.T) drivertest.Instance {
			if !strings.HasSuffix(t.Name(), "a_restart_loses_nothing") {
				return instance(t, address)
			}
			server := private.Start(t, testserver.KafkaName) // may be killed
			in := instance(t, server.DSN)
			in.Restart = func() {
				if err := errors.Join(server.Kill(t.Context()), server.Restart(t.Context())); err != nil {
					t.Fatal(err)
				}
			}
			return in
		},
	})
}

// maxPayload leaves a part of the topic's limit for headers.
const (
	maxPayload = 90_000
	maxMessage = "100000"
)

// groups returns the groups of the suite's sources, whose dead-letter topics
// must exist.
func groups() []string {
	return []string{"reader", "through", "ordered", "failing", "vanishing", "acks", "grim", "strict", "panicking", "drained", "sums"}
}

func instance(t *testing.T, address string) drivertest.Instance {
	t.Helper()
	// The broker under test connects through a proxy that can be cut; the
	// inspecting client does not.
	cut := newProxy(t, address)
	// Compression would make the large test payload small.
	b := open(t, address, kafkabroker.Config{Options: []kgo.Opt{cut.dial(), kgo.ProducerBatchCompression(kgo.NoCompression())}})
	client := plain(t, address)
	dead := make([]string, 0, len(groups()))
	for _, g := range groups() {
		dead = append(dead, "."+g)
	}
	limit := maxMessage
	name := topic(t, client, 3, map[string]*string{"max.message.bytes": &limit})
	letters := topic(t, client, 1, nil, dead...)
	codec, err := broker.NewCodec(broker.Kafka, broker.CodecConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return drivertest.Instance{
		Topic: name, Sink: sink(t, b, kafkabroker.SinkConfig{}), Codec: codec, Nowhere: name + ".nowhere",
		Source: func(group string, cfg broker.ReceiverConfig) broker.Source {
			s, err := b.Source(kafkabroker.SourceConfig{
				Name: group, Group: name + "." + group, Topics: []string{name}, DeadLetter: letters + "." + group, Receive: cfg,
			})
			if err != nil {
				t.Fatal(err)
			}
			return s
		},
		Read: func(ctx context.Context) ([]broker.Message, error) { return readAll(ctx, address, name) },
		DeadLetters: func(ctx context.Context, group string) ([]broker.Message, error) {
			return readAll(ctx, address, letters+"."+group)
		},
		Publish: func(ctx context.Context, m broker.Message) error {
			r := &kgo.Record{Topic: name, Value: m.Payload}
			for _, h := range m.Headers {
				r.Headers = append(r.Headers, kgo.RecordHeader{Key: h.Name, Value: []byte(h.Value)})
			}
			return client.ProduceSync(ctx, r).FirstErr()
		},
		Break: cut.stop, Heal: cut.start,
		OpenWith: func(ctx context.Context, password string) error {
			u := url.URL{Scheme: "kafka", User: url.UserPassword("user", password), Host: address}
			b, err := kafkabroker.Open(ctx, u.String(), kafkabroker.Config{})
			if err == nil {
				_ = b.Close()
			}
			return err
		},
	}
}

// records returns all records of a topic, in the order of its partitions.
func records(ctx context.Context, address, topic string) ([]*kgo.Record, error) {
	client, err := kgo.NewClient(kgo.SeedBrokers(address), kgo.ConsumeTopics(topic), kgo.ConsumeResetOffset(kgo.NewOffset().AtStart()))
	if err != nil {
		return nil, err
	}
	defer client.Close()
	ends, err := kadm.NewClient(client).ListEndOffsets(ctx, topic)
	if err != nil {
		return nil, err
	}
	left := int64(0)
	ends.Each(func(o kadm.ListedOffset) { left += max(o.Offset, 0) })
	var found []*kgo.Record
	for int64(len(found)) < left {
		fetches := client.PollFetches(ctx)
		if err := fetches.Err(); err != nil {
			return found, err
		}
		found = append(found, fetches.Records()...)
	}
	return found, nil
}

func readAll(ctx context.Context, address, topic string) ([]broker.Message, error) {
	list, err := records(ctx, address, topic)
	found := make([]broker.Message, 0, len(list))
	for _, r := range list {
		m := broker.Message{Topic: topic, Key: string(r.Key), Payload: r.Value}
		for _, h := range r.Headers {
			switch h.Key {
			case "publish_id":
				m.PublishID = string(h.Value)
			case "content-type":
				m.ContentType = string(h.Value)
			}
			m.Headers = append(m.Headers, broker.Header{Name: h.Key, Value: string(h.Value)})
		}
		found = append(found, m)
	}
	return found, err
}
