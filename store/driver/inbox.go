package driver

import (
	"context"
	"time"
	"unicode/utf8"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Inbox is the part of a store that package inbox needs: one record per
// consumer group and event.
//
// Times are the database's. A record's fence grows at every claim of the event
// and never shrinks while the record exists.
type Inbox[T any] interface {
	Beginner[T]
	InboxTx[T]
	Claimer
	InboxRecords
	Local
}

// InboxTx handles events in the transaction that contains their effects.
type InboxTx[T any] interface {
	// Accept records the events that have no record yet as succeeded, and
	// returns one result per event, in order. The records take effect if the
	// transaction commits. Owner is a random id of this attempt; it is stored,
	// so that a commit whose response was lost can be recognized. Keys must be
	// unique.
	//
	// Accept never waits for another transaction that is accepting the same
	// event: it reports the event as busy. Rarely, it may report an event as
	// busy that is not. After an error the transaction can only be rolled back.
	// A transaction that has ended gives [waybill.ErrTxDone].
	Accept(ctx context.Context, tx T, owner waybill.ID, in []store.InboxEntry) ([]AcceptResult, error)
	// Succeed records an attempt as succeeded, in the transaction that contains
	// its effects. The record must be in processing under this owner and fence,
	// whatever its lease. Otherwise Succeed reports false, and the transaction
	// must be rolled back.
	Succeed(ctx context.Context, tx T, a Attempt) (bool, error)
}

// AcceptResult is the result of Accept for one event.
type AcceptResult struct {
	// Accepted: the event is recorded and may be handled.
	Accepted bool
	// Busy: another transaction is handling the event.
	Busy bool
	// Record is the existing record, if the event is neither accepted nor busy.
	Record store.InboxRecord
}

// Attempt identifies a claimed attempt.
type Attempt struct {
	Group string
	Key   waybill.ID
	Owner waybill.ID
	Fence int64
}

// Claimer claims events outside the transaction that contains their effects.
// Each method is one transaction and is durable when it returns.
type Claimer interface {
	// ClaimEvent claims an event for an attempt and counts the attempt. It
	// succeeds if the event has no record, a failed record that is due, or a
	// record in processing whose lease has expired, and if fewer than
	// maxAttempts attempts were made. It returns the resulting record and
	// whether the event was claimed. A record with another type or hash is not
	// changed. A record that is claimable but has used up its attempts becomes
	// dead: its state becomes [store.InboxDead], and its error that of
	// [ExceededError].
	//
	// kept, if not empty, is stored with the record.
	ClaimEvent(ctx context.Context, in store.InboxEntry, owner waybill.ID, lease time.Duration, maxAttempts int, kept []byte) (store.InboxRecord, bool, error)
	// FailEvent records that an attempt failed. With Fence 0 no attempt was
	// claimed: FailEvent creates the record with one attempt, and does nothing
	// if a record exists. Otherwise the record must still be in processing
	// under this owner and fence, whatever its lease. It reports whether it
	// changed anything.
	FailEvent(ctx context.Context, in store.InboxEntry, f Failure) (bool, error)
	// ReleaseEvent releases a claimed attempt: the record becomes failed and
	// due now, and the attempt is not counted. It reports whether the attempt
	// was still held.
	ReleaseEvent(ctx context.Context, a Attempt) (bool, error)
}

// Failure is the result of a failed attempt.
type Failure struct {
	Owner waybill.ID
	Fence int64
	// Delay is the time until the next attempt.
	Delay time.Duration
	// Dead: the event is not retried.
	Dead bool
	// Error is truncated to 4000 bytes by the store.
	Error string
	// Stored, if not empty, is stored with the record.
	Stored []byte
}

// ExceededMaxAttempts is part of the error of an event that is dead because it
// used up its attempts.
const ExceededMaxAttempts = "exceeded max attempts"

// ExceededError returns the error of an event that is dead because it used up
// its attempts: the last error, truncated to fit, and the reason.
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

// InboxRecords inspects and maintains records.
type InboxRecords interface {
	// FindRecord returns a record, and whether there is one.
	FindRecord(ctx context.Context, group string, key waybill.ID) (store.InboxRecord, bool, error)
	// DueRecords returns records of a group that have a stored event and are
	// due: failed records whose delay has passed, and records in processing
	// whose lease has expired. The record that has been due for the longest
	// time comes first.
	DueRecords(ctx context.Context, group string, limit int) ([]store.InboxRecord, error)
	// ListRecords returns matching records that did not succeed, in the order
	// of group and key, after a group and key.
	ListRecords(ctx context.Context, f store.RecordFilter, afterGroup string, afterKey waybill.ID, limit int) ([]store.InboxRecord, error)
	// GroupStats counts every group that has a record that did not succeed, in
	// the order of their names. With all, it also counts groups whose records
	// all succeeded, which may take long.
	GroupStats(ctx context.Context, all bool) ([]store.GroupStats, error)
	// Redrive schedules dead and failed records for a retry: the record becomes
	// failed and due now with no attempts, and keeps its fence. Without keys,
	// it redrives all dead records of the group, at most limit. It returns the
	// number of records.
	Redrive(ctx context.Context, group string, keys []waybill.ID, limit int) (int, error)
	// PurgeRecords deletes records of a group that succeeded longer ago than
	// age, at most limit, the oldest first, and returns the number of deleted
	// records. A negative age is an error.
	PurgeRecords(ctx context.Context, group string, age time.Duration, limit int) (int, error)
}

// Applied is implemented by stores that list the events that a group applied
// last, by an index. It is optional: callers find it by a type assertion on
// [InboxRecords].
type Applied interface {
	// ListApplied returns records of a group that succeeded, the one that was
	// processed last first, at most limit.
	ListApplied(ctx context.Context, group string, limit int) ([]store.InboxRecord, error)
}

// TxChecker is implemented by stores whose server may end a transaction
// silently: a handler that ignores a deadlock error continues outside any
// transaction, and the commit succeeds.
type TxChecker[T any] interface {
	// CheckOpen returns [waybill.ErrTxDone] if the transaction has ended.
	CheckOpen(ctx context.Context, tx T) error
}

// RetryClassifier is implemented by stores that can recognize a transaction
// that failed because of concurrent ones and may be run again: a serialization
// failure or a deadlock.
type RetryClassifier interface {
	IsRetryable(err error) bool
}
