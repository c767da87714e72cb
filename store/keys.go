package store

import (
	"time"

	"github.com/waybillhq/waybill"
)

// KeyID identifies a record.
type KeyID struct {
	Tenant    string // at most 64 bytes, may be empty
	Operation string // at most 128 bytes
	Key       string // at most 255 bytes
}

// KeyPoint is the progress of an attempt.
type KeyPoint struct {
	// Name is the name of the last committed phase, at most 128 bytes.
	Name string
	// Data is the saved state of all phases so far.
	Data []byte
}

// KeyState is the state of a record.
type KeyState int

// States of a record. The numbers are stored.
const (
	// KeyProcessing: an attempt is running, or was running when its process
	// ended.
	KeyProcessing KeyState = 0
	// KeySucceeded: the answer is stored, or lost.
	KeySucceeded KeyState = 1
	// KeyFailed: the key may be taken again.
	KeyFailed KeyState = 2
	// KeyUncertain: the attempt failed after a side effect that must not happen
	// twice. An operator decides.
	KeyUncertain KeyState = 3
)

func (s KeyState) String() string {
	switch s {
	case KeyProcessing:
		return "processing"
	case KeySucceeded:
		return "succeeded"
	case KeyFailed:
		return "failed"
	case KeyUncertain:
		return "uncertain"
	}
	return "unknown"
}

// KeyRecord is the record of a key. Times that do not apply are zero.
type KeyRecord struct {
	KeyID
	Hash     string
	State    KeyState
	Owner    waybill.ID
	Fence    int64
	Attempts int
	Point    KeyPoint
	// Ref, Result, ContentType and Lost are set for a success; see
	// [driver.KeyAnswer]. ResultExpired means that the answer has expired
	// before its record; Result is empty then.
	Ref           string
	Result        []byte
	ContentType   string
	Lost          bool
	ResultExpired bool
	Code          string
	LastError     string
	// LeaseUntil is set for a record in processing.
	LeaseUntil time.Time
	// CreatedAt never changes while the record exists. It may be the time of
	// the process that created the record.
	CreatedAt   time.Time
	CompletedAt time.Time
	// ExpiresAt is zero while the key is in processing or uncertain.
	ExpiresAt time.Time
	// Now is the database's time of this result.
	Now time.Time
}

// KeyFilter selects records. Zero fields match everything.
type KeyFilter struct {
	Tenant, Operation string
	// States are the states to match; empty means all except succeeded.
	States []KeyState
}

// KeyStats are the counts of the keys.
type KeyStats struct {
	Processing, Failed, Uncertain int64
	// Lapsed counts records in processing whose lease has expired.
	Lapsed int64
	// OldestLapsed is the time since the oldest lapsed lease expired.
	OldestLapsed time.Duration
}
