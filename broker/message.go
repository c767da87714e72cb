package broker

import "github.com/waybillhq/waybill"

// Message is an event in transit, independent of the broker.
type Message struct {
	// PublishID is the id by which brokers deduplicate: the event's id, or
	// another id for each replay.
	PublishID string
	// ID is the event's id.
	ID waybill.ID
	// Topic is the destination or origin of the message: a subject, topic,
	// exchange or stream.
	Topic string
	// Key selects the partition, and with it the order: the event's RoutingKey
	// if it has one, else its aggregate. Empty: any partition.
	Key string
	// RoutingKey is the event's RoutingKey, for brokers that route by one.
	RoutingKey string
	// ContentType is the media type of Payload. Headers contains it as well,
	// unless the protocol has a field for it.
	ContentType string
	// Headers holds the attributes of the event and the event's own headers,
	// under the names of the binding. Names are unique.
	Headers []Header
	// Payload is the event's payload, byte for byte. It is not copied.
	Payload []byte
}

// HeaderPublishID is the header of [Message.PublishID] in protocols that have
// no field for it.
const HeaderPublishID = "publish_id"

// Header is a header, property or field of a message.
type Header struct{ Name, Value string }

// Header returns the value of the header with exactly that name, or "".
func (m *Message) Header(name string) string {
	for i := range m.Headers {
		if m.Headers[i].Name == name {
			return m.Headers[i].Value
		}
	}
	return ""
}

// Size returns the approximate size of the message in bytes: payload, names and
// values.
func (m *Message) Size() int {
	n := len(m.Payload) + len(m.Key) + len(m.PublishID)
	for i := range m.Headers {
		n += len(m.Headers[i].Name) + len(m.Headers[i].Value)
	}
	return n
}
