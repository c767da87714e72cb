package reconcile

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

// Job looks for one kind of gap. It has a Find, a Repair or a Check.
type Job struct {
	// Name is unique among the jobs of a database and has at most 128 bytes.
	// Required.
	Name string
	// Schedule determines when the job runs. Without a record of an earlier
	// run, the job runs at once. Defaults to Every(5 minutes).
	Schedule Schedule
	// LookBack is how far into the past the job looks. Defaults to 24 hours.
	LookBack time.Duration
	// MinAge is how old a row must be before its missing event counts: a
	// younger event may still be in flight. Use more than the typical delivery
	// time. Defaults to 1 minute; negative: none.
	MinAge time.Duration
	// TraceRetention is how long the traces that Find looks for are kept: the
	// history, the records of a group, or anything else that is purged.
	// LookBack must be shorter; otherwise an event whose trace was purged would
	// be sent again. Defaults to 0: forever.
	TraceRetention time.Duration
	// ResendAfter is how long a job waits for the effect of a sent event before
	// it sends the event again. At most LookBack. Defaults to LookBack: by then
	// the event is out of the window, so it is sent once. Negative: sent events
	// are not remembered.
	ResendAfter time.Duration
	// Limit is the maximum number of events per run; the next run continues.
	// Defaults to 10,000.
	Limit int

	// Find calls missing for every event that should have been published in the
	// window and has left no trace. An event without a dedup key gets its
	// natural one ([waybill.Event.NaturalKey]). If missing returns an error,
	// Find returns it. Nothing is sent before Find has returned, so Find may
	// keep rows open meanwhile. Required unless the job has a Repair or a
	// Check.
	Find func(ctx context.Context, w Window, missing func(waybill.Event) error) error
	// Repair fixes the gaps in the window in its own way, and returns how many
	// it fixed. It must be idempotent. Defaults to none.
	Repair func(ctx context.Context, w Window) (fixed int, err error)
	// Check changes nothing, and calls found for everything that needs an
	// operator's attention. Beside a Repair, Check is the dry run. Defaults to
	// none.
	Check func(ctx context.Context, w Window, found func(what string)) error
}

// Window is the part of the past that a run covers: from From on, and before
// To, by the database's clock.
type Window struct{ From, To time.Time }

// Contains reports whether a time is in the window.
func (w Window) Contains(at time.Time) bool { return !at.Before(w.From) && at.Before(w.To) }

// Schedule returns the next run after a run that began at the given time, which
// is in the local time zone. Schedules of cron libraries implement it. The zero
// time means never.
type Schedule interface {
	Next(after time.Time) time.Time
}

// Every is a schedule with a fixed interval between the starts of two runs.
func Every(d time.Duration) Schedule { return every(d) }

type every time.Duration

func (e every) Next(after time.Time) time.Time { return after.Add(time.Duration(e)) }

const (
	defaultLookBack = 24 * time.Hour
	defaultMinAge   = time.Minute
	defaultEvery    = 5 * time.Minute
	defaultLimit    = 10_000
	maxName         = 128
)

// complete returns the job with its defaults, or an error for each invalid
// field.
func (j Job) complete() (Job, error) {
	if j.Schedule == nil {
		j.Schedule = Every(defaultEvery)
	}
	if j.LookBack == 0 {
		j.LookBack = defaultLookBack
	}
	switch {
	case j.MinAge == 0:
		j.MinAge = defaultMinAge
	case j.MinAge < 0:
		j.MinAge = 0
	}
	if j.ResendAfter == 0 {
		j.ResendAfter = j.LookBack
	}
	if j.Limit == 0 {
		j.Limit = defaultLimit
	}
	var errs []error
	check := func(ok bool, format string, args ...any) {
		if !ok {
			errs = append(errs, fmt.Errorf("job %q: "+format, append([]any{j.Name}, args...)...))
		}
	}
	e, fixed := j.Schedule.(every)
	check(j.Name != "" && len(j.Name) <= maxName, "Job.Name: %d bytes, want 1 to %d", len(j.Name), maxName)
	check(!fixed || e > 0, "Job.Schedule: Every(%v) is not positive", time.Duration(e))
	check(j.LookBack > j.MinAge, "Job.LookBack: %v is not above Job.MinAge (%v)", j.LookBack, j.MinAge)
	check(j.TraceRetention <= 0 || j.LookBack < j.TraceRetention,
		"Job.LookBack: %v is not shorter than Job.TraceRetention (%v)", j.LookBack, j.TraceRetention)
	check(j.TraceRetention >= 0, "Job.TraceRetention: %v is negative", j.TraceRetention)
	check(j.ResendAfter <= j.LookBack, "Job.ResendAfter: %v is above Job.LookBack (%v)", j.ResendAfter, j.LookBack)
	check(j.Limit > 0, "Job.Limit: %d is negative", j.Limit)
	check(j.Find != nil || j.Repair != nil || j.Check != nil, "Job.Find: nil; a job has a Find, a Repair or a Check")
	check(j.Find == nil || j.Repair == nil && j.Check == nil, "Job.Find: excludes Job.Repair and Job.Check")
	return j, errors.Join(errs...)
}

// window returns the window of a run that begins now.
func (j *Job) window(now time.Time) Window {
	return Window{From: now.Add(-j.LookBack), To: now.Add(-j.MinAge)}
}

// minPause is the minimum interval between the starts of two runs, for
// schedules that return less.
const minPause = time.Second

// next returns the time of the run after a run that began at the given time, or
// zero for never.
func (j *Job) next(began time.Time) time.Time {
	at := j.Schedule.Next(began.Local())
	if at.IsZero() {
		return at
	}
	if earliest := began.Add(minPause); at.Before(earliest) {
		if _, fixed := j.Schedule.(every); !fixed {
			return earliest
		}
	}
	return at.UTC()
}
