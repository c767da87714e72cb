package store

import (
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

// State is the state of an event, which is the table of its row.
type State int

// The states.
const (
	// Ready: the event waits for its first delivery.
	Ready State = iota
	// Delayed: the event is deferred, because it is scheduled, has failed, or
	// was replayed.
	Delayed
	// Dead: the event is a dead letter.
	Dead
	// Delivered: the event is in the history.
	Delivered
)

// String returns the state's name in lower case.
func (s State) String() string {
	switch s {
	case Ready:
		return "ready"
	case Delayed:
		return "delayed"
	case Dead:
		return "dead"
	case Delivered:
		return "delivered"
	}
	return fmt.Sprintf("state(%d)", int(s))
}

// Filter selects rows; empty fields match everything.
type Filter struct {
	Type, AggregateType, AggregateID, TenantID string
	// NoTenant selects only rows without a tenant, whatever TenantID is.
	NoTenant bool
	// Holding selects only rows that block their aggregate.
	Holding bool
	// Failed selects only rows with at least one attempt.
	Failed bool
	// Untried selects only rows without an attempt, whatever Failed is.
	Untried bool
	// Since and Until select by the time at which an event died or was
	// delivered, and of a pending event by that at which it was written: at or
	// after Since, and before Until.
	Since, Until time.Time
	// Error selects only rows whose last error contains this text, byte for
	// byte. A delivered event has no error.
	Error string
	// CorrelationID selects only events with this correlation id.
	CorrelationID string
	// Cause selects only dead letters with this stored cause.
	Cause string
}

// Record is an event and its state.
type Record struct {
	Row
	State State
	// EndedAt is the time of the delivery or dead-lettering; zero for a pending
	// event.
	EndedAt time.Time
}

// Replayed is the result of a replay.
type Replayed struct {
	IDs []waybill.ID
	// Refused are dead letters whose dedup key belongs to a pending event.
	Refused []Refusal
}

// Refusal is a dead letter that could not be replayed, and the pending event
// that has its dedup key.
type Refusal struct {
	ID, Holder waybill.ID
}

// Aggregate identifies the events that are delivered in order. The zero
// Aggregate is that of unordered events.
type Aggregate struct {
	Tenant, Type, ID string
}

// IsZero reports whether a is the aggregate of unordered events.
func (a Aggregate) IsZero() bool { return a.ID == "" }

// Key identifies a row.
type Key struct {
	Lane int
	Seq  int64
	ID   waybill.ID
}

// Row is an event as it is stored in a table.
type Row struct {
	Key
	Event waybill.Event
	// CreatedAt is the write time, by the database's clock.
	CreatedAt time.Time
	// DueAt is the time of the earliest delivery; zero means at once.
	DueAt time.Time
	// Attempts is the number of attempts; Replay is the number of replays by an
	// operator.
	Attempts int
	Replay   int
	// Holds means that the row blocks later events of its aggregate.
	Holds bool
	// LastError is the error of the last attempt.
	LastError string
	// Final means that the event has failed for good at its destination, and
	// becomes a dead letter when its turn comes. Only ready rows of the backlog
	// of a destination have it.
	Final bool
	// Err is the decoding error of the row; Event then holds the fields that
	// could be read.
	Err error
}
