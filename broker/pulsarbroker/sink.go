package pulsarbroker

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/apache/pulsar-client-go/pulsar"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// SinkConfig configures a [Sink]. The zero value is valid.
type SinkConfig struct {
	// EventSource is the CloudEvents attribute source. Defaults to "waybill".
	EventSource string
	// Topics returns the topic of an event. Defaults to the event's Topic.
	Topics broker.Topics
	// Subscriptions are created on every topic before the first event is
	// published to it. Pulsar keeps no messages for later subscriptions:
	// without a subscription or a retention policy it may delete a confirmed
	// message at once. Defaults to none.
	Subscriptions []string
	// Batching sends messages of different keys as one, which is faster. Do not
	// use it with subscriptions of type Key_Shared, which assign a batch as a
	// whole. A batch is also redelivered as a whole. Defaults to false.
	Batching bool
	// MaxProducers is the maximum number of topics with an open producer.
	// Defaults to 256.
	MaxProducers int
}

// Sink publishes events. It is safe for concurrent use.
type Sink struct {
	b     *Broker
	codec *broker.Codec
	table driver.Failures
	pool  *producers
}

// Sink returns a sink.
func (b *Broker) Sink(cfg SinkConfig) (*Sink, error) {
	var errs []error
	if err := driver.CheckEventSource(cfg.EventSource); err != nil {
		errs = append(errs, fmt.Errorf("SinkConfig.EventSource: %w", err))
	}
	if slices.Contains(cfg.Subscriptions, "") {
		errs = append(errs, errors.New("SinkConfig.Subscriptions: empty name"))
	}
	if cfg.MaxProducers < 0 {
		errs = append(errs, fmt.Errorf("SinkConfig.MaxProducers: %d is negative", cfg.MaxProducers))
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("pulsarbroker: %w", err)
	}
	if cfg.MaxProducers == 0 {
		cfg.MaxProducers = 256
	}
	cfg.Subscriptions = slices.Clone(cfg.Subscriptions)
	codec, err := broker.NewCodec(broker.Pulsar, broker.CodecConfig{EventSource: cfg.EventSource, Topics: b.topics(cfg.Topics)})
	if err != nil {
		return nil, err
	}
	return &Sink{b: b, codec: codec, table: Failures(), pool: b.newProducers(cfg)}, nil
}

// StopsAtFailure implements relay.OrderedSink.
func (*Sink) StopsAtFailure() {}

// Destination implements relay.DestinationSink: each topic is a destination.
func (s *Sink) Destination(ev *waybill.Event) string { return driver.Destination(s.codec, ev) }

// Deliver implements waybill.Sink.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return driver.PublishInOrder(batch, func(wave []int, results []error) { s.wave(ctx, batch, wave, results) })
}

// outgoing holds the messages for one topic.
type outgoing struct {
	indices  []int
	messages []*pulsar.ProducerMessage
}

// wave publishes events of different aggregates. A failed or slow topic does
// not delay the others.
func (s *Sink) wave(ctx context.Context, batch []waybill.Delivery, wave []int, results []error) {
	ctx, cancel := s.b.timeout(ctx)
	defer cancel()
	topics := make(map[string]*outgoing, 1)
	for i, m := range driver.Encoded(s.codec, batch, wave, results) {
		out := topics[m.Topic]
		if out == nil {
			out = &outgoing{}
			topics[m.Topic] = out
		}
		out.indices, out.messages = append(out.indices, i), append(out.messages, publishing(&m, batch[i].OccurredAt))
	}
	var sending sync.WaitGroup
	for topic, out := range topics {
		sending.Go(func() {
			for n, err := range s.pool.send(ctx, topic, out.messages) {
				if err != nil {
					i := out.indices[n]
					results[i] = s.table.EventError("pulsarbroker", s.b.url, &batch[i].Event, err)
				}
			}
		})
	}
	sending.Wait()
}

// publishing converts a message for the client.
func publishing(m *broker.Message, at time.Time) *pulsar.ProducerMessage {
	properties := make(map[string]string, len(m.Headers)+1)
	for _, h := range m.Headers {
		properties[h.Name] = h.Value
	}
	if m.PublishID != "" {
		properties[broker.HeaderPublishID] = m.PublishID
	}
	return &pulsar.ProducerMessage{Payload: m.Payload, Key: m.Key, Properties: properties, EventTime: at}
}
