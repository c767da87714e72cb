package watermillbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// Outbox is as much of an outbox as the publisher needs; *outbox.Outbox is one.
type Outbox interface {
	// Emit writes events into the transaction of the context; without one it is [waybill.ErrNoTx].
	Emit(ctx context.Context, evs ...waybill.Event) error
}

// PublisherConfig holds what may be tuned. A field that is zero has its default.
type PublisherConfig struct {
	// Event makes an event of a message. Defaults to [EventOf].
	Event func(topic string, msg *message.Message) (waybill.Event, error)
}

// Publisher is the outbox as a message.Publisher: what is published is written into the transaction of the messages' context.
type Publisher struct {
	box Outbox
	cfg PublisherConfig
}

// NewPublisher returns a publisher over an outbox.
func NewPublisher(box Outbox, cfg PublisherConfig) (*Publisher, error) {
	if box == nil {
		return nil, errors.New("watermillbridge: no outbox")
	}
	if cfg.Event == nil {
		cfg.Event = EventOf
	}
	return &Publisher{box: box, cfg: cfg}, nil
}

// Publish implements message.Publisher: it writes all messages, or none, into the transaction of the first one's context, which
// [message.Message.SetContext] puts there and Watermill's router passes on. Outside a transaction it is [waybill.ErrNoTx]: published outside one,
// a message would be what the outbox is there to prevent. They are delivered if that transaction commits.
func (p *Publisher) Publish(topic string, messages ...*message.Message) error {
	if len(messages) == 0 {
		return nil
	}
	evs := make([]waybill.Event, len(messages))
	for i, msg := range messages {
		ev, err := p.cfg.Event(topic, msg)
		if err != nil {
			return fmt.Errorf("watermillbridge: message %s: %w", msg.UUID, err)
		}
		evs[i] = ev
	}
	return p.box.Emit(messages[0].Context(), evs...)
}

// Close implements message.Publisher. There is nothing to close: the outbox is the caller's.
func (p *Publisher) Close() error { return nil }

// EventOf makes an event of a message. One with CloudEvents metadata, as [Sink] makes them, becomes
// the same event again. Any other has the topic as its type and topic, the metadata as its headers,
// and the UUID in the header "watermill_uuid": [Sink] and [Subscriber] make a message with that
// UUID and these metadata again. The UUID is the event's id, too, if it is one of Waybill's; the
// metadata "aggregatetype", "aggregateid" and "tenantid" are the event's, so that messages of one
// aggregate keep their order.
func EventOf(topic string, msg *message.Message) (waybill.Event, error) {
	if msg.Metadata.Get(broker.Kafka.Attribute("specversion")) != "" {
		codec, err := newCodec("", nil)
		if err != nil {
			return waybill.Event{}, err
		}
		d, err := codec.Decode(incoming(topic, msg))
		return d.Event, err
	}
	ev := waybill.Event{Type: topic, Topic: topic, Payload: msg.Payload, ContentType: "application/octet-stream", Headers: map[string]string{}}
	if json.Valid(msg.Payload) {
		ev.ContentType = waybill.JSON
	}
	for name, value := range msg.Metadata {
		switch strings.ToLower(name) {
		case "aggregatetype":
			ev.AggregateType = value
		case "aggregateid":
			ev.AggregateID = value
		case "tenantid":
			ev.TenantID = value
		}
		ev.Headers[name] = value
	}
	if id, err := waybill.ParseID(msg.UUID); err == nil {
		ev.ID = id
	}
	if msg.UUID != "" {
		ev.Headers[headerUUID] = msg.UUID
	}
	return ev, nil
}

// incoming returns a Watermill message as the codec reads it.
func incoming(topic string, msg *message.Message) *broker.Message {
	m := &broker.Message{PublishID: msg.UUID, Topic: topic, ContentType: msg.Metadata.Get("content-type"), Payload: msg.Payload}
	for name, value := range msg.Metadata {
		m.Headers = append(m.Headers, broker.Header{Name: name, Value: value})
	}
	return m
}
