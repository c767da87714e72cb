package natsbroker

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/driver"
)

// SinkConfig configures a [Sink]. The zero value is valid.
type SinkConfig struct {
	// EventSource is the CloudEvents attribute source. Defaults to "waybill".
	EventSource string
	// Topics returns the subject of an event. Defaults to the event's Topic.
	// See [Names] for templates.
	Topics broker.Topics
}

// Sink publishes the relay's deliveries. Several relays may share it.
type Sink struct {
	b        *Broker
	codec    *broker.Codec
	failures driver.Failures
}

// Sink returns a sink that uses the connection.
func (b *Broker) Sink(cfg SinkConfig) (*Sink, error) {
	codec, err := driver.SinkCodec("natsbroker", broker.NATS, cfg.EventSource, topics(cfg.Topics))
	if err != nil {
		return nil, err
	}
	return &Sink{b: b, codec: codec, failures: Failures()}, nil
}

// StopsAtFailure implements relay.OrderedSink: a batch may hold several events
// of an aggregate.
func (*Sink) StopsAtFailure() {}

// Destination implements relay.DestinationSink: each subject is a destination.
func (s *Sink) Destination(ev *waybill.Event) string { return driver.Destination(s.codec, ev) }

// Deliver publishes a batch and waits for the PubAck of each message.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return driver.PublishInOrder(batch, func(wave []int, results []error) {
		acks := make([]jetstream.PubAckFuture, len(wave))
		for k, i := range wave {
			acks[k], results[i] = s.publish(ctx, &batch[i])
		}
		for k, i := range wave {
			if acks[k] != nil {
				results[i] = s.confirmed(ctx, &batch[i].Event, acks[k])
			}
		}
	})
}

// publish sends a message without waiting for its PubAck.
func (s *Sink) publish(ctx context.Context, d *waybill.Delivery) (jetstream.PubAckFuture, error) {
	if ctx.Err() != nil {
		return nil, waybill.Unavailable(context.Cause(ctx))
	}
	m, err := s.codec.Encode(d)
	if err != nil {
		return nil, err
	}
	// The client would notice only after the connection, with all other
	// messages, was cut.
	if limit := s.b.conn.MaxPayload(); limit > 0 && int64(m.Size()+headerSlack*len(m.Headers)) > limit {
		return nil, waybill.Permanent(fmt.Errorf("natsbroker: event %s: about %d bytes, at most %d: %w", d.ID, m.Size(), limit, nats.ErrMaxPayload))
	}
	msg := toNATS(&m)
	msg.Header[jetstream.ExpectedStreamHeader] = []string{s.b.cfg.Stream}
	// The client must not retry: its retries would come behind messages that
	// were published in the meantime. The relay retries.
	ack, err := s.b.js.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return nil, s.failures.EventError("natsbroker", "", &d.Event, err)
	}
	return ack, nil
}

// headerSlack is the overhead of a header in addition to its name and value.
const headerSlack = 4

// confirmed waits for the PubAck of a message.
func (s *Sink) confirmed(ctx context.Context, ev *waybill.Event, ack jetstream.PubAckFuture) error {
	select {
	case <-ack.Ok():
		return nil
	case err := <-ack.Err():
		return s.failures.EventError("natsbroker", "", ev, err)
	case <-ctx.Done():
		return waybill.Unavailable(context.Cause(ctx))
	}
}

// toNATS converts a message to the client's form.
func toNATS(m *broker.Message) *nats.Msg {
	header := make(nats.Header, len(m.Headers)+2)
	values := make([]string, len(m.Headers)) // one allocation for all
	for i, h := range m.Headers {
		values[i] = h.Value
		header[h.Name] = values[i : i+1 : i+1]
	}
	if m.PublishID != "" {
		header[jetstream.MsgIDHeader] = []string{m.PublishID}
	}
	return &nats.Msg{Subject: m.Topic, Header: header, Data: m.Payload}
}

// fromNATS converts a message for the codec.
func fromNATS(subject string, header nats.Header, data []byte) broker.Message {
	m := broker.Message{Topic: subject, Payload: data, PublishID: header.Get(jetstream.MsgIDHeader), Headers: make([]broker.Header, 0, len(header))}
	for name, values := range header {
		switch name {
		case jetstream.MsgIDHeader, jetstream.ExpectedStreamHeader:
			continue // set by the server; not copied to a dead letter
		}
		for _, v := range values {
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: v})
		}
	}
	return m
}
