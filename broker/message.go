package broker

import (
	"strconv"
	"strings"

	"github.com/waybillhq/waybill"
)

// Message is an event as it travels, in no broker's own form.
type Message struct {
	// PublishID is what brokers compare to drop duplicates: the event's id, or one of its own for every deliberate replay.
	PublishID string
	// ID is the event's id.
	ID waybill.ID
	// Topic is where it goes or comes from: a subject, topic, exchange or stream.
	Topic string
	// Key puts messages into one partition or order: the event's RoutingKey if it has one, else its aggregate. Empty: any.
	Key string
	// RoutingKey is the event's own, for brokers that route by one.
	RoutingKey string
	// ContentType says what Payload is. It is among Headers, too, unless the protocol has a field of its own for it.
	ContentType string
	// Headers are the attributes of the event and its own headers, under the names that the binding gives them. No name occurs twice.
	Headers []Header
	// Payload is the event's, byte for byte. It is not copied.
	Payload []byte
}

// HeaderPublishID carries [Message.PublishID] in protocols that have no field of their own for it.
const HeaderPublishID = "publish_id"

// Header is one header, property or field of a message.
type Header struct{ Name, Value string }

// Header returns the value of the header of that name, matched exactly, or "".
func (m *Message) Header(name string) string {
	for i := range m.Headers {
		if m.Headers[i].Name == name {
			return m.Headers[i].Value
		}
	}
	return ""
}

// Size returns about how many bytes the message takes: payload, names and values.
func (m *Message) Size() int {
	n := len(m.Payload) + len(m.Key) + len(m.PublishID)
	for i := range m.Headers {
		n += len(m.Headers[i].Name) + len(m.Headers[i].Value)
	}
	return n
}

// PublishID returns what identifies one publication of an event: "ID", and "ID-r2" for its second replay.
func PublishID(id waybill.ID, replay int) string { return publishID(id.String(), replay) }

func publishID(id string, replay int) string {
	if replay <= 0 {
		return id
	}
	return id + "-r" + strconv.Itoa(replay)
}

// AggregateKey returns the tenant, aggregate type and aggregate id of an event as one text, different for different aggregates. It is
// empty for an event that has no order.
func AggregateKey(ev *waybill.Event) string {
	var text strings.Builder
	return aggregateKey(&text, ev)
}

// aggregateKey is AggregateKey, written behind what is in text.
func aggregateKey(text *strings.Builder, ev *waybill.Event) string {
	if !ev.Ordered() {
		return ""
	}
	start := text.Len()
	for i, part := range [...]string{ev.TenantID, ev.AggregateType, ev.AggregateID} {
		if i > 0 {
			text.WriteByte('/')
		}
		text.WriteString(keyPart(part))
	}
	return text.String()[start:]
}

// keyPart escapes the separator, so that "a/b" of "c" and "a" of "b/c" do not meet.
func keyPart(s string) string {
	if !strings.ContainsAny(s, "/%") {
		return s
	}
	return strings.NewReplacer("%", "%25", "/", "%2F").Replace(s)
}
