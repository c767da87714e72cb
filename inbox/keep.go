package inbox

import (
	"encoding/json"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

// keptEvent is the stored form of an event. Its JSON names are stored: names
// may be added, but not changed.
type keptEvent struct {
	ID            waybill.ID        `json:"id"`
	Type          string            `json:"type"`
	AggregateType string            `json:"aggregate_type,omitempty"`
	AggregateID   string            `json:"aggregate_id,omitempty"`
	TenantID      string            `json:"tenant_id,omitempty"`
	Topic         string            `json:"topic,omitempty"`
	RoutingKey    string            `json:"routing_key,omitempty"`
	SchemaID      string            `json:"schema_id,omitempty"`
	SchemaVersion int               `json:"schema_version,omitempty"`
	DedupKey      string            `json:"dedup_key,omitempty"`
	OccurredAt    time.Time         `json:"occurred_at,omitzero"`
	Priority      int               `json:"priority,omitempty"`
	CorrelationID string            `json:"correlation_id,omitempty"`
	CausationID   string            `json:"causation_id,omitempty"`
	Headers       map[string]string `json:"headers,omitempty"`
	ContentType   string            `json:"content_type,omitempty"`
	Payload       []byte            `json:"payload"`
}

// kept returns the encoded event for its record, or nil.
func (e *consumption[T]) kept() []byte {
	if !e.g.opts.StoreEvent {
		return nil
	}
	return encodeKept(e.ev)
}

func encodeKept(ev *waybill.Event) []byte {
	b, err := json.Marshal(keptEvent{
		ID: ev.ID, Type: ev.Type, AggregateType: ev.AggregateType, AggregateID: ev.AggregateID, TenantID: ev.TenantID, Topic: ev.Topic,
		RoutingKey: ev.RoutingKey, SchemaID: ev.SchemaID, SchemaVersion: ev.SchemaVersion, DedupKey: ev.DedupKey, OccurredAt: ev.OccurredAt,
		Priority: ev.Priority, CorrelationID: ev.CorrelationID, CausationID: ev.CausationID, Headers: ev.Headers, ContentType: ev.ContentType,
		Payload: ev.Payload,
	})
	if err != nil {
		return nil // encoding cannot fail
	}
	return b
}

func decodeKept(b []byte) (waybill.Event, error) {
	var k keptEvent
	if err := json.Unmarshal(b, &k); err != nil {
		return waybill.Event{}, fmt.Errorf("inbox: a stored event cannot be decoded: %w", err)
	}
	return waybill.Event{
		ID: k.ID, Type: k.Type, AggregateType: k.AggregateType, AggregateID: k.AggregateID, TenantID: k.TenantID, Topic: k.Topic,
		RoutingKey: k.RoutingKey, SchemaID: k.SchemaID, SchemaVersion: k.SchemaVersion, DedupKey: k.DedupKey, OccurredAt: k.OccurredAt,
		Priority: k.Priority, CorrelationID: k.CorrelationID, CausationID: k.CausationID, Headers: k.Headers, ContentType: k.ContentType,
		Payload: k.Payload,
	}, nil
}
