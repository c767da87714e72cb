package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/panics"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

const (
	// longestSleep bounds the time between two checks of a job, because another
	// node may have released it early.
	longestSleep = time.Minute
	// troubleSleep is the delay after a failed query of the database.
	troubleSleep = 5 * time.Second
	// endTimeout bounds the release of a job, which is detached from the
	// caller's context.
	endTimeout = 10 * time.Second
)

// Run runs the jobs on their schedules until ctx ends; then it returns nil. Any
// number of processes may call Run at the same time: each run of a job takes
// place on one of them. The observer receives every run. The log reports when a
// job, or a query about jobs, begins to fail, once a minute that it continues
// to fail, and when it recovers. A run that ctx interrupts is repeated by
// another node, or at the next start. A second Run at the same time is an
// error.
func (r *Reconciler[T]) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("reconcile: already running")
	}
	defer r.running.Store(false)
	var all sync.WaitGroup
	for _, j := range r.jobs {
		all.Go(func() { r.loop(ctx, j) })
	}
	all.Wait()
	return nil
}

func (r *Reconciler[T]) loop(ctx context.Context, j *Job) {
	for ctx.Err() == nil {
		timer := time.NewTimer(r.turn(ctx, j))
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

// turn runs a job if it is due, and returns when to check again. A job is due
// according to the stored record of its last run on any node. If several nodes
// find a job due at the same time, one gets it: the others have seen a fence
// that is no longer current.
func (r *Reconciler[T]) turn(ctx context.Context, j *Job) time.Duration {
	rec, found, err := r.db.FindJob(ctx, j.Name)
	r.database.Note(ctx, "check whether "+j.Name+" is due", err)
	if err != nil {
		return troubleSleep
	}
	if wait := j.wait(rec, found); wait > 0 {
		return min(wait, longestSleep)
	}
	_, busy, err := r.run(ctx, j, rec.Fence)
	if busy {
		return minPause
	}
	r.trouble[j.Name].Note(ctx, "run", err)
	if err != nil {
		return troubleSleep
	}
	return 0
}

// wait returns the time until a job is due; 0: now. All times are the
// database's.
func (j *Job) wait(rec store.JobRecord, found bool) time.Duration {
	if !found {
		return 0
	}
	held := !rec.Owner.IsZero() && rec.LeaseUntil.After(rec.Now)
	next := j.next(rec.StartedAt)
	if !held && !rec.Next.IsZero() && (next.IsZero() || rec.Next.Before(next)) {
		// released early, or scheduled differently on the node that ran it
		next = rec.Next
	}
	switch {
	case next.IsZero():
		return longestSleep
	case next.After(rec.Now):
		return next.Sub(rec.Now)
	case held:
		return min(rec.LeaseUntil.Sub(rec.Now), minPause)
	}
	return 0
}

// RunOnce runs a job now, regardless of its schedule. If another node is
// running it, RunOnce returns [waybill.ErrInProgress]. It also returns an error
// if an event could not be sent; the report is valid in both cases.
func (r *Reconciler[T]) RunOnce(ctx context.Context, job string) (Report, error) {
	j, err := r.named(ctx, job)
	if err != nil {
		return Report{}, err
	}
	rep, busy, err := r.run(ctx, j, -1)
	if busy {
		return Report{}, err
	}
	return rep, err
}

// DryRun reports what a job would do now, and changes nothing; it takes no
// lease. A Repair without a Check has no dry run.
func (r *Reconciler[T]) DryRun(ctx context.Context, job string) (Report, error) {
	j, err := r.named(ctx, job)
	if err != nil {
		return Report{}, err
	}
	rec, _, err := r.db.FindJob(ctx, j.Name)
	if err != nil {
		return Report{}, fmt.Errorf("reconcile: job %s: %w", j.Name, err)
	}
	rep := Report{Job: j.Name, Window: j.window(rec.Now), DryRun: true}
	err = r.work(ctx, j, driver.JobAttempt{}, &rep)
	return rep, err
}

// named returns a job, unless the name is unknown or a transaction is open: a
// rollback must not undo what a job sends.
func (r *Reconciler[T]) named(ctx context.Context, name string) (*Job, error) {
	if r.runner.Inside(ctx) {
		return nil, fmt.Errorf("reconcile: job %s: %w", name, waybill.ErrNested)
	}
	if j := r.job(name); j != nil {
		return j, nil
	}
	return nil, fmt.Errorf("reconcile: no job %q", name)
}

// run leases a job, does its work and releases it. busy reports that another
// node holds the job, or held it since the fence was read.
func (r *Reconciler[T]) run(ctx context.Context, j *Job, seen int64) (rep Report, busy bool, err error) {
	claim := driver.JobClaim{Name: j.Name, Owner: waybill.NewID(), Lease: r.cfg.Lease, Seen: seen}
	began := time.Now()
	rec, taken, err := r.db.ClaimJob(ctx, claim)
	if err != nil {
		return rep, false, fmt.Errorf("reconcile: job %s: %w", j.Name, err)
	}
	if !taken {
		return rep, true, waybill.Later(max(rec.LeaseUntil.Sub(rec.Now), 0), fmt.Errorf("reconcile: job %s: %w", j.Name, waybill.ErrInProgress))
	}
	a := driver.JobAttempt{Name: j.Name, Owner: claim.Owner, Fence: rec.Fence}
	rep = Report{Job: j.Name, Window: j.window(rec.StartedAt), DryRun: r.cfg.DryRun}
	held, release := r.hold(ctx, a, began)
	err = r.work(held, j, a, &rep)
	release()
	rep.Took = time.Since(began)
	r.end(ctx, j, a, rec.StartedAt, &rep, err)
	return rep, false, err
}

// hold renews the lease until release is called. The returned context ends when
// the lease is lost.
func (r *Reconciler[T]) hold(ctx context.Context, a driver.JobAttempt, since time.Time) (held context.Context, release func()) {
	held, cancel := context.WithCancelCause(ctx)
	done := make(chan struct{})
	go func() {
		defer close(done)
		tick := time.NewTicker(r.cfg.Lease / 3)
		defer tick.Stop()
		for {
			select {
			case <-held.Done():
				return
			case <-tick.C:
			}
			asked := time.Now()
			ok, err := r.db.RenewJob(held, a, r.cfg.Lease)
			switch {
			case err == nil && ok:
				since = asked
			case err == nil, time.Since(since) > r.cfg.Lease:
				// another node holds the job, or may
				cancel(fmt.Errorf("reconcile: job %s: %w", a.Name, waybill.ErrLeaseLost))
				return
			}
		}
	}()
	return held, func() {
		cancel(nil)
		<-done
	}
}

// end releases the job and reports the run.
func (r *Reconciler[T]) end(ctx context.Context, j *Job, a driver.JobAttempt, began time.Time, rep *Report, err error) {
	end := driver.JobEnd{Found: rep.Found, Sent: rep.Sent, Skipped: rep.Skipped, Failed: rep.Failed, Next: j.next(began)}
	if err != nil {
		end.Error = err.Error()
	}
	if ctx.Err() != nil {
		end.Next = began // interrupted: any node may run it at once
	}
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if ok, eerr := r.db.EndJob(detached, a, end); eerr != nil || !ok {
		r.cfg.Logger.Warn("a reconciliation job was not released; its lease will expire",
			slog.String(logkey.Job, j.Name), slog.Bool(logkey.Lost, eerr == nil), slog.Any(logkey.Error, eerr))
	}
	if hook := r.cfg.Observe.Reconciled; hook != nil {
		hook(observe.ReconciledInfo{Job: j.Name, Found: rep.Found, Sent: rep.Sent, Failed: rep.Failed, Skipped: rep.Skipped, Took: rep.Took, Err: err})
	}
	level := slog.LevelDebug
	if rep.Sent+rep.Failed > 0 {
		level = slog.LevelInfo
	}
	if j.Check != nil && rep.Found > rep.Sent {
		level = slog.LevelWarn // findings need an operator
	}
	r.cfg.Logger.Log(detached, level, "reconciled", slog.String(logkey.Job, j.Name), slog.Int(logkey.Found, rep.Found), slog.Int(logkey.Sent, rep.Sent),
		slog.Int(logkey.Skipped, rep.Skipped), slog.Int(logkey.Failed, rep.Failed), slog.Bool(logkey.DryRun, rep.DryRun), slog.Any(logkey.Notes, rep.Notes))
}

// work does the job's work.
func (r *Reconciler[T]) work(ctx context.Context, j *Job, a driver.JobAttempt, rep *Report) error {
	var err error
	switch {
	case j.Find != nil:
		err = r.resend(ctx, j, a, rep)
	case j.Repair != nil && !rep.DryRun:
		err = panics.Call(func() (err error) {
			rep.Sent, err = j.Repair(ctx, rep.Window)
			rep.Found = rep.Sent
			return err
		})
	case j.Check != nil:
		err = panics.Call(func() error {
			return j.Check(ctx, rep.Window, func(what string) {
				rep.Found++
				rep.note(what)
			})
		})
	default:
		err = errors.New("a Repair without a Check has no dry run")
	}
	if cause := context.Cause(ctx); err != nil && errors.Is(cause, waybill.ErrLeaseLost) && !errors.Is(err, cause) {
		err = errors.Join(cause, err)
	}
	if err != nil {
		return fmt.Errorf("reconcile: job %s: %w", j.Name, err)
	}
	return nil
}
