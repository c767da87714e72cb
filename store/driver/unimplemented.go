package driver

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// ErrUnimplemented is wrapped by the errors of [Unimplemented].
var ErrUnimplemented = errors.New("driver: the store does not implement the method")

func unimplemented(method string) error {
	return fmt.Errorf("%w %s", ErrUnimplemented, method)
}

// Unimplemented has the methods of all roles except [Watcher], [Backlogs],
// [Restorer], [Audit] and [Rollups], which [RolesOf] finds by a type assertion.
// Each method returns an error that wraps [ErrUnimplemented] and names the
// method; Local returns nil, and MigrationSQL returns "". A type that
// implements a role embeds Unimplemented, so that the type compiles with a
// later version of this package, in which the role has more methods.
//
// Unimplemented has no methods of the interfaces that callers find by a type
// assertion, such as [KeyPeeker]: an embedding type implements only those that
// it declares itself.
type Unimplemented[T any] struct{}

// Begin implements [Beginner].
func (Unimplemented[T]) Begin(context.Context, *sql.TxOptions) (Session[T], error) {
	return nil, unimplemented("Begin")
}

// Append implements [Appender].
func (Unimplemented[T]) Append(context.Context, T, []waybill.Event) ([]AppendResult, error) {
	return nil, unimplemented("Append")
}

// Committed implements [Resolver].
func (Unimplemented[T]) Committed(context.Context, waybill.ID) (bool, error) {
	return false, unimplemented("Committed")
}

// Local implements [Local]. It returns nil, which constructors reject.
func (Unimplemented[T]) Local() *Hub { return nil }

// Heartbeat implements [Lanes].
func (Unimplemented[T]) Heartbeat(context.Context, store.Node, time.Duration) (store.Membership, error) {
	return store.Membership{}, unimplemented("Heartbeat")
}

// Acquire implements [Lanes].
func (Unimplemented[T]) Acquire(context.Context, store.Node, []int, int) ([]Lease, error) {
	return nil, unimplemented("Acquire")
}

// Release implements [Lanes].
func (Unimplemented[T]) Release(context.Context, []Lease, bool) error {
	return unimplemented("Release")
}

// Leave implements [Lanes].
func (Unimplemented[T]) Leave(context.Context, store.Node) error { return unimplemented("Leave") }

// Fetch implements [Reader].
func (Unimplemented[T]) Fetch(context.Context, []Cursor, int) (Page, error) {
	return Page{}, unimplemented("Fetch")
}

// Sweep implements [Reader].
func (Unimplemented[T]) Sweep(context.Context, []Cursor, int) ([]RowRef, error) {
	return nil, unimplemented("Sweep")
}

// Load implements [Reader].
func (Unimplemented[T]) Load(context.Context, []store.Key) (Page, error) {
	return Page{}, unimplemented("Load")
}

// Due implements [Reader].
func (Unimplemented[T]) Due(context.Context, []int, int) (Page, error) {
	return Page{}, unimplemented("Due")
}

// OpenWriters implements [Reader].
func (Unimplemented[T]) OpenWriters(context.Context) (WriterState, error) {
	return WriterState{}, unimplemented("OpenWriters")
}

// Holds implements [Seeker].
func (Unimplemented[T]) Holds(context.Context, []int) ([]Hold, error) {
	return nil, unimplemented("Holds")
}

// FetchAggregate implements [Seeker].
func (Unimplemented[T]) FetchAggregate(context.Context, store.Aggregate, Cursor, int) (Page, error) {
	return Page{}, unimplemented("FetchAggregate")
}

// FetchPriority implements [Seeker].
func (Unimplemented[T]) FetchPriority(context.Context, []Cursor, int) (Page, error) {
	return Page{}, unimplemented("FetchPriority")
}

// Settle implements [Settler].
func (Unimplemented[T]) Settle(context.Context, Settlement) (Settled, error) {
	return Settled{}, unimplemented("Settle")
}

// Finish implements [Finisher].
func (Unimplemented[T]) Finish(context.Context, T, []waybill.Delivery) error {
	return unimplemented("Finish")
}

// ClaimSink implements [SinkGuard].
func (Unimplemented[T]) ClaimSink(context.Context, store.Node, string, bool) (string, error) {
	return "", unimplemented("ClaimSink")
}

// RecordedSink implements [SinkGuard].
func (Unimplemented[T]) RecordedSink(context.Context) (string, error) {
	return "", unimplemented("RecordedSink")
}

// Stats implements [Inspector].
func (Unimplemented[T]) Stats(context.Context) (store.Stats, error) {
	return store.Stats{}, unimplemented("Stats")
}

