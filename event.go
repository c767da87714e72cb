package waybill

import "time"

// GlobalAggregate is the default aggregate type.
const GlobalAggregate = "__GLOBAL__"

// JSON is the default content type.
const JSON = "application/json"

// Event is something that happened and is published to consumers. Only Type
// and, for most events, Payload are required; [Define] gives a typed
// constructor, [NewEvent] an untyped one, and a literal works as well.
//
// A write checks every field against the limits below (in bytes) before any SQL
// runs, and its error lists every invalid field. All text must be valid UTF-8
// without control characters.
type Event struct {
	// ID is unique. If zero, the write assigns a new id.
	ID ID
	// Type names what happened, in the past tense: "OrderPlaced". Required, at
	// most 128 bytes.
	Type string
	// AggregateType is the kind of object that the event is about: "order".
	// Defaults to [GlobalAggregate]; at most 64 bytes.
	AggregateType string
	// AggregateID identifies the object. Events with the same tenant, aggregate
	// type and aggregate id are delivered in order; an event without an
	// AggregateID is unordered. At most 128 bytes.
	AggregateID string
	// TenantID defaults to the tenant of the context, see [Origin]; at most 64
	// bytes.
	TenantID string
	// Topic is the broker topic. Defaults to Type; at most 128 bytes.
	Topic string
	// RoutingKey is passed to brokers that support routing keys. At most 100
	// bytes.
	RoutingKey string
	// SchemaID names the payload's schema. At most 128 bytes.
	SchemaID string
	// SchemaVersion defaults to 1.
	SchemaVersion int
	// DedupKey absorbs the event if another event with the same tenant and key
	// is pending. At most 255 bytes. See [Event.NaturalKey].
	DedupKey string
	// OccurredAt defaults to now. It is stored in microseconds, UTC.
	OccurredAt time.Time
	// AvailableAt is the time of the earliest delivery, by the database's
	// clock. Zero means at once. Excludes Delay.
	AvailableAt time.Time
	// Delay is the time from the write, by the database's clock, to the
	// earliest delivery. Excludes AvailableAt.
	Delay time.Duration
	// Priority is 0 to 32767. Events with a higher priority are delivered first
	// across aggregates, never inside one: an event waits for earlier events of
	// its aggregate, even for those with priority 0 at the end of a backlog.
	// The relay reads events with a priority ahead of a backlog, 64 of a lane
	// at a time and at most 8 of one aggregate, in the order in which they were
	// written.
	Priority int
	// CorrelationID and CausationID default to those of the context, see
	// [Origin]; at most 128 bytes each.
	CorrelationID string
	CausationID   string
	// Headers are flat strings: at most 64 entries and 16 KiB of names and
	// values, without empty names.
	Headers map[string]string
	// ContentType is the media type of Payload. Defaults to [JSON]; JSON
	// payloads are checked for validity. At most 128 bytes.
	ContentType string
	// Payload is delivered byte for byte. At most 1,048,576 bytes.
	Payload []byte

	err error // encoding error; every write reports it
}

// NewEvent returns an event of the given type with the payload encoded as JSON;
// a [json.RawMessage] is stored unchanged. An encoding error is stored in the
// event and reported by the write.
func NewEvent(eventType string, payload any) Event {
	ev := Event{Type: eventType}
	ev.Payload, ev.err = encodeJSON(payload)
	return ev
}

// Ordered reports whether the event names an aggregate and is therefore
// delivered in order.
func (e Event) Ordered() bool {
	return e.AggregateID != ""
}

// Delayed reports whether the event asks for a delivery later than at once.
func (e Event) Delayed() bool {
	return e.Delay > 0 || !e.AvailableAt.IsZero()
}
