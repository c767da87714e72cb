package store

import (
	"time"

	"github.com/waybillhq/waybill"
)

// InboxEntry is an event to be handled by a consumer group.
type InboxEntry struct {
	Group string
	// Key identifies duplicate deliveries: the event's id, or an id derived
	// from its dedup key.
	Key waybill.ID
	// Event, Tenant and Type are those of the event.
	Event  waybill.ID
	Tenant string
	Type   string
	// Hash is the hash of the payload. Another type or hash under the same key
	// is a conflict.
	Hash [16]byte
}

// InboxState is the state of a record.
type InboxState int

// States of a record. The numbers are stored.
const (
	InboxProcessing InboxState = 0
	InboxSucceeded  InboxState = 1
	InboxFailed     InboxState = 2
	InboxDead       InboxState = 3
)

func (s InboxState) String() string {
	switch s {
	case InboxProcessing:
		return "processing"
	case InboxSucceeded:
		return "succeeded"
	case InboxFailed:
		return "failed"
	case InboxDead:
		return "dead"
	}
	return "unknown"
}

// InboxRecord is the record of an event in a group. Times that do not apply are
// zero.
type InboxRecord struct {
	InboxEntry
	State    InboxState
	Owner    waybill.ID
	Fence    int64
	Attempts int
	// LeaseUntil is set for a record in processing, NextRetryAt for a failed
	// one, ProcessedAt for a succeeded or dead one.
	LeaseUntil  time.Time
	NextRetryAt time.Time
	ProcessedAt time.Time
	// ReceivedAt is the creation time of the record.
	ReceivedAt time.Time
	LastError  string
	// Stored is the event, as the group stored it.
	Stored []byte
	// Now is the database's time of this result.
	Now time.Time
}

// RecordFilter selects records. Zero fields match everything.
type RecordFilter struct {
	Group string
	// States are the states to match; empty means all except succeeded.
	States []InboxState
	// MinAttempts is the minimum number of attempts.
	MinAttempts int
}

// GroupStats are the counts of a group.
type GroupStats struct {
	Group                    string
	Processing, Failed, Dead int64
	// HighestAttempts is the highest number of attempts of a failed record.
	HighestAttempts int
	// OldestDue is the longest time that a failed record has been due.
	OldestDue time.Duration
}
