package waybill

import (
	"encoding/json"
	"fmt"
	"reflect"

	"github.com/waybillhq/waybill/internal/jsontext"
)

// Spec holds the properties that all events of a definition share. The zero
// Spec defines unordered JSON events.
type Spec struct {
	// AggregateType, if set, requires every event of the definition to name an
	// aggregate: New rejects an empty id. Defaults to [GlobalAggregate].
	AggregateType string
	// Topic defaults to the event type.
	Topic string
	// SchemaID names the payload's schema. Defaults to none.
	SchemaID string
	// SchemaVersion defaults to 1.
	SchemaVersion int
	// DedupKey returns the dedup key of a new event, such as
	// [Event.NaturalKey]: waybill.Spec{DedupKey: waybill.Event.NaturalKey}. The
	// event is complete except for the key, which may still be replaced.
	// Defaults to none.
	DedupKey func(ev Event) string
	// ContentType defaults to [JSON]. Any other content type needs a Codec,
	// unless the payload is a []byte.
	ContentType string
	// Codec encodes and decodes payloads. Defaults to encoding/json for JSON
	// content types.
	Codec Codec
}

// Codec encodes and decodes payloads. It must be safe for concurrent use and
// must not retain its arguments.
type Codec interface {
	Marshal(v any) ([]byte, error)
	// Unmarshal decodes data into the value that v points to.
	Unmarshal(data []byte, v any) error
}

// Definition ties an event type to the Go type of its payload. Create it once
// with [Define] and use it on both sides: New where the event is written,
// Decode (or a typed handler) where the event arrives.
type Definition[P any] struct {
	eventType string
	spec      Spec
}

// Define returns the definition of an event type whose payload is a P. It
// panics on an invalid name, as [regexp.MustCompile] does: definitions are
// package variables.
func Define[P any](eventType string, spec Spec) Definition[P] {
	probe := Event{
		Type: eventType, AggregateType: spec.AggregateType, Topic: spec.Topic, SchemaID: spec.SchemaID,
		SchemaVersion: spec.SchemaVersion, ContentType: spec.ContentType, Payload: []byte("{}"),
	}
	if err := probe.Validate(); err != nil {
		panic(err)
	}
	if spec.Codec == nil {
		var p P
		_, raw := any(p).([]byte)
		switch {
		case jsontext.IsType(spec.ContentType):
			spec.Codec = jsonCodec{}
		case raw:
			spec.Codec = rawCodec{}
		default:
			panic(fmt.Sprintf("waybill: event %s: content type %s needs a Codec", eventType, spec.ContentType))
		}
	}
	return Definition[P]{eventType: eventType, spec: spec}
}

// New returns an event about the aggregate with the given id ("" if the
// definition has no aggregate type). New encodes the payload; an encoding error
// is stored in the event and reported by the write.
func (d Definition[P]) New(aggregateID string, payload P) Event {
	ev := Event{
		Type: d.eventType, AggregateType: d.spec.AggregateType, AggregateID: aggregateID, Topic: d.spec.Topic,
		SchemaID: d.spec.SchemaID, SchemaVersion: d.spec.SchemaVersion, ContentType: d.spec.ContentType,
	}
	if d.eventType == "" {
		ev.err = &FieldError{"Type", "is empty: the definition was not made by Define"}
		return ev
	}
	if d.spec.AggregateType != "" && aggregateID == "" {
		ev.err = &FieldError{"AggregateID", "is empty, and the definition has the aggregate type " + d.spec.AggregateType}
		return ev
	}
	data, err := d.spec.Codec.Marshal(payload)
	if err != nil {
		ev.err = &FieldError{"Payload", "encode: " + err.Error()}
		return ev
	}
	ev.Payload = data
	if d.spec.DedupKey != nil {
		ev.DedupKey = d.spec.DedupKey(ev)
	}
	return ev
}

// Decode returns the event's payload. An event of another type and a payload
// that does not decode give a [Permanent] error: a retry cannot help.
func (d Definition[P]) Decode(ev Event) (P, error) {
	var p P
	if ev.Type != d.eventType {
		return p, Permanent(fmt.Errorf("waybill: decode %s: the event is a %s", d.eventType, ev.Type))
	}
	if err := d.spec.Codec.Unmarshal(ev.Payload, &p); err != nil {
		var zero P
		return zero, Permanent(fmt.Errorf("waybill: decode %s %s: %w", ev.Type, ev.ID, err))
	}
	return p, nil
}

// Type returns the event type.
func (d Definition[P]) Type() string { return d.eventType }

// AggregateType returns the aggregate type of the definition's events.
func (d Definition[P]) AggregateType() string {
	if d.spec.AggregateType == "" {
		return GlobalAggregate
	}
	return d.spec.AggregateType
}

// Spec returns the properties that the definition's events share. Its Codec is
// set; other properties that were not given are zero.
func (d Definition[P]) Spec() Spec { return d.spec }

// PayloadType returns the Go type of the payload.
func (d Definition[P]) PayloadType() reflect.Type { return reflect.TypeFor[P]() }

type jsonCodec struct{}

func (jsonCodec) Marshal(v any) ([]byte, error)      { return json.Marshal(v) }
func (jsonCodec) Unmarshal(data []byte, v any) error { return json.Unmarshal(data, v) }

// rawCodec passes []byte through.
type rawCodec struct{}

func (rawCodec) Marshal(v any) ([]byte, error) { return v.([]byte), nil }

func (rawCodec) Unmarshal(data []byte, v any) error {
	*v.(*[]byte) = append([]byte(nil), data...)
	return nil
}

func encodeJSON(v any) ([]byte, error) {
	if raw, ok := v.(json.RawMessage); ok && raw != nil {
		return raw, nil // json.Marshal would compact and escape it
	}
	data, err := json.Marshal(v)
	if err != nil {
		return nil, &FieldError{"Payload", "encode: " + err.Error()}
	}
	return data, nil
}
