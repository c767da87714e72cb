package store

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
)

// Inbox is what package inbox needs of a store: one record per consumer group and event.
//
// Times are the database's. A record's fence grows whenever somebody takes the event, and never shrinks while the record lives.
type Inbox[T any] interface {
	Beginner[T]
	InboxTx[T]
	Claimer
	Records
	Local
}

// InboxEntry is an event that a consumer group is to handle.
type InboxEntry struct {
	Group string
	// Key is what makes two deliveries the same: the event's id, or an id made of its dedup key.
	Key waybill.ID
	// Event, Tenant and Type are the event's.
	Event  waybill.ID
	Tenant string
	Type   string
	// Hash is of its payload. Another type or hash under the same key is a conflict.
	Hash [16]byte
}

// Acceptor handles events in the transaction that has their effects.
type InboxTx[T any] interface {
	// Accept records events as succeeded, in the order of the answers, if there is no record of them; if the transaction commits, they
	// have. Owner is the random name of this attempt; it is stored, so that a commit whose answer was lost can be recognised. Keys
	// are not repeated.
	//
	// It never waits for another transaction that is accepting the same event: that one is busy. It may report one as busy that is not,
	// if that is rare. After an error the transaction can only be rolled back. A transaction that has ended is [waybill.ErrTxDone].
	Accept(ctx context.Context, tx T, owner waybill.ID, in []InboxEntry) ([]AcceptResult, error)
	// Succeed records an attempt as succeeded, in the transaction that has its effects: of a record that is being processed under this
	// owner and fence, whatever its lease. It reports false if it is not; then the transaction must be rolled back.
	Succeed(ctx context.Context, tx T, a Attempt) (bool, error)
}

// AcceptResult says what became of an event.
type AcceptResult struct {
	// Accepted: it is recorded, and may be handled.
	Accepted bool
	// Busy: another transaction is at it.
	Busy bool
	// Record is what there was, if it is neither.
	Record InboxRecord
}

// Attempt names an attempt that was acquired.
type Attempt struct {
	Group string
	Key   waybill.ID
	Owner waybill.ID
	Fence int64
}

// Claimer takes events outside the transaction that has their effects. Each method is one transaction, and on disk when it returns.
type Claimer interface {
	// ClaimEvent takes an event for an attempt, and counts it: if there is no record, or a failed one that is due, or one that is
	// being processed whose lease has run out, and fewer than most attempts were made. It returns the record as it is then, and
	// whether it was taken. A record of another type or hash is left as it is. One that could be taken but for its attempts is given up:
	// its state becomes [InboxDead], and its error that of [ExceededError].
	//
	// kept, if any, is stored with the record.
	ClaimEvent(ctx context.Context, in InboxEntry, owner waybill.ID, lease time.Duration, most int, kept []byte) (InboxRecord, bool, error)
	// FailEvent records that an attempt failed. With Fence 0 nothing was acquired: it creates the record, with one attempt, and does nothing if
	// there is one. Otherwise the record must still be processed under this owner and fence, whatever its lease. It reports whether it
	// did anything.
	FailEvent(ctx context.Context, in InboxEntry, f Failure) (bool, error)
	// ReleaseEvent gives an acquired attempt back: failed, due now, and not counted. It reports whether it was still held.
	ReleaseEvent(ctx context.Context, a Attempt) (bool, error)
}

// Failure is what became of an attempt.
type Failure struct {
	Owner waybill.ID
	Fence int64
	// Delay is when it is due again.
	Delay time.Duration
	// Dead: it is not tried again.
	Dead bool
	// Error is cut to 4000 bytes by the store.
	Error string
	// Kept, if any, is stored with the record.
	Stored []byte
}

// ExceededMaxAttempts is what the error of an event says that was given up because of its attempts.
const ExceededMaxAttempts = "exceeded max attempts"

// ExceededError returns the error of an event that is given up because of its attempts: the last one, cut to fit, and why.
func ExceededError(last string) string {
	if last == "" {
		return ExceededMaxAttempts
	}
	const suffix = "; " + ExceededMaxAttempts
	last = CutError(last)
	for len(last)+len(suffix) > maxError {
		_, size := utf8.DecodeLastRuneInString(last)
		last = last[:len(last)-size]
	}
	return last + suffix
}

// InboxState is where a record stands.
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

// InboxRecord is the record of an event in a group. Times that do not apply are zero.
type InboxRecord struct {
	InboxEntry
	State    InboxState
	Owner    waybill.ID
	Fence    int64
	Attempts int
	// LeaseUntil is of a record that is being processed, NextRetryAt of a failed one, ProcessedAt of one that succeeded or is dead.
	LeaseUntil  time.Time
	NextRetryAt time.Time
	ProcessedAt time.Time
	// ReceivedAt is when the record was made.
	ReceivedAt time.Time
	LastError  string
	// Kept is the event, as the group stored it.
	Stored []byte
	// Now is the database's time of this answer.
	Now time.Time
}

// Records is for looking at records and keeping them in order.
type Records interface {
	// FindRecord returns a record, and whether there is one.
	FindRecord(ctx context.Context, group string, key waybill.ID) (InboxRecord, bool, error)
	// DueRecords returns records of a group that have their event with them, and failed and are due, or were being processed when their
	// lease ran out; the longest due first.
	DueRecords(ctx context.Context, group string, limit int) ([]InboxRecord, error)
	// ListRecords returns records that did not succeed and match, in the order of group and key, after a group and key.
	ListRecords(ctx context.Context, f RecordFilter, afterGroup string, afterKey waybill.ID, limit int) ([]InboxRecord, error)
	// GroupStats counts every group that has a record that did not succeed, in the order of their names. With all, also groups whose
	// records all did; that may take long.
	GroupStats(ctx context.Context, all bool) ([]GroupStats, error)
	// Redrive lets dead and failed records be tried again: failed, due now, no attempt counted, the fence as it was. Without keys, all dead
	// records of the group, at most limit. It returns how many there were.
	Redrive(ctx context.Context, group string, keys []waybill.ID, limit int) (int, error)
	// PurgeRecords deletes records of a group that succeeded longer ago than age, at most limit, and returns how many.
	PurgeRecords(ctx context.Context, group string, age time.Duration, limit int) (int, error)
}

// RecordFilter chooses records. Zero fields match everything.
type RecordFilter struct {
	Group string
	// States are those looked for; none means all but succeeded.
	States []InboxState
	// MinAttempts is the least number of attempts.
	MinAttempts int
}

// GroupStats is how a group stands.
type GroupStats struct {
	Group                    string
	Processing, Failed, Dead int64
	// HighestAttempts is of a failed record.
	HighestAttempts int
	// OldestDue is how long the failed record that has been due for longest has been.
	OldestDue time.Duration
}

// TxChecker is what a store also is whose transactions can end without anybody noticing: a handler that swallows a deadlock goes on outside of
// one, and the commit says yes.
type TxChecker[T any] interface {
	// CheckOpen returns [waybill.ErrTxDone] if the transaction has ended.
	CheckOpen(ctx context.Context, tx T) error
}

// RetryClassifier is what a store also is that can tell when a transaction failed because of others, and may be run again: a
// serialization failure, or a deadlock.
type RetryClassifier interface {
	IsRetryable(err error) bool
}
