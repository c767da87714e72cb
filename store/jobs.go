package store

import (
	"time"

	"github.com/waybillhq/waybill"
)

// JobRecord is the record of a job. Times that do not apply are zero.
type JobRecord struct {
	Name  string
	Owner waybill.ID
	Fence int64
	// LeaseUntil is set for a running job.
	LeaseUntil time.Time
	// StartedAt is the start of the last run, EndedAt the end of the last
	// completed run, and Next the time of the next run.
	StartedAt, EndedAt, Next time.Time
	// Found, Sent, Skipped, Failed and LastError are those of the last
	// completed run.
	Found, Sent, Skipped, Failed int
	LastError                    string
	// Now is the database's time of this result.
	Now time.Time
}