// Count implements [Inspector].
func (Unimplemented[T]) Count(context.Context, store.State, store.Filter) (int64, error) {
	return 0, unimplemented("Count")
}

// List implements [Inspector].
func (Unimplemented[T]) List(context.Context, store.State, store.Filter, int64, int) ([]store.Record, error) {
	return nil, unimplemented("List")
}

// Find implements [Inspector].
func (Unimplemented[T]) Find(context.Context, waybill.ID) ([]store.Record, error) {
	return nil, unimplemented("Find")
}

// Replay implements [DeadLetters].
func (Unimplemented[T]) Replay(context.Context, []waybill.ID) (store.Replayed, error) {
	return store.Replayed{}, unimplemented("Replay")
}

// Discard implements [DeadLetters].
func (Unimplemented[T]) Discard(context.Context, []waybill.ID) ([]waybill.ID, error) {
	return nil, unimplemented("Discard")
}

// Unblock implements [DeadLetters].
func (Unimplemented[T]) Unblock(context.Context, []waybill.ID) ([]waybill.ID, error) {
	return nil, unimplemented("Unblock")
}

// Purge implements [Maintainer].
func (Unimplemented[T]) Purge(context.Context, store.State, time.Duration, int) (int, error) {
	return 0, unimplemented("Purge")
}

// PurgeWritten implements [Maintainer].
func (Unimplemented[T]) PurgeWritten(context.Context, time.Duration, int) (int, error) {
	return 0, unimplemented("PurgeWritten")
}

// MakeReady implements [Maintainer].
func (Unimplemented[T]) MakeReady(context.Context, int) (int, error) {
	return 0, unimplemented("MakeReady")
}

// Tidy implements [Maintainer].
func (Unimplemented[T]) Tidy(context.Context, time.Duration) error { return unimplemented("Tidy") }

// SetLanes implements [Maintainer].
func (Unimplemented[T]) SetLanes(context.Context, int) error { return unimplemented("SetLanes") }

// Accept implements [InboxTx].
func (Unimplemented[T]) Accept(context.Context, T, waybill.ID, []store.InboxEntry) ([]AcceptResult, error) {
	return nil, unimplemented("Accept")
}

// Succeed implements [InboxTx].
func (Unimplemented[T]) Succeed(context.Context, T, Attempt) (bool, error) {
	return false, unimplemented("Succeed")
}

// ClaimEvent implements [Claimer].
func (Unimplemented[T]) ClaimEvent(
	context.Context, store.InboxEntry, waybill.ID, time.Duration, int, []byte,
) (store.InboxRecord, bool, error) {
	return store.InboxRecord{}, false, unimplemented("ClaimEvent")
}

// FailEvent implements [Claimer].
func (Unimplemented[T]) FailEvent(context.Context, store.InboxEntry, Failure) (bool, error) {
	return false, unimplemented("FailEvent")
}

// ReleaseEvent implements [Claimer].
func (Unimplemented[T]) ReleaseEvent(context.Context, Attempt) (bool, error) {
	return false, unimplemented("ReleaseEvent")
}

// FindRecord implements [InboxRecords].
func (Unimplemented[T]) FindRecord(context.Context, string, waybill.ID) (store.InboxRecord, bool, error) {
	return store.InboxRecord{}, false, unimplemented("FindRecord")
}

// DueRecords implements [InboxRecords].
func (Unimplemented[T]) DueRecords(context.Context, string, int) ([]store.InboxRecord, error) {
	return nil, unimplemented("DueRecords")
}

// ListRecords implements [InboxRecords].
func (Unimplemented[T]) ListRecords(
	context.Context, store.RecordFilter, string, waybill.ID, int,
) ([]store.InboxRecord, error) {
	return nil, unimplemented("ListRecords")
}

// GroupStats implements [InboxRecords].
func (Unimplemented[T]) GroupStats(context.Context, bool) ([]store.GroupStats, error) {
	return nil, unimplemented("GroupStats")
}

// Redrive implements [InboxRecords].
func (Unimplemented[T]) Redrive(context.Context, string, []waybill.ID, int) (int, error) {
	return 0, unimplemented("Redrive")
}

// PurgeRecords implements [InboxRecords].
func (Unimplemented[T]) PurgeRecords(context.Context, string, time.Duration, int) (int, error) {
	return 0, unimplemented("PurgeRecords")
}

// TakeKey implements [KeyTx].
func (Unimplemented[T]) TakeKey(context.Context, T, KeyClaim) (KeyTaken, error) {
	return KeyTaken{}, unimplemented("TakeKey")
}

