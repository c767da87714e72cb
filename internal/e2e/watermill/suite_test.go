package watermill_test

import (
	"context"
	"errors"
	"testing"
	"time"

	"github.com/ThreeDotsLabs/watermill/message"
	"github.com/ThreeDotsLabs/watermill/pubsub/tests"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/membroker"
	"github.com/waybillhq/waybill/broker/redisbroker"
	"github.com/waybillhq/waybill/broker/watermillbridge"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// carrier is a broker: the destination of a relay, and the source of a group.
type carrier struct {
	sink   waybill.Sink
	source func(group, topic string) (broker.Source, error)
}

// receive makes sources redeliver refused messages quickly, as the suite
// expects.
func receive() broker.ReceiverConfig {
	return broker.ReceiverConfig{BackoffBase: time.Millisecond, BackoffMax: 10 * time.Millisecond}
}

func inMemory(t *testing.T) carrier {
	t.Helper()
	b, err := membroker.New(membroker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	sink, err := b.Sink(membroker.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return carrier{sink: sink, source: func(group, topic string) (broker.Source, error) {
		return b.Source(membroker.SourceConfig{Durable: group + "/" + topic, Topics: []string{topic}, Receive: receive()})
	}}
}

func inRedis(t *testing.T) carrier {
	t.Helper()
	b, err := redisbroker.Open(t.Context(), testserver.Redis(t), redisbroker.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.Close() })
	sink, err := b.Sink(redisbroker.SinkConfig{})
	if err != nil {
		t.Fatal(err)
	}
	return carrier{sink: sink, source: func(group, topic string) (broker.Source, error) {
		return b.Source(redisbroker.SourceConfig{Group: group, Streams: []string{topic}, ClaimIdle: 2 * time.Second, Receive: receive()})
	}}
}

// publisher publishes each call in a transaction of its own, like a service
// that writes nothing else.
type publisher struct {
	box *outbox.Outbox[*memstore.Tx]
	pub *watermillbridge.Publisher
}

func (p publisher) Publish(topic string, messages ...*message.Message) error {
	return p.box.InTx(context.Background(), func(ctx context.Context, _ *memstore.Tx) error {
		for _, msg := range messages {
			msg = msg.Copy()
			msg.SetContext(ctx)
			if err := p.pub.Publish(topic, msg); err != nil {
				return err
			}
		}
		return nil
	})
}

func (p publisher) Close() error { return p.pub.Close() }

// run runs the suite over an outbox, a relay and a broker.
func run(t *testing.T, c carrier, features tests.Features, event func(topic string, msg *message.Message) (waybill.Event, error)) {
	t.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	pub, err := watermillbridge.NewPublisher(box, watermillbridge.PublisherConfig{Event: event})
	if err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(db, c.sink, relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	ran := make(chan error, 1)
	go func() { ran <- r.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-ran; err != nil && !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	})
	group := func(t *testing.T, name string) (message.Publisher, message.Subscriber) {
		t.Helper()
		sub, err := watermillbridge.NewSubscriber(func(topic string) (broker.Source, error) { return c.source(name, topic) }, watermillbridge.SubscriberConfig{})
		if err != nil {
			t.Fatal(err)
		}
		return publisher{box, pub}, sub
	}
	tests.TestPubSub(t, features, func(t *testing.T) (message.Publisher, message.Subscriber) {
		t.Helper()
		return group(t, "suite")
	}, group)
}

// TestWatermillsSuite: the bridge satisfies Watermill's requirements of a
// Pub/Sub. Messages without an aggregate have no order; delivery is at least
// once. The test that restarts the broker is skipped: the suites of the brokers
// cover that.
func TestWatermillsSuite(t *testing.T) {
	for name, open := range map[string]func(*testing.T) carrier{"memory": inMemory, "redis": inRedis} {
		t.Run(name, func(t *testing.T) {
			run(t, open(t), tests.Features{ConsumerGroups: true, Persistent: true, ForceShort: true}, nil)
		})
	}
}

// TestWatermillsSuiteInOrder: messages of one aggregate are ordered, with one
// subscriber at a time, and the next message is delivered after the last one is
// acknowledged.
func TestWatermillsSuiteInOrder(t *testing.T) {
	event := func(topic string, msg *message.Message) (waybill.Event, error) {
		ev, err := watermillbridge.EventOf(topic, msg)
		ev.AggregateType, ev.AggregateID = "topic", topic
		return ev, err
	}
	run(t, inMemory(t), tests.Features{
		ConsumerGroups: true, Persistent: true, ForceShort: true, GuaranteedOrder: true, GuaranteedOrderWithSingleSubscriber: true,
	}, event)
}
