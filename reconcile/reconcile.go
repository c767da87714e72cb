package reconcile

import (
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/internal/txrun"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
)

// Config configures a [Reconciler]. The zero value is valid.
type Config struct {
	// Lease is how long a node that stopped responding keeps a job from the
	// other nodes. The lease is renewed while the job runs. Defaults to 1
	// minute.
	Lease time.Duration
	// BatchSize is the number of events sent per transaction. Defaults to 100.
	BatchSize int
	// DryRun makes jobs report without changing anything. Defaults to false.
	DryRun bool
	// Outbox configures how events are written: the hooks of the service's own
	// outbox, for example. Defaults to none.
	Outbox outbox.Config
	// Observe receives every run. Defaults to no hooks.
	Observe observe.Hooks
	// Logger receives results and errors of runs. Defaults to [slog.Default];
	// slog.New(slog.DiscardHandler) silences it.
	Logger *slog.Logger
}

const (
	defaultLease = time.Minute
	minLease     = 100 * time.Millisecond
	defaultBatch = 100
)

// Reconciler runs jobs over one database. T is the type of its transactions. It
// is safe for concurrent use.
type Reconciler[T any] struct {
	db      driver.Jobs[T]
	box     *outbox.Outbox[T]
	runner  *txrun.Runner[T] // detects an open transaction
	jobs    []*Job
	cfg     Config
	running atomic.Bool

	database *outage.Log            // queries of due jobs
	trouble  map[string]*outage.Log // runs, by the job's name
}

// New returns a reconciler for the jobs. It does not touch the database.
func New[T any](db driver.Store[T], jobs []Job, cfg Config) (*Reconciler[T], error) {
	roles, err := driver.Get(db, "reconcile", "Jobs", "Outbox")
	if err != nil {
		return nil, err
	}
	var errs []error
	if cfg.Lease == 0 {
		cfg.Lease = defaultLease
	}
	if cfg.Lease < minLease {
		errs = append(errs, fmt.Errorf("Config.Lease: %v is shorter than %v", cfg.Lease, minLease))
	}
	if cfg.BatchSize == 0 {
		cfg.BatchSize = defaultBatch
	}
	if cfg.BatchSize < 0 {
		errs = append(errs, fmt.Errorf("Config.BatchSize: %d is negative", cfg.BatchSize))
	}
	if cfg.Logger == nil {
		cfg.Logger = slog.Default()
	}
	if cfg.Outbox.Logger == nil {
		cfg.Outbox.Logger = cfg.Logger
	}
	cfg.Logger = cfg.Logger.With(slog.String(logkey.Component, "reconcile"))
	r := &Reconciler[T]{
		db: roles.Jobs, cfg: cfg, runner: txrun.NewRunner[T](roles.Outbox, cfg.Logger),
		database: outage.New(cfg.Logger, "the reconciler's database"), trouble: make(map[string]*outage.Log),
	}
	if len(jobs) == 0 {
		errs = append(errs, errors.New("no jobs"))
	}
	for _, j := range jobs {
		j, err := j.complete()
		if err == nil && r.job(j.Name) != nil {
			err = fmt.Errorf("job %q: Job.Name: another job has it", j.Name)
		}
		errs = append(errs, err)
		r.jobs = append(r.jobs, &j)
		r.trouble[j.Name] = outage.New(cfg.Logger, "a reconciliation job", logkey.Job, j.Name)
	}
	if err := errors.Join(errs...); err != nil {
		return nil, fmt.Errorf("reconcile: %w", err)
	}
	r.box, err = outbox.New(roles, cfg.Outbox)
	return r, err
}

// job returns a job by its name, or nil.
func (r *Reconciler[T]) job(name string) *Job {
	for _, j := range r.jobs {
		if j.Name == name {
			return j
		}
	}
	return nil
}

// Report is the result of a run.
type Report struct {
	Job    string
	Window Window
	// Found counts missing events, Sent those written again or repaired, Failed
	// those that could not be, and Skipped those sent before or still pending.
	Found, Sent, Skipped, Failed int
	// More reports that Limit was reached: the next run continues.
	More bool
	// DryRun reports that nothing was changed; Events are those that would have
	// been sent unless they are pending.
	DryRun bool
	Events []waybill.Event
	// Notes are the first findings of a Check and the first errors of events.
	Notes []string
	Took  time.Duration
}

// maxNotes is the maximum number of notes in a report.
const maxNotes = 100

func (r *Report) note(text string) {
	if len(r.Notes) < maxNotes {
		r.Notes = append(r.Notes, text)
	}
}