// StoreAnswer implements [KeyTx].
func (Unimplemented[T]) StoreAnswer(context.Context, T, KeyAttempt, KeyAnswer) (bool, error) {
	return false, unimplemented("StoreAnswer")
}

// SavePoint implements [KeyTx].
func (Unimplemented[T]) SavePoint(context.Context, T, KeyAttempt, store.KeyPoint) (bool, error) {
	return false, unimplemented("SavePoint")
}

// ClaimKey implements [KeyClaimer].
func (Unimplemented[T]) ClaimKey(context.Context, KeyClaim) (store.KeyRecord, bool, error) {
	return store.KeyRecord{}, false, unimplemented("ClaimKey")
}

// EndKey implements [KeyClaimer].
func (Unimplemented[T]) EndKey(context.Context, KeyAttempt, KeyEnd) (bool, error) {
	return false, unimplemented("EndKey")
}

// RenewKey implements [KeyClaimer].
func (Unimplemented[T]) RenewKey(context.Context, KeyAttempt, time.Duration) (bool, error) {
	return false, unimplemented("RenewKey")
}

// FindKey implements [KeyRecords].
func (Unimplemented[T]) FindKey(context.Context, store.KeyID) (store.KeyRecord, bool, error) {
	return store.KeyRecord{}, false, unimplemented("FindKey")
}

// ListKeys implements [KeyRecords].
func (Unimplemented[T]) ListKeys(context.Context, store.KeyFilter, store.KeyID, int) ([]store.KeyRecord, error) {
	return nil, unimplemented("ListKeys")
}

// KeyStats implements [KeyRecords].
func (Unimplemented[T]) KeyStats(context.Context) (store.KeyStats, error) {
	return store.KeyStats{}, unimplemented("KeyStats")
}

// ResolveKey implements [KeyRecords].
func (Unimplemented[T]) ResolveKey(context.Context, store.KeyID, KeyEnd) (bool, error) {
	return false, unimplemented("ResolveKey")
}

// PurgeKeys implements [KeyRecords].
func (Unimplemented[T]) PurgeKeys(context.Context, int) (int, error) {
	return 0, unimplemented("PurgeKeys")
}

// ClaimJob implements [JobClaimer].
func (Unimplemented[T]) ClaimJob(context.Context, JobClaim) (store.JobRecord, bool, error) {
	return store.JobRecord{}, false, unimplemented("ClaimJob")
}

// RenewJob implements [JobClaimer].
func (Unimplemented[T]) RenewJob(context.Context, JobAttempt, time.Duration) (bool, error) {
	return false, unimplemented("RenewJob")
}

// EndJob implements [JobClaimer].
func (Unimplemented[T]) EndJob(context.Context, JobAttempt, JobEnd) (bool, error) {
	return false, unimplemented("EndJob")
}

// RememberSent implements [JobSender].
func (Unimplemented[T]) RememberSent(context.Context, T, JobAttempt, []Sent) (bool, error) {
	return false, unimplemented("RememberSent")
}

// FindJob implements [JobRecords].
func (Unimplemented[T]) FindJob(context.Context, string) (store.JobRecord, bool, error) {
	return store.JobRecord{}, false, unimplemented("FindJob")
}

// ListJobs implements [JobRecords].
func (Unimplemented[T]) ListJobs(context.Context) ([]store.JobRecord, error) {
	return nil, unimplemented("ListJobs")
}

// SentKeys implements [JobRecords].
func (Unimplemented[T]) SentKeys(context.Context, string, time.Duration) ([]Sent, error) {
	return nil, unimplemented("SentKeys")
}

// ForgetSent implements [JobRecords].
func (Unimplemented[T]) ForgetSent(context.Context, string, time.Duration, int) (int, error) {
	return 0, unimplemented("ForgetSent")
}

// DeliveredWithoutRecord implements [HistoryAudit].
func (Unimplemented[T]) DeliveredWithoutRecord(context.Context, string, HistorySpan, int) ([]store.Record, error) {
	return nil, unimplemented("DeliveredWithoutRecord")
}

// Migrate implements [Migrator].
func (Unimplemented[T]) Migrate(context.Context) ([]store.Migration, error) {
	return nil, unimplemented("Migrate")
}

// Migrations implements [Migrator].
func (Unimplemented[T]) Migrations(context.Context) ([]store.Migration, error) {
	return nil, unimplemented("Migrations")
}

// MigrationSQL implements [Migrator].
func (Unimplemented[T]) MigrationSQL() string { return "" }
