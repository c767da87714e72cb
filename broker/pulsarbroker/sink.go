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
)

// SinkConfig holds what may be tuned; its zero value is ready.
type SinkConfig struct {
	// Source is the CloudEvents attribute of that name. Defaults to "waybill".
	EventSource string
	// Topics says to which topic an event goes. Defaults to its Topic.
	Topics broker.Topics
	// Subscriptions are made on every topic before the first event goes there. Pulsar keeps nothing for those who come later: without a subscription, or
	// a retention policy, it may delete at once what it has confirmed.
	Subscriptions []string
	// Batch sends messages of different keys as one, which is quicker. Only where nobody has a subscription of type Key_Shared, which hands out a
	// batch as a whole; and a batch is delivered again as a whole.
	Batch bool
	// MaxProducers is how many topics have a producer at a time. Defaults to 256.
	MaxProducers int
}

// Sink publishes events. It is safe for concurrent use.
type Sink struct {
	b     *Broker
	codec *broker.Codec
	table broker.Failures
	pool  *producers
}

// Sink returns a sink.
func (b *Broker) Sink(cfg SinkConfig) (*Sink, error) {
	if cfg.MaxProducers < 0 || slices.Contains(cfg.Subscriptions, "") {
		return nil, errors.New("pulsarbroker: fields MaxProducers and Subscriptions: not negative, and no empty name")
	}
	if cfg.MaxProducers == 0 {
		cfg.MaxProducers = 256
	}
	cfg.Subscriptions = slices.Clone(cfg.Subscriptions)
	codec, err := broker.NewCodec(broker.Pulsar, broker.CodecConfig{Source: cfg.EventSource, Topics: b.topics(cfg.Topics)})
	if err != nil {
		return nil, err
	}
	return &Sink{b: b, codec: codec, table: Failures(), pool: b.newProducers(cfg)}, nil
}

// StopsAtFailure implements relay.OrderedSink.
func (*Sink) StopsAtFailure() {}

// Destination implements relay.DestinationSink: topics are told apart.
func (s *Sink) Destination(ev *waybill.Event) string {
	topic, err := s.codec.Topic(ev)
	if err != nil {
		return ""
	}
	return topic
}

// Deliver implements relay.Sink.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return broker.PublishInOrder(batch, func(wave []int, results []error) { s.wave(ctx, batch, wave, results) })
}

// outgoing is what goes to one topic.
type outgoing struct {
	indices  []int
	messages []*pulsar.ProducerMessage
}

// wave publishes events of different aggregates. A topic that fails, or is slow, keeps no other waiting.
func (s *Sink) wave(ctx context.Context, batch []waybill.Delivery, wave []int, results []error) {
	ctx, cancel := s.b.timeout(ctx)
	defer cancel()
	topics := make(map[string]*outgoing, 1)
	encoder := s.codec.Encoder(len(wave))
	for _, i := range wave {
		m, err := encoder.Encode(&batch[i])
		if err != nil {
			results[i] = err
			continue
		}
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
					results[i] = s.b.hide(s.table.Classify(fmt.Errorf("pulsarbroker: event %s: %w", batch[i].ID, err)))
				}
			}
		})
	}
	sending.Wait()
}

// publishing returns a message as the client sends it.
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
