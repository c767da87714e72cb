// Package eventrow maps an event to a row: its columns, their order, and the
// encoding and decoding of values. All SQL stores share it, so that their
// tables look the same to people and to CDC tools.
package eventrow

import (
	"bytes"
	"encoding/hex"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Columns are the columns of an event, in the order of [Encode] and
// [Record.Dest].
func Columns() []string {
	return []string{
		"id", "type", "aggregate_type", "aggregate_id", "tenant_id", "topic", "routing_key", "schema_id", "schema_version",
		"dedup_key", "occurred_at", "priority", "correlation_id", "causation_id", "headers", "content_type", "payload",
	}
}

// Encoder defines how a database stores ids and times.
type Encoder struct {
	ID   func(waybill.ID) any
	Time func(time.Time) any
}

// Append appends the values of a complete event to args, in the order of
// [Columns]. Empty values are NULL; so is the content type of JSON, which
// nearly all events have.
func (e Encoder) Append(args []any, ev waybill.Event) ([]any, error) {
	headers, err := driver.EncodeHeaders(ev.Headers)
	if err != nil {
		return nil, err
	}
	return append(args,
		e.ID(ev.ID), ev.Type, ev.AggregateType, text(ev.AggregateID), text(ev.TenantID), ev.Topic, text(ev.RoutingKey),
		text(ev.SchemaID), ev.SchemaVersion, text(ev.DedupKey), e.Time(ev.OccurredAt), ev.Priority,
		text(ev.CorrelationID), text(ev.CausationID), text(headers), ContentType(ev), ev.Payload,
	), nil
}

func text(s string) any {
	if s == "" {
		return nil
	}
	return s
}

// ContentType returns the stored content type: NULL for plain JSON.
func ContentType(ev waybill.Event) any {
	if ev.ContentType == waybill.JSON {
		return nil
	}
	return text(ev.ContentType)
}

// Record receives one row. Use a new one, or [Record.Reset], for every row.
type Record struct {
	Row store.Row

	id                                       []byte
	aggregateType, aggregateID, tenant       nullText
	topic, routing, schema, dedup, corr      nullText
	cause, headers, contentType, lastError   nullText
	occurred, created, due                   nullTime
	payload                                  []byte
	lane, version, priority, attempts, plays int64
	holds                                    int64 // an integer, for SQLite
}

// Dest returns the scan targets for lane, seq, the event's columns in the order
// of [Columns], and created_at. The id must arrive as its 16 bytes or as the
// text of a UUID, times as microseconds since 1970 or as times.
func (r *Record) Dest() []any {
	return []any{
		&r.lane, &r.Row.Seq,
		&r.id, &r.Row.Event.Type, &r.aggregateType, &r.aggregateID, &r.tenant, &r.topic, &r.routing, &r.schema, &r.version,
		&r.dedup, &r.occurred, &r.priority, &r.corr, &r.cause, &r.headers, &r.contentType, &r.payload,
		&r.created,
	}
}

// ReadyDest returns Dest and the target for available_at.
func (r *Record) ReadyDest() []any {
	return append(r.Dest(), &r.due)
}

// DelayedDest returns Dest and the targets for due_at, attempts, replay, holds
// and last_error.
func (r *Record) DelayedDest() []any {
	return append(r.Dest(), &r.due, &r.attempts, &r.plays, &r.holds, &r.lastError)
}

// Reset makes the record ready for another row.
func (r *Record) Reset() { *r = Record{} }

// Decode returns the scanned row. A value that cannot be decoded is reported in
// the row's Err, and not lost: the relay dead-letters the event.
func (r *Record) Decode() store.Row {
	row := r.Row
	row.Lane = int(r.lane)
	row.ID, row.Err = decodeID(r.id)
	row.CreatedAt, row.DueAt = time.Time(r.created), time.Time(r.due)
	row.Attempts, row.Replay, row.Holds, row.LastError = int(r.attempts), int(r.plays), r.holds != 0, string(r.lastError)
	ev := &row.Event
	ev.ID = row.ID
	ev.AggregateType, ev.AggregateID, ev.TenantID = string(r.aggregateType), string(r.aggregateID), string(r.tenant)
	ev.Topic, ev.RoutingKey, ev.SchemaID = string(r.topic), string(r.routing), string(r.schema)
	ev.SchemaVersion, ev.Priority = int(r.version), int(r.priority)
	ev.DedupKey, ev.CorrelationID, ev.CausationID = string(r.dedup), string(r.corr), string(r.cause)
	ev.ContentType, ev.Payload = string(r.contentType), r.payload
	ev.OccurredAt, ev.AvailableAt = time.Time(r.occurred), row.DueAt
	Finish(&row, string(r.headers))
	return row
}

// Finish fills in the defaults of a row, decodes the headers, and sets Err if
// the row cannot be delivered.
func Finish(row *store.Row, headers string) {
	ev := &row.Event
	if ev.AggregateType == "" {
		ev.AggregateType = waybill.GlobalAggregate
	}
	if ev.Topic == "" {
		ev.Topic = ev.Type
	}
	if ev.ContentType == "" {
		ev.ContentType = waybill.JSON
	}
	if ev.SchemaVersion == 0 {
		ev.SchemaVersion = 1
	}
	if ev.OccurredAt.IsZero() {
		ev.OccurredAt = row.CreatedAt
	}
	if ev.Payload == nil { // some drivers return an empty value as nil
		ev.Payload = []byte{}
	}
	if row.Err == nil {
		ev.Headers, row.Err = driver.DecodeHeaders(headers)
	}
	if row.Err == nil && ev.Type == "" {
		row.Err = fmt.Errorf("the row has no type")
	}
}

func decodeID(data []byte) (waybill.ID, error) {
	var id waybill.ID
	switch len(data) {
	case len(id):
		copy(id[:], data)
		return id, nil
	case 36: // a UUID in its text form
		digits := bytes.ReplaceAll(data, []byte("-"), nil)
		if len(digits) == hex.EncodedLen(len(id)) {
			if _, err := hex.Decode(id[:], digits); err == nil {
				return id, nil
			}
		}
	}
	return waybill.ID{}, fmt.Errorf("the row's id has %d bytes, want 16", len(data))
}

// nullText is a string that scans NULL as empty.
type nullText string

// Scan implements sql.Scanner.
func (t *nullText) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*t = ""
	case string:
		*t = nullText(v)
	case []byte:
		*t = nullText(v)
	default:
		return fmt.Errorf("eventrow: %T is not text", src)
	}
	return nil
}

// The range of event times; see [waybill.Event]. A producer with plain SQL may
// write other times, which databases support and brokers' text formats do not.
var (
	earliest = time.Date(1000, 1, 1, 0, 0, 0, 0, time.UTC)
	latest   = time.Date(9999, 12, 31, 23, 59, 59, 999_999_000, time.UTC)
)

// Earliest is the earliest event time.
func Earliest() time.Time { return earliest }

// Latest is the latest event time.
func Latest() time.Time { return latest }

// Clamp returns the time of a row in UTC, or the nearest valid event time.
func Clamp(t time.Time) time.Time {
	switch {
	case t.Before(earliest):
		return earliest
	case t.After(latest):
		return latest
	}
	return t.UTC()
}

// nullTime is a time in UTC; NULL is zero.
type nullTime time.Time

// Scan implements sql.Scanner. A number is microseconds since 1970.
func (t *nullTime) Scan(src any) error {
	switch v := src.(type) {
	case nil:
		*t = nullTime{}
	case int64:
		*t = nullTime(Clamp(time.UnixMicro(v)))
	case time.Time:
		*t = nullTime(Clamp(v))
	default:
		return fmt.Errorf("eventrow: %T is not a time", src)
	}
	return nil
}
