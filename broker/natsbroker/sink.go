package natsbroker

import (
	"context"
	"fmt"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// Sink publishes what a relay delivers. It may be used by several relays.
type Sink struct {
	b        *Broker
	failures broker.Failures
}

// Sink returns a sink over the connection.
func (b *Broker) Sink() (*Sink, error) { return &Sink{b: b, failures: Failures()}, nil }

// StopsAtFailure tells the relay that one batch may hold several events of an aggregate.
func (*Sink) StopsAtFailure() {}

// Destination tells the relay what waits when a subject has no stream.
func (s *Sink) Destination(ev *waybill.Event) string {
	subject, err := s.b.codec.Topic(ev)
	if err != nil {
		return ""
	}
	return subject
}

// Deliver publishes a batch and waits for the PubAck of each message.
func (s *Sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	return broker.PublishInOrder(batch, func(wave []int, results []error) {
		acks := make([]jetstream.PubAckFuture, len(wave))
		for k, i := range wave {
			acks[k], results[i] = s.publish(ctx, &batch[i])
		}
		for k, i := range wave {
			if acks[k] != nil {
				results[i] = s.confirmed(ctx, acks[k])
			}
		}
	})
}

// publish sends a message on its way.
func (s *Sink) publish(ctx context.Context, d *waybill.Delivery) (jetstream.PubAckFuture, error) {
	if ctx.Err() != nil {
		return nil, waybill.Unavailable(context.Cause(ctx))
	}
	m, err := s.b.codec.Encode(d)
	if err != nil {
		return nil, err
	}
	// The client would find out after it has cut off the connection of all the others.
	if most := s.b.conn.MaxPayload(); most > 0 && int64(m.Size()+headerSlack*len(m.Headers)) > most {
		return nil, waybill.Permanent(fmt.Errorf("natsbroker: event %s takes about %d bytes, and the server at most %d: %w", d.ID, m.Size(), most, nats.ErrMaxPayload))
	}
	msg := toNATS(&m)
	msg.Header[jetstream.ExpectedStreamHeader] = []string{s.b.cfg.Stream}
	// No attempts of its own: they would come behind messages that were published meanwhile. The relay tries again.
	ack, err := s.b.js.PublishMsgAsync(msg, jetstream.WithRetryAttempts(0))
	if err != nil {
		return nil, s.failure(d.ID, err)
	}
	return ack, nil
}

// headerSlack is what a header takes beside its name and value.
const headerSlack = 4

// confirmed waits for a message's PubAck.
func (s *Sink) confirmed(ctx context.Context, ack jetstream.PubAckFuture) error {
	select {
	case <-ack.Ok():
		return nil
	case err := <-ack.Err():
		return s.failure(waybill.ID{}, err)
	case <-ctx.Done():
		return waybill.Unavailable(context.Cause(ctx))
	}
}

func (s *Sink) failure(id waybill.ID, err error) error {
	if !id.IsZero() {
		err = fmt.Errorf("natsbroker: publishing event %s: %w", id, err)
	} else {
		err = fmt.Errorf("natsbroker: publishing: %w", err)
	}
	return s.failures.Classify(err)
}

// toNATS returns the client's form of a message.
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

// fromNATS returns a message as the codec reads it.
func fromNATS(subject string, header nats.Header, data []byte) broker.Message {
	m := broker.Message{Topic: subject, Payload: data, PublishID: header.Get(jetstream.MsgIDHeader), Headers: make([]broker.Header, 0, len(header))}
	for name, values := range header {
		switch name {
		case jetstream.MsgIDHeader, jetstream.ExpectedStreamHeader:
			continue // the server's business, and not to be repeated with a dead letter
		}
		for _, v := range values {
			m.Headers = append(m.Headers, broker.Header{Name: name, Value: v})
		}
	}
	return m
}
