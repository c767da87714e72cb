package reconcile

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/panics"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

const (
	// longestSleep is how long a job is not looked at: another node may have given it back early.
	longestSleep = time.Minute
	// troubleSleep is after the database could not be asked.
	troubleSleep = 5 * time.Second
	// endTimeout bounds giving a job back, which runs detached from the caller's context.
	endTimeout = 10 * time.Second
)

// Run runs the jobs by their schedules until ctx ends; then it returns nil. Any
// number of processes may run it at once: each run of a job takes place on one
// of them. The observer is told of every run. The log says when a job, or
// asking the database about jobs, begins to fail, once a minute that it goes on
// failing, and when it works again. A run that ctx cuts short is made up for by
// another node, or at the next start. A second Run at the same time is an
// error.
func (r *Reconciler[T]) Run(ctx context.Context) error {
	if !r.running.CompareAndSwap(false, true) {
		return errors.New("reconcile: it is running already")
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

// turn runs a job if it is due, and returns when to look again. It is due by what the tables say about the last run, wherever that was. Of
// several nodes that find so at the same time one gets the job: the others have seen a fence that is not the last one any more.
func (r *Reconciler[T]) turn(ctx context.Context, j *Job) time.Duration {
	rec, found, err := r.db.FindJob(ctx, j.Name)
	r.database.Note(ctx, "look when "+j.Name+" is due", err)
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

// wait returns how long a job has until it is due; 0: now. All times are the database's.
func (j *Job) wait(rec store.JobRecord, found bool) time.Duration {
	if !found {
		return 0
	}
	held := !rec.Owner.IsZero() && rec.LeaseUntil.After(rec.Now)
	next := j.next(rec.StartedAt)
	if !held && !rec.Next.IsZero() && (next.IsZero() || rec.Next.Before(next)) {
		next = rec.Next // given back early, or scheduled otherwise on the node that ran it
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

// RunOnce runs a job now, whatever its schedule. If somebody else is running it, that is [waybill.ErrInProgress]. The error also says if
// anything could not be sent; the report is right either way.
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

// DryRun looks what a job would do now, and changes nothing; it takes no lease. A Repair without a Check has no dry run.
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
	err = r.work(ctx, j, store.JobAttempt{}, &rep)
	return rep, err
}

// named returns a job, unless there is none of that name or a transaction is open: what a job sends must not be taken back with it.
func (r *Reconciler[T]) named(ctx context.Context, name string) (*Job, error) {
	if r.runner.Inside(ctx) {
		return nil, fmt.Errorf("reconcile: job %s: %w", name, waybill.ErrNested)
	}
	if j := r.job(name); j != nil {
		return j, nil
	}
	return nil, fmt.Errorf("reconcile: there is no job %q", name)
}

// run takes a job, does its work and gives it back. busy says that somebody else has it, or had it since the fence was seen.
func (r *Reconciler[T]) run(ctx context.Context, j *Job, seen int64) (rep Report, busy bool, err error) {
	claim := store.JobClaim{Name: j.Name, Owner: waybill.NewID(), Lease: r.cfg.Lease, Seen: seen}
	began := time.Now()
	rec, taken, err := r.db.ClaimJob(ctx, claim)
	if err != nil {
		return rep, false, fmt.Errorf("reconcile: job %s: %w", j.Name, err)
	}
	if !taken {
		return rep, true, waybill.Later(max(rec.LeaseUntil.Sub(rec.Now), 0), fmt.Errorf("reconcile: job %s: %w", j.Name, waybill.ErrInProgress))
	}
	a := store.JobAttempt{Name: j.Name, Owner: claim.Owner, Fence: rec.Fence}
	rep = Report{Job: j.Name, Window: j.window(rec.StartedAt), DryRun: r.cfg.DryRun}
	held, release := r.hold(ctx, a, began)
	err = r.work(held, j, a, &rep)
	release()
	rep.Took = time.Since(began)
	r.end(ctx, j, a, rec.StartedAt, &rep, err)
	return rep, false, err
}

// hold renews the lease until release is called. The context that it returns ends when the lease is lost.
func (r *Reconciler[T]) hold(ctx context.Context, a store.JobAttempt, since time.Time) (held context.Context, release func()) {
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
			case err == nil, time.Since(since) > r.cfg.Lease: // somebody else has it, or may have
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

// end gives the job back and tells about the run.
func (r *Reconciler[T]) end(ctx context.Context, j *Job, a store.JobAttempt, began time.Time, rep *Report, err error) {
	end := store.JobEnd{JobCounts: rep.counts(), Next: j.next(began)}
	if err != nil {
		end.Error = err.Error()
	}
	if ctx.Err() != nil {
		end.Next = began // it was cut short: whoever looks next may run it at once
	}
	detached, cancel := context.WithTimeout(context.WithoutCancel(ctx), endTimeout)
	defer cancel()
	if ok, eerr := r.db.EndJob(detached, a, end); eerr != nil || !ok {
		r.cfg.Logger.Warn("waybill: a reconciliation job was not given back; its lease will run out",
			slog.String("job", j.Name), slog.Bool("lost", eerr == nil), slog.Any("error", eerr))
	}
	if hook := r.cfg.Observe.Reconciled; hook != nil {
		hook(j.Name, observe.Reconciled{Found: rep.Found, Sent: rep.Sent, Failed: rep.Failed, Skipped: rep.Skipped, Took: rep.Took, Err: err})
	}
	level := slog.LevelDebug
	if rep.Sent+rep.Failed > 0 {
		level = slog.LevelInfo
	}
	if j.Check != nil && rep.Found > rep.Sent {
		level = slog.LevelWarn // nobody but a reader of this will mend it
	}
	r.cfg.Logger.Log(detached, level, "waybill: reconciled", slog.String("job", j.Name), slog.Int("found", rep.Found), slog.Int("sent", rep.Sent),
		slog.Int("skipped", rep.Skipped), slog.Int("failed", rep.Failed), slog.Bool("dry_run", rep.DryRun), slog.Any("notes", rep.Notes))
}

// work does what the job is for.
func (r *Reconciler[T]) work(ctx context.Context, j *Job, a store.JobAttempt, rep *Report) error {
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
