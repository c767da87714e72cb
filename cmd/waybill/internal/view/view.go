// Package view defines the JSON of the command line's --json and of the
// daemon's HTTP API. Field names are part of the interface: new ones may be
// added, none changed. Payloads are included only on request.
package view

import (
	"encoding/json"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/store"
)

// Event is an event with its state.
type Event struct {
	ID            waybill.ID `json:"id"`
	State         string     `json:"state"`
	Type          string     `json:"type"`
	AggregateType string     `json:"aggregate_type,omitempty"`
	AggregateID   string     `json:"aggregate_id,omitempty"`
	TenantID      string     `json:"tenant_id,omitempty"`
	Topic         string     `json:"topic,omitempty"`
	DedupKey      string     `json:"dedup_key,omitempty"`
	Priority      int        `json:"priority,omitempty"`
	CorrelationID string     `json:"correlation_id,omitempty"`
	CausationID   string     `json:"causation_id,omitempty"`
	Lane          int        `json:"lane"`
	Seq           int64      `json:"seq"`
	Attempts      int        `json:"attempts"`
	Replay        int        `json:"replay,omitempty"`
	Holds         bool       `json:"holds,omitempty"`
	OccurredAt    time.Time  `json:"occurred_at,omitzero"`
	CreatedAt     time.Time  `json:"created_at,omitzero"`
	DueAt         time.Time  `json:"due_at,omitzero"`
	EndedAt       time.Time  `json:"ended_at,omitzero"`
	LastError     string     `json:"last_error,omitempty"`
	// Undecodable is the reason why the row cannot be decoded completely.
	Undecodable  string            `json:"undecodable,omitempty"`
	ContentType  string            `json:"content_type,omitempty"`
	Headers      map[string]string `json:"headers,omitempty"`
	PayloadBytes int               `json:"payload_bytes"`
	// Payload is present on request: JSON as it is, other text as a string,
	// other bytes in base64 in payload_base64.
	Payload       json.RawMessage `json:"payload,omitempty"`
	PayloadBase64 []byte          `json:"payload_base64,omitempty"`
}

// EventOf converts a record, without its payload.
func EventOf(r store.Record) Event {
	ev := r.Event
	v := Event{
		ID: r.ID, State: r.State.String(), Type: ev.Type, AggregateType: ev.AggregateType, AggregateID: ev.AggregateID, TenantID: ev.TenantID,
		DedupKey: ev.DedupKey, Priority: ev.Priority, CorrelationID: ev.CorrelationID, CausationID: ev.CausationID,
		Lane: r.Lane, Seq: r.Seq, Attempts: r.Attempts, Replay: r.Replay, Holds: r.Holds,
		OccurredAt: ev.OccurredAt, CreatedAt: r.CreatedAt, DueAt: r.DueAt, EndedAt: r.EndedAt, LastError: r.LastError,
		ContentType: ev.ContentType, PayloadBytes: len(ev.Payload),
	}
	if ev.Topic != ev.Type {
		v.Topic = ev.Topic
	}
	if ev.AggregateType == waybill.GlobalAggregate {
		v.AggregateType = ""
	}
	if r.Err != nil {
		v.Undecodable = r.Err.Error()
	}
	return v
}

// WithPayload adds the payload and the headers.
func (v Event) WithPayload(ev *waybill.Event) Event {
	v.Headers = ev.Headers
	switch {
	case json.Valid(ev.Payload):
		v.Payload = ev.Payload
	case utf8.Valid(ev.Payload):
		v.Payload, _ = json.Marshal(string(ev.Payload))
	default:
		v.PayloadBase64 = ev.Payload
	}
	return v
}

// Page is a page of events.
type Page struct {
	Events []Event `json:"events"`
	// Next is the start of the next page; 0 on the last page.
	Next int64 `json:"next,omitempty"`
}

// PageOf converts a page.
func PageOf(p admin.Page) Page {
	v := Page{Events: []Event{}, Next: p.Next}
	for _, r := range p.Records {
		v.Events = append(v.Events, EventOf(r))
	}
	return v
}

// Step is one entry in the history of an event.
type Step struct {
	At   time.Time `json:"at,omitzero"`
	What string    `json:"what"`
}

