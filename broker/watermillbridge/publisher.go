package watermillbridge

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

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

// EventOf makes an event of a message.
//
// A message with CloudEvents metadata, as [Sink] makes them, becomes the same
// event again if its UUID belongs to that event: the UUID is the event's id,
// its publish id, or the UUID that the event has in the header
// "watermill_uuid". A message with such metadata and another UUID is a new
// event: a handler has copied the metadata of the message that it consumed. So
// is a message that Watermill's poison queue publishes. The new event keeps type, aggregate, tenant, headers and whatever else the
// metadata say, but it goes to the topic of the call, and it has no id, time,
// position, replay number, dedup key and delay of the old event.
//
// Any other message has the topic as its type and topic, the metadata as its
// headers, and the UUID in the header "watermill_uuid": [Sink] and [Subscriber]
// make a message with that UUID and these metadata again. The metadata
// "aggregatetype", "aggregateid" and "tenantid" are the event's, so that
// messages of one aggregate keep their order. The metadata "content-type" is
// the event's content type if the payload conforms to it.
//
// The UUID of a new event's message is the event's id if it is one of
// Waybill's.
func EventOf(topic string, msg *message.Message) (waybill.Event, error) {
	if msg.Metadata.Get(attrSpecVersion) == "" {
		return plainEvent(topic, msg), nil
	}
	codec, err := newCodec("", nil)
	if err != nil {
		return waybill.Event{}, err
	}
	m := incoming(topic, msg)
	switch same := sameEvent(m, msg.UUID); {
	case !same:
		return newEvent(codec, m, msg)
	case msg.Metadata.Get(reasonPoisoned) != "":
		ev, err := newEvent(codec, m, msg)
		ev.ID = waybill.ID{} // the event that failed has it
		return ev, err
	}
	d, err := codec.Decode(m)
	return d.Event, err
}

// reasonPoisoned is the metadata entry that Watermill's poison queue adds to a
// message before it publishes the message to another topic.
const reasonPoisoned = "reason_poisoned"

// plainEvent makes an event of a message without CloudEvents metadata.
func plainEvent(topic string, msg *message.Message) waybill.Event {
	ev := waybill.Event{Type: topic, Topic: topic, Payload: msg.Payload, Headers: map[string]string{}}
	ev.ContentType = contentType(msg.Metadata, msg.Payload)
	for name, value := range msg.Metadata {
		if name == headerContentType && value == ev.ContentType {
			continue // the event's own field holds it
		}
		setHeader(&ev, name, value)
	}
	ev.ID = idOf(msg)
	if msg.UUID != "" {
		ev.Headers[headerUUID] = msg.UUID
	}
	return ev
}

// newEvent makes a new event of a message with the metadata of another one.
func newEvent(codec *broker.Codec, m *broker.Message, msg *message.Message) (waybill.Event, error) {
	own := map[string]string{}
	kept := []broker.Header{{Name: attrID, Value: waybill.NewID().String()}}
	for _, h := range m.Headers {
		switch {
		case slices.Contains(attrsOfOneEvent, h.Name) || strings.EqualFold(h.Name, headerContentType):
		case readByCodec(h.Name):
			kept = append(kept, h)
		default:
			own[h.Name] = h.Value
		}
	}
	m.Headers, m.ContentType = kept, contentType(msg.Metadata, msg.Payload)
	d, err := codec.Decode(m)
	if err != nil {
		return waybill.Event{}, err
	}
	ev := d.Event
	ev.ID, ev.OccurredAt, ev.Topic = idOf(msg), time.Time{}, m.Topic
	if ev.Headers == nil {
		ev.Headers = map[string]string{}
	}
	for name, value := range own {
		setHeader(&ev, name, value)
	}
	delete(ev.Headers, headerUUID)
	if msg.UUID != "" {
		ev.Headers[headerUUID] = msg.UUID
	}
	return ev, nil
}

// setHeader gives an event one entry of the metadata.
func setHeader(ev *waybill.Event, name, value string) {
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

// idOf returns the id of a new event: the message's UUID, or none if that is no
// id of Waybill's.
func idOf(msg *message.Message) waybill.ID {
	id, err := waybill.ParseID(msg.UUID)
	if err != nil {
		return waybill.ID{}
	}
	return id
}

// sameEvent reports whether a message with this UUID is the event that its
// attributes name.
func sameEvent(m *broker.Message, uuid string) bool {
	if uuid == "" {
		return false
	}
	replay := ""
	if n := m.Header(attrReplay); n != "" {
		replay = "-r" + n // as broker.PublishID writes it
	}
	for _, id := range []string{m.Header(attrID), m.Header(broker.Kafka.UserHeader(headerUUID))} {
		if id != "" && (uuid == id || uuid == id+replay) {
			return true
		}
	}
	return false
}

// contentType returns what the metadata say that the payload is. A type to
// which the payload does not conform would make every write of the event fail;
// the event then has another one. So it has in place of the type of structured
// CloudEvents: a reader would take the event out of the payload.
func contentType(metadata message.Metadata, payload []byte) string {
	names := slices.Sorted(maps.Keys(metadata))
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.EqualFold(name, headerContentType) })
	for _, name := range slices.Backward(names) { // the name in lower case counts first
		given := metadata[name]
		if given != "" && !broker.IsStructured(given) && (waybill.Event{Type: "any", ContentType: given, Payload: payload}).Validate() == nil {
			return given
		}
	}
	if json.Valid(payload) {
		return waybill.JSON
	}
	return "application/octet-stream"
}
