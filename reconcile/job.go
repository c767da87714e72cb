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
	// Name is unique among the jobs of a database, at most 128 bytes.
	Name string
	// Schedule says when it runs. Without a record of an earlier run it runs at once. Defaults to Every(5 minutes).
	Schedule Schedule
	// LookBack is how far into the past it looks. Defaults to 24 hours.
	LookBack time.Duration
	// MinAge is how old something must be before its absence counts: what is younger may still be on its way. Longer than what delivery usually
	// takes. Defaults to 1 minute; negative: none.
	MinAge time.Duration
	// TracesKept is for how long the traces are kept that Find looks for: the history, the records of a group, whatever is cleaned up. LookBack
	// must be shorter, or what was done and forgotten would be done again. Defaults to 0: for ever.
	TracesKept time.Duration
	// ResendAfter is how long a job waits for the effect of what it has sent before it sends it again. At most LookBack, which is also the
	// default: by then it is out of the window, so it is sent once. Negative: what was sent is not remembered.
	ResendAfter time.Duration
	// Limit is how many events a run sends at most; the next one goes on. Defaults to 10,000.
	Limit int

	// Find calls missing for every event that should have been told in the window and has left no trace. An event without a dedup key gets its
	// natural one ([waybill.Event.NaturalKey]). If missing returns an error, Find returns it. Nothing is sent before Find has returned, so it
	// may have rows open meanwhile.
	Find func(ctx context.Context, w Window, missing func(waybill.Event) error) error
	// Repair mends what is missing in the window in its own way, and returns how much it mended. It must be idempotent.
	Repair func(ctx context.Context, w Window) (fixed int, err error)
	// Check changes nothing, and calls found for everything that somebody should look at. Beside a Repair it is what a dry run does.
	Check func(ctx context.Context, w Window, found func(what string)) error
}

// Window is the part of the past that a run looks at: from From on, and before To, by the database's clock.
type Window struct{ From, To time.Time }

// Contains reports whether a time is in the window.
func (w Window) Contains(at time.Time) bool { return !at.Before(w.From) && at.Before(w.To) }

// Schedule says when to run next, after a run that began at a time, which is in the local time zone. Schedules of cron libraries are such. The
// zero time means never.
type Schedule interface {
	Next(after time.Time) time.Time
}

// Every is a schedule with a fixed distance between the beginnings of two runs.
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

// complete returns the job with its defaults, or everything that is wrong with it.
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
	check(j.Name != "" && len(j.Name) <= maxName, "Name has %d bytes, want 1 to %d", len(j.Name), maxName)
	check(!fixed || e > 0, "Schedule: Every(%v) is not positive", time.Duration(e))
	check(j.LookBack > j.MinAge, "LookBack (%v) is not above MinAge (%v): nothing would be looked at", j.LookBack, j.MinAge)
	check(j.TracesKept >= 0, "TracesKept: %v is negative", j.TracesKept)
	check(j.TracesKept <= 0 || j.LookBack < j.TracesKept,
		"LookBack (%v) is not shorter than TracesKept (%v): what was done and forgotten would be done again", j.LookBack, j.TracesKept)
	check(j.ResendAfter <= j.LookBack, "ResendAfter (%v) is above LookBack (%v): nothing is looked for that long", j.ResendAfter, j.LookBack)
	check(j.Limit > 0, "Limit: %d is negative", j.Limit)
	check(j.Find != nil || j.Repair != nil || j.Check != nil, "it has no Find, no Repair and no Check")
	check(j.Find == nil || j.Repair == nil && j.Check == nil, "it has a Find, and a Repair or a Check beside it")
	return j, errors.Join(errs...)
}

// window is what a run that begins now looks at.
func (j *Job) window(now time.Time) Window {
	return Window{From: now.Add(-j.LookBack), To: now.Add(-j.MinAge)}
}

// minPause is between the beginnings of two runs of a schedule that says otherwise.
const minPause = time.Second

// next returns when to run again after a run that began at a time, or zero for never.
func (j *Job) next(began time.Time) time.Time {
	at := j.Schedule.Next(began.Local())
	if at.IsZero() {
		return at
	}
	if least := began.Add(minPause); at.Before(least) {
		if _, fixed := j.Schedule.(every); !fixed {
			return least
		}
	}
	return at.UTC()
}
