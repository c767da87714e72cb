package watermillbridge

import (
	"maps"
	"slices"
	"strings"

	"github.com/ThreeDotsLabs/watermill/message"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// headerUUID is the event header that holds the UUID of the original Watermill
// message.
const headerUUID = "watermill_uuid"

// headerContentType is the content type in the metadata, as in Kafka's headers.
const headerContentType = "content-type"

// movedPrefix is the prefix of a codec header whose name the message's own
// metadata use.
const movedPrefix = "_waybill_"

// Names of attributes in the metadata.
var (
	attrSpecVersion = broker.Kafka.Attribute("specversion") //nolint:gochecknoglobals // never changed
	attrID          = broker.Kafka.Attribute("id")          //nolint:gochecknoglobals // never changed
	attrReplay      = broker.Kafka.Attribute("replay")      //nolint:gochecknoglobals // never changed

	// attrsOfOneEvent lists the attributes that belong to one event and are not
	// copied to another.
	attrsOfOneEvent = []string{ //nolint:gochecknoglobals // never changed
		attrID, attrReplay, broker.Kafka.Attribute("time"), broker.Kafka.Attribute("position"), broker.Kafka.Attribute("dedupkey"),
		broker.Kafka.Attribute("availableat"), broker.Kafka.Attribute("topic"),
	}
)

// readByCodec reports whether the codec reads a header of this name.
func readByCodec(name string) bool {
	return strings.HasPrefix(name, broker.Kafka.Attribute("")) || strings.HasPrefix(name, broker.Kafka.UserHeader("")) ||
		slices.Contains([]string{headerContentType, "traceparent", "tracestate"}, strings.ToLower(name))
}

// outgoing returns an event as a Watermill message, and its topic. An event
// that [Publisher] made from a Watermill message gets that message's UUID and
// metadata again, in addition to the attributes.
func outgoing(codec *broker.Codec, d *waybill.Delivery) (*message.Message, string, error) {
	m, err := codec.Encode(d)
	if err != nil {
		return nil, "", err
	}
	uuid, former := d.Headers[headerUUID]
	if former {
		uuid += strings.TrimPrefix(m.PublishID, d.ID.String()) // replays have separate publish ids
	} else {
		uuid = m.PublishID
	}
	msg := message.NewMessage(uuid, m.Payload)
	for _, h := range m.Headers {
		msg.Metadata.Set(h.Name, h.Value)
	}
	if former {
		restore(msg.Metadata, d.Headers)
	}
	return msg, m.Topic, nil
}

// restore adds the original metadata of a message, which are headers of the
// event now. A codec header of the same name moves to another name, and
// [incoming] moves it back. Id and version of CloudEvents do not move: readers
// without this package deduplicate by that id.
func restore(metadata message.Metadata, own map[string]string) {
	encoded := maps.Clone(metadata)
	for name, value := range own {
		if name == headerUUID || strings.HasPrefix(name, movedPrefix) {
			continue
		}
		if old, taken := encoded[name]; taken {
			if _, carried := encoded[broker.Kafka.UserHeader(name)]; !carried || fixed(name) {
				// Not carried: the codec wrote the message's own value, as it
				// does with a traceparent.
				continue
			}
			metadata.Set(movedPrefix+name, old)
		}
		metadata.Set(name, value)
	}
}

// fixed reports whether an attribute keeps its name whatever metadata the
// message has.
func fixed(name string) bool { return name == attrID || name == attrSpecVersion }

// incoming returns a Watermill message for the codec. Metadata that [restore]
// added under names that the codec reads are omitted; the codec finds them
// among the event's headers.
func incoming(topic string, msg *message.Message) *broker.Message {
	m := &broker.Message{PublishID: msg.UUID, Topic: topic, Payload: msg.Payload}
	_, former := msg.Metadata[broker.Kafka.UserHeader(headerUUID)]
	for name, value := range msg.Metadata {
		if former {
			if original, moved := strings.CutPrefix(name, movedPrefix); moved {
				name = original
			} else if readByCodec(name) && !fixed(name) && restored(msg.Metadata, name) {
				continue
			}
		}
		if name == headerContentType {
			m.ContentType = value
		}
		m.Headers = append(m.Headers, broker.Header{Name: name, Value: value})
	}
	return m
}

// restored reports whether [restore] added a metadata entry: the codec has
// written the same value as a header of the event, unless that header is itself
// an entry of the message.
func restored(metadata message.Metadata, name string) bool {
	header := broker.Kafka.UserHeader(name)
	if _, moved := metadata[movedPrefix+header]; moved {
		return true
	}
	_, there := metadata[header]
	return there && !restored(metadata, header)
}