// Journey is the state and history of one event.
type Journey struct {
	Event  Event  `json:"event"`
	Steps  []Step `json:"steps"`
	Behind *Event `json:"behind,omitempty"`
	// Waiting is the event at each destination that has yet to receive it.
	Waiting []Waiting `json:"waiting,omitempty"`
	// Owner is the relay node that owns the event's lane, and Live whether the
	// node is alive.
	Owner string `json:"owner,omitempty"`
	Live  bool   `json:"owner_live,omitempty"`
	// Why has the reasons why the event has not arrived.
	Why []Reason `json:"why"`
}

// Reason is the place of an event, or the reason why it has not arrived.
type Reason struct {
	Reason string `json:"reason"`
	// Destination is absent for the outbox as a whole.
	Destination string `json:"destination,omitempty"`
	Text        string `json:"text"`
	// Commands are the next commands to run, the best first.
	Commands []string `json:"commands"`
	// By is the event that comes first.
	By    string    `json:"by,omitempty"`
	Since time.Time `json:"since,omitzero"`
	Until time.Time `json:"until,omitzero"`
}

// ReasonOf converts a reason.
func ReasonOf(r admin.Reason) Reason {
	v := Reason{Reason: string(r.Kind), Destination: r.Destination, Text: r.Text, Commands: r.Commands, Since: r.Since, Until: r.Until}
	if !r.By.IsZero() {
		v.By = r.By.String()
	}
	return v
}

// JourneyOf converts a journey.
func JourneyOf(j admin.Journey) Journey {
	v := Journey{Event: EventOf(j.Record), Steps: []Step{}, Live: j.Live}
	for _, s := range j.Steps {
		v.Steps = append(v.Steps, Step{At: s.At, What: s.What})
	}
	if j.Behind != nil {
		behind := EventOf(*j.Behind)
		v.Behind = &behind
	}
	for _, w := range j.Waiting {
		v.Waiting = append(v.Waiting, WaitingOf(w))
	}
	for _, r := range j.Why {
		v.Why = append(v.Why, ReasonOf(r))
	}
	if !j.Owner.IsZero() {
		v.Owner = j.Owner.String()
	}
	return v
}

// Blocked is an aggregate that waits for one of its events.
type Blocked struct {
	TenantID      string    `json:"tenant_id,omitempty"`
	AggregateType string    `json:"aggregate_type"`
	AggregateID   string    `json:"aggregate_id"`
	Waiting       int64     `json:"waiting"`
	Since         time.Time `json:"since"`
	By            Event     `json:"by"`
}

// BlockedOf converts a blocked aggregate.
func BlockedOf(b admin.Blocked) Blocked {
	return Blocked{TenantID: b.Tenant, AggregateType: b.Type, AggregateID: b.ID, Waiting: b.Waiting, Since: b.Since, By: EventOf(b.By)}
}

// Changed is the result of a command that changes events.
type Changed struct {
	IDs     []waybill.ID `json:"ids"`
	Refused []Refused    `json:"refused,omitempty"`
	// Left is, after a change of the dead letters that match a filter, the
	// number of those that remain: refused ones, and those above the limit.
	Left *int64 `json:"left,omitempty"`
}

// Matched is the number of rows that a change would affect.
type Matched struct {
	Matched int64 `json:"matched"`
	DryRun  bool  `json:"dry_run"`
}

// Refused is a dead letter that could not be replayed, with the pending event
// that has its dedup key.
type Refused struct {
	ID     waybill.ID `json:"id"`
	Holder waybill.ID `json:"holder"`
}

// ReplayedOf converts the result of a replay.
func ReplayedOf(r admin.Replayed) Changed {
	v := ChangedOf(r.IDs)
	for _, one := range r.Refused {
		v.Refused = append(v.Refused, Refused{ID: one.ID, Holder: one.Holder})
	}
	return v
}

// ChangedOf converts a list of changed events.
func ChangedOf(ids []waybill.ID) Changed {
	if ids == nil {
		ids = []waybill.ID{}
	}
	return Changed{IDs: ids}
}

// Migration is one migration of the tables.
type Migration struct {
	Version   int       `json:"version"`
	Name      string    `json:"name"`
	AppliedAt time.Time `json:"applied_at,omitzero"`
	State     string    `json:"state"`
}

// MigrationOf converts a migration.
func MigrationOf(m store.Migration) Migration {
	v := Migration{Version: m.Version, Name: m.Name, AppliedAt: m.AppliedAt, State: "applied"}
	switch {
	case m.Unknown:
		v.State = "unknown"
	case m.AppliedAt.IsZero():
		v.State = "missing"
	}
	return v
}
