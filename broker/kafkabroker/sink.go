package kafkabroker

import (
	"context"

	"github.com/twmb/franz-go/pkg/kgo"

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
}

// Sink publishes events as records. It is safe for concurrent use.
type Sink struct {
	b     *Broker
	codec *broker.Codec
	table driver.Failures
}

// Sink returns a sink.
func (b *Broker) Sink(cfg SinkConfig) (*Sink, error) {
	codec, err := driver.SinkCodec("kafkabroker", broker.Kafka, cfg.EventSource, names.Checked(cfg.Topics))
	if err != nil {
		return nil, err
	}
	return &Sink{b: b, codec: codec, table: Failures()}, nil
}

// StopsAtFailure implements relay.OrderedSink.
func (*Sink) StopsAtFailure() {}

// Destination implements relay.DestinationSink: each topic is a destination.
func (s *Sink) Destination(ev *waybill.Event) string { return driver.Destination(s.codec, ev) }

// Deliver implements waybill.Sink.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return driver.PublishInOrder(batch, func(wave []int, results []error) { s.wave(ctx, batch, wave, results) })
}

// wave publishes events of different aggregates.
func (s *Sink) wave(ctx context.Context, batch []waybill.Delivery, wave []int, results []error) {
	messages, places := make([]broker.Message, 0, len(wave)), make([]int, 0, len(wave))
	for i, m := range driver.Encoded(s.codec, batch, wave, results) {
		messages, places = append(messages, m), append(places, i)
	}
	if len(messages) == 0 {
		return
	}
	out := records(messages)
	for n, err := range s.b.batches.publish(ctx, out) {
		if isBatchRejected(err) {
			err = s.b.publishAlone(ctx, out[n])
		}
		if err != nil {
			results[places[n]] = s.table.EventError("kafkabroker", s.b.url, &batch[places[n]].Event, err)
		}
	}
}

// publishAlone publishes a record from a rejected batch whose faulty record is
// unknown. No other record is in flight, so the result belongs to this record.
func (b *Broker) publishAlone(ctx context.Context, r *kgo.Record) error {
	select {
	case b.turn <- struct{}{}:
		defer func() { <-b.turn }()
	case <-ctx.Done():
		return context.Cause(ctx)
	}
	again := kgo.Record{Topic: r.Topic, Key: r.Key, Headers: r.Headers, Value: r.Value}
	if failed := b.singles.publish(ctx, []*kgo.Record{&again}); failed != nil {
		return failed[0]
	}
	return nil
}

// records converts messages for the client. The headers of all records share
// two allocations, because each message has about a dozen.
func records(messages []broker.Message) []*kgo.Record {
	headers, size := 0, 0
	for n := range messages {
		m := &messages[n]
		headers += len(m.Headers) + 1
		size += m.Size() - len(m.Payload)
	}
	list, out := make([]kgo.Record, len(messages)), make([]*kgo.Record, len(messages))
	pool, text := make([]kgo.RecordHeader, 0, headers), make([]byte, 0, size)
	bytes := func(s string) []byte {
		start := len(text)
		text = append(text, s...)
		return text[start:len(text):len(text)]
	}
	for n := range messages {
		m, r := &messages[n], &list[n]
		r.Topic, r.Value = m.Topic, m.Payload
		if r.Value == nil {
			// A nil value would delete the key from a compacted topic.
			r.Value = []byte{}
		}
		if m.Key != "" {
			r.Key = bytes(m.Key) // a nil key selects any partition
		}
		start := len(pool)
		for _, h := range m.Headers {
			pool = append(pool, kgo.RecordHeader{Key: h.Name, Value: bytes(h.Value)})
		}
		if m.PublishID != "" {
			pool = append(pool, kgo.RecordHeader{Key: broker.HeaderPublishID, Value: bytes(m.PublishID)})
		}
		r.Headers = pool[start:len(pool):len(pool)]
		out[n] = r
	}
	return out
}
