package waybill

import (
	"bytes"
	"maps"
	"strings"
	"time"
)

// GlobalAggregate is the aggregate type of events that name none.
const GlobalAggregate = "__GLOBAL__"

// JSON is the content type of events that name none.
const JSON = "application/json"

// Event is something that happened, to be told to others. Only Type and, for most, Payload are needed; [Define] gives a
// typed way to make one, [NewEvent] an untyped one, and a literal works as well.
//
// Writing an event checks every field against the limits named here (in bytes) and reports each that is wrong; the
// database is not touched then. All text must be valid UTF-8 without control characters.
type Event struct {
	// ID is unique. Zero: a new one is made when the event is written.
	ID ID
	// Type says what happened, in the past tense: "OrderPlaced". Required, at most 128 bytes.
	Type string
	// AggregateType says to what kind of thing it happened: "order". Defaults to [GlobalAggregate]; at most 64 bytes.
	AggregateType string
	// AggregateID says to which one. Events of one tenant, aggregate type and aggregate id are delivered in order; an
	// event without one is unordered. At most 128 bytes.
	AggregateID string
	// TenantID defaults to the context's, see [Origin]; at most 64 bytes.
	TenantID string
	// Topic is where brokers send it. Defaults to Type; at most 128 bytes.
	Topic string
	// RoutingKey is passed to brokers that have such a thing. At most 100 bytes.
	RoutingKey string
	// SchemaID names the payload's schema. At most 128 bytes.
	SchemaID string
	// SchemaVersion defaults to 1.
	SchemaVersion int
	// DedupKey, while an event with the same tenant and key is pending, makes another write be absorbed by that one.
	// At most 255 bytes. See [Event.NaturalKey].
	DedupKey string
	// OccurredAt defaults to now. It is kept in microseconds, UTC.
	OccurredAt time.Time
	// AvailableAt is the earliest delivery, by the database's clock. Zero: at once. Excludes Delay.
	AvailableAt time.Time
	// Delay is the earliest delivery, counted from the database's time of the write. Excludes AvailableAt.
	Delay time.Duration
	// Priority is 0 to 32767; larger goes first, among aggregates, never inside one. The relay
	// looks for events with a priority ahead of a backlog.
	Priority int
	// CorrelationID and CausationID default to the context's, see [Origin]; at most 128 bytes each.
	CorrelationID string
	CausationID   string
	// Headers are flat strings: at most 64 entries and 16 KiB of names and values, no empty name.
	Headers map[string]string
	// ContentType says what Payload is. Defaults to [JSON]; JSON payloads are checked to be valid. At most 128 bytes.
	ContentType string
	// Payload is what is delivered, byte for byte. At most 1,048,576 bytes.
	Payload []byte

	err error // what went wrong while the event was made; every write reports it
}

// NewEvent returns an event of the given type with the payload encoded as JSON; a [json.RawMessage] is taken as it is.
// What the encoder has to complain about is kept in the event and reported by the write.
func NewEvent(eventType string, payload any) Event {
	ev := Event{Type: eventType}
	ev.Payload, ev.err = encodeJSON(payload)
	return ev
}

// Complete returns the event as it will be stored: a deep copy with every default filled in. The outbox completes
// what it writes; calling it twice changes nothing.
func (e Event) Complete() Event {
	if e.ID.IsZero() {
		e.ID = NewID()
	}
	if e.AggregateType == "" {
		e.AggregateType = GlobalAggregate
	}
	if e.Topic == "" {
		e.Topic = e.Type
	}
	if e.SchemaVersion == 0 {
		e.SchemaVersion = 1
	}
	if e.ContentType == "" {
		e.ContentType = JSON
	}
	if e.OccurredAt.IsZero() {
		e.OccurredAt = time.Now()
	}
	// Databases keep microseconds: what is delivered from memory must equal what is read from the table.
	e.OccurredAt = e.OccurredAt.UTC().Truncate(time.Microsecond)
	if !e.AvailableAt.IsZero() {
		e.AvailableAt = e.AvailableAt.UTC().Truncate(time.Microsecond)
	}
	if e.Delay > 0 { // upwards: a delay that rounds to none would be no delay
		e.Delay = (e.Delay + time.Microsecond - 1).Truncate(time.Microsecond)
	}
	e.Headers = maps.Clone(e.Headers)
	if len(e.Headers) == 0 {
		e.Headers = nil
	}
	e.Payload = bytes.Clone(e.Payload)
	if e.Payload == nil {
		e.Payload = []byte{}
	}
	return e
}

// Ordered reports whether the event has a place among others: whether it names an aggregate.
func (e Event) Ordered() bool {
	return e.AggregateID != ""
}

// Delayed reports whether the event asks for a delivery later than at once.
func (e Event) Delayed() bool {
	return e.Delay > 0 || !e.AvailableAt.IsZero()
}

// isJSON reports whether a content type says JSON: application/json, or anything that ends in +json.
func isJSON(contentType string) bool {
	if contentType == "" || contentType == JSON {
		return true
	}
	media, _, _ := strings.Cut(contentType, ";")
	media = strings.ToLower(strings.TrimSpace(media))
	return media == "" || media == JSON || strings.HasSuffix(media, "+json")
}
