package admin

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Jobs inspects the jobs of package reconcile. Its methods may be called
// concurrently.
type Jobs struct{ db driver.JobRecords }

// NewJobs returns the inspection of jobs. The store must have the role
// JobRecords.
func NewJobs[T any](db driver.Store[T], cfg Config) (*Jobs, error) {
	roles, err := driver.Get(db, "admin", "JobRecords")
	if err != nil {
		return nil, err
	}
	if _, err := cfg.complete(); err != nil {
		return nil, err
	}
	return &Jobs{roles.JobRecords}, nil
}

// List returns the jobs that have run on this database, each with the result of
// its last run, in the order of their names.
func (j *Jobs) List(ctx context.Context) ([]store.JobRecord, error) {
	records, err := j.db.ListJobs(ctx)
	if err != nil {
		return nil, fmt.Errorf("admin: listing jobs: %w", err)
	}
	return records, nil
}
