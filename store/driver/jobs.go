package driver

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Jobs is the part of a store that package reconcile needs: one record per job,
// and the events that each job has sent.
//
// Times are the database's. A record's fence grows at every claim of the job
// and never shrinks.
type Jobs[T any] interface {
	Outbox[T]
	JobSender[T]
	JobClaimer
	JobRecords
}

// JobClaim is a request to run a job.
type JobClaim struct {
	// Name is the name of the job, at most 128 bytes.
	Name string
	// Owner is a random id of this run.
	Owner waybill.ID
	// Lease is the time during which no other run may claim the job.
	Lease time.Duration
	// Seen is the fence that the caller has read, 0 for no record: the claim
	// fails if another run has claimed the job since. A negative value claims
	// the job whatever its fence.
	Seen int64
}

// JobAttempt identifies a run.
type JobAttempt struct {
	Name  string
	Owner waybill.ID
	Fence int64
}

// JobClaimer lets one node at a time run a job. Each method is one transaction
// and is durable when it returns.
type JobClaimer interface {
	// ClaimJob claims a job if no run holds it or its lease has expired, and
	// its fence equals Seen. It returns the resulting record and whether the
	// job was claimed.
	ClaimJob(ctx context.Context, c JobClaim) (store.JobRecord, bool, error)
	// RenewJob restarts the lease from now if the run still holds the job. An
	// expired lease can be renewed as long as no other run has claimed the job.
	RenewJob(ctx context.Context, a JobAttempt, lease time.Duration) (bool, error)
	// EndJob records the end of a run and releases the job, if the run still
	// holds the job, whatever its lease. It reports whether it changed
	// anything.
	EndJob(ctx context.Context, a JobAttempt, end JobEnd) (bool, error)
}

// JobEnd is the end of a run.
type JobEnd struct {
	// Found, Sent, Skipped and Failed are the counts of the run.
	Found, Sent, Skipped, Failed int
	// Next is the time of the next run; zero if unknown.
	Next time.Time
	// Error is the error that ended the run early, truncated to 4000 bytes by
	// the store.
	Error string
}

// JobSender records the events that a job sends.
type JobSender[T any] interface {
	// RememberSent records, in the transaction that contains the events, that a
	// run has sent them, so that both exist or neither does. If the key already
	// exists, its timestamp is reset to now. The run must hold the job under
	// this owner and fence, whatever its lease; until the transaction ends no
	// other run can claim the job. RememberSent reports false if the run does
	// not hold the job; then the transaction must be rolled back. Keys must be
	// unique. After an error the transaction can only be rolled back. A
	// transaction that has ended gives [waybill.ErrTxDone].
	RememberSent(ctx context.Context, tx T, a JobAttempt, sent []Sent) (bool, error)
}

// Sent is an event that a job has sent.
type Sent struct {
	// Key is derived from the event's tenant and dedup key.
	Key waybill.ID
	// Event is the id of the sent event.
	Event waybill.ID
}

// JobRecords inspects and maintains jobs.
type JobRecords interface {
	// FindJob returns the record of a job, and whether there is one. Now is set
	// in both cases.
	FindJob(ctx context.Context, name string) (store.JobRecord, bool, error)
	// ListJobs returns all records, in the order of their names.
	ListJobs(ctx context.Context) ([]store.JobRecord, error)
	// SentKeys returns the keys that a job has sent within age.
	SentKeys(ctx context.Context, name string, age time.Duration) ([]Sent, error)
	// ForgetSent deletes at most limit keys that a job has sent longer ago than
	// age, the oldest first, and returns their number. It may run on several
	// nodes concurrently.
	ForgetSent(ctx context.Context, name string, age time.Duration, limit int) (int, error)
}

// HistoryAudit is implemented by stores whose outbox and inbox are in one
// database: it finds events that were delivered and never recorded.
type HistoryAudit interface {
	// DeliveredWithoutRecord returns delivered events for which a group has no
	// record under the event's id, in the order of delivery time and id; at
	// most limit. It reads the span of the history by an index on the delivery
	// time.
	DeliveredWithoutRecord(ctx context.Context, group string, span HistorySpan, limit int) ([]store.Record, error)
}

// HistorySpan is a part of the history: deliveries at or after a time and
// before another.
type HistorySpan struct {
	From, To time.Time
	// After is the cursor of the next page: events delivered at From match only
	// if their id is greater. From is then EndedAt of the last record, and
	// After its id.
	After waybill.ID
}
