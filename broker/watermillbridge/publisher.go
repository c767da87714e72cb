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

// Outbox is the part of an outbox that the publisher needs; *outbox.Outbox
// implements it.
type Outbox interface {
	// Emit writes events into the transaction of the context. Without a
	// transaction it returns [waybill.ErrNoTx].
	Emit(ctx context.Context, evs ...waybill.Event) error
}

// PublisherConfig configures a [Publisher]. Zero fields have their defaults.
type PublisherConfig struct {
	// Event returns the event for a message. Defaults to [EventOf].
	Event func(topic string, msg *message.Message) (waybill.Event, error)
}

// Publisher is the outbox as a message.Publisher: messages are written into the
// transaction of their context.
type Publisher struct {
	box Outbox
	cfg PublisherConfig
}

// NewPublisher returns a publisher over an outbox.
func NewPublisher(box Outbox, cfg PublisherConfig) (*Publisher, error) {
	if box == nil {
		return nil, errors.New("watermillbridge: outbox: nil")
	}
	if cfg.Event == nil {
		cfg.Event = EventOf
	}
	return &Publisher{box: box, cfg: cfg}, nil
}

// Publish implements message.Publisher: it writes all messages, or none, into
// the transaction of the first message's context, which
// [message.Message.SetContext] sets and Watermill's router passes on. The
// messages are delivered if that transaction commits. Outside a transaction
// Publish returns [waybill.ErrNoTx], because the message would not be atomic
// with any change.
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

// Close implements message.Publisher. It does nothing: the outbox belongs to
// the caller.
func (p *Publisher) Close() error { return nil }

// EventOf returns the event for a message.
//
// A message with CloudEvents metadata, as [Sink] makes them, becomes the same
// event again if its UUID belongs to that event: the UUID is the event's id,
// its publish id, or the UUID in the event's header "watermill_uuid". A message
// with such metadata and another UUID is a new event: a handler has copied the
// metadata of a consumed message. A message from Watermill's poison queue is a
// new event, too. The new event keeps type, aggregate, tenant, headers and all
// other metadata, but it goes to the topic of the call, and it does not have
// the id, time, position, replay number, dedup key or delay of the old event.
//
// Any other message has the topic as its type and topic, the metadata as its
// headers, and the UUID in the header "watermill_uuid": [Sink] and [Subscriber]
// restore a message with that UUID and these metadata. The metadata
// "aggregatetype", "aggregateid" and "tenantid" set the event's fields, so that
// messages of one aggregate keep their order. The metadata "content-type" is
// the event's content type if the payload conforms to it.
//
// The id of a new event is the message's UUID if that is a valid Waybill id.
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
		ev.ID = waybill.ID{} // belongs to the event that failed
		return ev, err
	}
	d, err := codec.Decode(m)
	return d.Event, err
}

// reasonPoisoned is the metadata entry that Watermill's poison queue adds to a
// message before it publishes the message to another topic.
const reasonPoisoned = "reason_poisoned"

// plainEvent returns the event for a message without CloudEvents metadata.
func plainEvent(topic string, msg *message.Message) waybill.Event {
	ev := waybill.Event{Type: topic, Topic: topic, Payload: msg.Payload, Headers: map[string]string{}}
	ev.ContentType = contentType(msg.Metadata, msg.Payload)
	for name, value := range msg.Metadata {
		if name == headerContentType && value == ev.ContentType {
			continue // a field of the event holds it
		}
		setHeader(&ev, name, value)
	}
	ev.ID = idOf(msg)
	if msg.UUID != "" {
		ev.Headers[headerUUID] = msg.UUID
	}
	return ev
}

// newEvent returns a new event for a message with the metadata of another
// event.
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

// setHeader sets a header of an event from a metadata entry.
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

// idOf returns the id of a new event: the message's UUID, or the zero id if the
// UUID is not a Waybill id.
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
		replay = "-r" + n // as driver.PublishID writes it
	}
	for _, id := range []string{m.Header(attrID), m.Header(broker.Kafka.UserHeader(headerUUID))} {
		if id != "" && (uuid == id || uuid == id+replay) {
			return true
		}
	}
	return false
}

// contentType returns the content type from the metadata. If the payload does
// not conform to that type, every write of the event would fail, so another
// type is used. The type of structured CloudEvents is replaced as well, because
// a reader would decode an event from the payload.
func contentType(metadata message.Metadata, payload []byte) string {
	names := slices.Sorted(maps.Keys(metadata))
	names = slices.DeleteFunc(names, func(name string) bool { return !strings.EqualFold(name, headerContentType) })
	for _, name := range slices.Backward(names) { // the lower-case name takes precedence
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
