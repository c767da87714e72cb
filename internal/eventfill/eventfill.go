// Package eventfill fills in the fields of an event that its author left empty.
package eventfill

import (
	"bytes"
	"maps"
	"time"

	"github.com/waybillhq/waybill"
)

// Defaults returns the event as it will be stored: a deep copy with all
// defaults filled in. It is idempotent.
func Defaults(e waybill.Event) waybill.Event {
	if e.ID.IsZero() {
		e.ID = waybill.NewID()
	}
	if e.AggregateType == "" {
		e.AggregateType = waybill.GlobalAggregate
	}
	if e.Topic == "" {
		e.Topic = e.Type
	}
	if e.SchemaVersion == 0 {
		e.SchemaVersion = 1
	}
	if e.ContentType == "" {
		e.ContentType = waybill.JSON
	}
	if e.OccurredAt.IsZero() {
		e.OccurredAt = time.Now()
	}
	// Databases store microseconds: an event delivered from memory must equal
	// the event read from the table.
	e.OccurredAt = e.OccurredAt.UTC().Truncate(time.Microsecond)
	if !e.AvailableAt.IsZero() {
		e.AvailableAt = e.AvailableAt.UTC().Truncate(time.Microsecond)
	}
	if e.Delay > 0 { // round up: a short delay must not become none
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

// Origin returns the event with its empty tenant, correlation and causation
// fields set from o.
func Origin(o waybill.Origin, ev waybill.Event) waybill.Event {
	if ev.TenantID == "" {
		ev.TenantID = o.TenantID
	}
	if ev.CorrelationID == "" {
		ev.CorrelationID = o.CorrelationID
	}
	if ev.CausationID == "" {
		ev.CausationID = o.CausationID
	}
	return ev
}
