package store

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
)

// Jobs is what package reconcile needs of a store: one record per job, and what each job has sent.
//
// Times are the database's. A record's fence grows whenever somebody takes the job, and never shrinks.
type Jobs[T any] interface {
	Outbox[T]
	JobSender[T]
	JobClaimer
	JobRecords
}

// JobClaim is the wish to run a job.
type JobClaim struct {
	// Name is the job's, at most 128 bytes.
	Name string
	// Owner is the random name of this run.
	Owner waybill.ID
	// Lease is for how long nobody else may run the job.
	Lease time.Duration
	// Seen is the fence that the caller has seen, 0 for no record: if somebody has taken the job since, this one comes too late. A
	// negative one takes the job whatever was seen.
	Seen int64
}

// JobAttempt names a run.
type JobAttempt struct {
	Name  string
	Owner waybill.ID
	Fence int64
}

// JobClaimer lets one node at a time run a job. Each method is one transaction, and on disk when it returns.
type JobClaimer interface {
	// ClaimJob takes a job, if nobody holds it or its lease has run out, and its fence is the one that was seen. It returns the record as
	// it is then, and whether it was taken.
	ClaimJob(ctx context.Context, c JobClaim) (JobRecord, bool, error)
	// RenewJob makes the lease run from now on, if the run still holds the job: also one that has run out, as long as no other run has taken the
	// job over.
	RenewJob(ctx context.Context, a JobAttempt, lease time.Duration) (bool, error)
	// EndJob records how a run ended, and gives the job back: if the run still holds it, whatever its lease. It reports whether it did.
	EndJob(ctx context.Context, a JobAttempt, end JobEnd) (bool, error)
}

// JobEnd is how a run ended.
type JobEnd struct {
	JobCounts
	// Next is when the job is to run again; zero if nobody knows.
	Next time.Time
	// Error is what ended the run early, cut to 4000 bytes by the store.
	Error string
}

// JobCounts is what a run did.
type JobCounts struct{ Found, Sent, Skipped, Failed int }

// JobRecord is the record of a job. Times that do not apply are zero.
type JobRecord struct {
	Name  string
	Owner waybill.ID
	Fence int64
	// LeaseUntil is of a job that somebody is running.
	LeaseUntil time.Time
	// StartedAt is when the last run began, EndedAt when the last one ended that did, and Next when it said that the next one should begin.
	StartedAt, EndedAt, Next time.Time
	// JobCounts and LastError are of the last run that ended.
	JobCounts
	LastError string
	// Now is the database's time of this answer.
	Now time.Time
}

// JobSender remembers what a job sends.
type JobSender[T any] interface {
	// RememberSent records, in the transaction that has the events, that a run has sent them: then both are there or neither is. A key
	// that is remembered already is from now on. The run must hold the job under this owner and fence, whatever its lease; until the
	// transaction ends no other run can take the job over. It reports false if it does not; then the transaction must be rolled back. Keys are not repeated. After an error the transaction can only be rolled back. A transaction that has ended is
	// [waybill.ErrTxDone].
	RememberSent(ctx context.Context, tx T, a JobAttempt, sent []Sent) (bool, error)
}

// Sent is an event that a job has sent.
type Sent struct {
	// Key is made of the event's tenant and dedup key.
	Key waybill.ID
	// Event is the id under which it was sent.
	Event waybill.ID
}

// JobRecords is for looking at jobs and keeping them in order.
type JobRecords interface {
	// FindJob returns the record of a job, and whether there is one. Without one, Now is set all the same.
	FindJob(ctx context.Context, name string) (JobRecord, bool, error)
	// ListJobs returns all records, in the order of their names.
	ListJobs(ctx context.Context) ([]JobRecord, error)
	// SentKeys returns what a job has sent within an age.
	SentKeys(ctx context.Context, name string, age time.Duration) ([]Sent, error)
	// ForgetSent deletes at most limit of what a job has sent longer ago than age, and returns how many. It may run on several nodes at a
	// time.
	ForgetSent(ctx context.Context, name string, age time.Duration, limit int) (int, error)
}

// HistoryAudit is what a store also is whose outbox and inbox are in one database: it finds what was delivered and never recorded.
type HistoryAudit interface {
	// Unrecorded returns delivered events of which a group has no record under the event's id, in the order of their delivery and id; at most
	// limit. It reads the part of the history by an index on when the delivery was.
	DeliveredWithoutRecord(ctx context.Context, group string, span HistorySpan, limit int) ([]Record, error)
}

// HistorySpan is a part of the history: deliveries from a time on and before another.
type HistorySpan struct {
	From, To time.Time
	// After is for the next page: what was delivered at From counts only if its id is greater. From is EndedAt of the last record then,
	// and After its id.
	After waybill.ID
}
