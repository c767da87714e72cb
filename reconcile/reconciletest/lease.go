package reconciletest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/reconcile"
	"github.com/waybillhq/waybill/store/driver"
)

func leaseChecks[T any]() []check[T] {
	return []check[T]{
		{"a_lost_lease_sends_nothing", zombie[T]},
		{"a_running_job_is_in_progress", inProgress[T]},
		{"a_lease_is_renewed_while_the_job_runs", renewed[T]},
		{"an_interrupted_run_is_repeated", cutShort[T]},
		{"a_repair_runs_on_its_schedule", repairs[T]},
		{"no_run_inside_a_transaction", nested[T]},
	}
}

// zombie pauses a node in the middle of its Find until another node has taken
// the job over and sent the event.
func zombie[T any](b *env[T]) {
	b.truth.add("one", 10*time.Minute)
	nodes := b.nodes(2)
	found, resume := make(chan struct{}), make(chan struct{})
	job := b.truth.job()
	job.Find = func(_ context.Context, w reconcile.Window, missing func(waybill.Event) error) error {
		err := b.truth.find(context.Background(), w, missing)
		close(found)
		<-resume
		return err
	}
	stale := nodes[0]
	stale.Jobs = paused[T]{stale.Jobs}
	slow := b.new(stale, reconcile.Config{Lease: 100 * time.Millisecond}, job)
	result := make(chan error, 1)
	go func() {
		rep, err := slow.RunOnce(context.Background(), "job")
		if rep.Sent != 0 {
			err = errors.Join(err, errors.New("it has sent"))
		}
		result <- err
	}()
	<-found
	fast := b.new(nodes[1], reconcile.Config{}, b.truth.job())
	b.await("the job can be taken over", func() bool {
		rep, err := fast.RunOnce(context.Background(), "job")
		if errors.Is(err, waybill.ErrInProgress) {
			return false
		}
		if err != nil || rep.Sent != 1 {
			b.Errorf("the take-over: %+v, %v", rep, err)
		}
		return true
	})
	b.settleAll() // frees its key
	close(resume)
	if err := <-result; !errors.Is(err, waybill.ErrLeaseLost) {
		b.Errorf("who was paused: %v, want ErrLeaseLost", err)
	}
	if n := len(b.pending()); n != 0 {
		b.Errorf("%d events are pending: the one who lost the job has sent", n)
	}
	if rec, _, err := b.DB.JobRecords.FindJob(context.Background(), "job"); err != nil || rec.Fence != 2 || rec.Sent != 1 || rec.LastError != "" {
		b.Errorf("who lost the job has changed its record: %+v, %v", rec, err)
	}
}

// paused is a job role whose node cannot renew its leases and does not notice.
type paused[T any] struct{ driver.Jobs[T] }

func (paused[T]) RenewJob(context.Context, driver.JobAttempt, time.Duration) (bool, error) {
	return true, nil
}

func inProgress[T any](b *env[T]) {
	r := b.new(b.DB, reconcile.Config{}, b.truth.job())
	a := b.held("job")
	_, err := r.RunOnce(context.Background(), "job")
	if class, left := waybill.Classify(err); !errors.Is(err, waybill.ErrInProgress) || class != waybill.ClassDefer || left < 50*time.Minute {
		b.Errorf("a job that another node runs: %v of class %v, %v", err, class, left)
	}
	if ok, err := b.DB.Jobs.EndJob(context.Background(), a, driver.JobEnd{}); !ok || err != nil {
		b.Errorf("EndJob: %v, %v", ok, err)
	}
	b.once(r, "job", 0, 0, 0)
	if _, err := r.RunOnce(context.Background(), "another"); err == nil {
		b.Error("there is no such job, and it ran")
	}
}

// renewed runs a Find that takes several times its lease.
func renewed[T any](b *env[T]) {
	b.truth.add("one", 10*time.Minute)
	job := b.truth.job()
	lease := 2 * time.Second
	job.Find = func(ctx context.Context, w reconcile.Window, missing func(waybill.Event) error) error {
		first, _, err := b.DB.JobRecords.FindJob(ctx, "job")
		if err != nil {
			return err
		}
		b.await("the lease is renewed", func() bool {
			rec, _, err := b.DB.JobRecords.FindJob(ctx, "job")
			return err == nil && rec.LeaseUntil.After(first.LeaseUntil)
		})
		return b.truth.find(ctx, w, missing)
	}
	b.once(b.new(b.DB, reconcile.Config{Lease: lease}, job), "job", 1, 1, 0)
}

// cutShort ends a run in the middle: another run begins at once, regardless of
// the schedule.
func cutShort[T any](b *env[T]) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var runs atomic.Int64
	job := reconcile.Job{Name: "job", Schedule: reconcile.Every(time.Hour), Find: func(ctx context.Context, _ reconcile.Window, _ func(waybill.Event) error) error {
		if runs.Add(1) == 1 {
			cancel()
			<-ctx.Done()
			return ctx.Err()
		}
		return nil
	}}
	if err := b.new(b.DB, reconcile.Config{}, job).Run(ctx); err != nil {
		b.Error(err)
	}
	again, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	r := b.new(b.DB, reconcile.Config{}, job)
	go func() { done <- r.Run(again) }()
	b.await("it runs again", func() bool { return runs.Load() == 2 })
	b.await("it is given back", func() bool {
		rec, _, err := b.DB.JobRecords.FindJob(context.Background(), "job")
		return err == nil && rec.Owner.IsZero() && rec.Next.Equal(rec.StartedAt.Add(time.Hour))
	})
	stop()
	if err := <-done; err != nil || runs.Load() != 2 {
		b.Errorf("after %d runs: %v", runs.Load(), err)
	}
}

func repairs[T any](b *env[T]) {
	var runs atomic.Int64
	r := b.new(b.DB, reconcile.Config{}, reconcile.Job{
		Name: "repair", Schedule: reconcile.Every(20 * time.Millisecond),
		Repair: func(context.Context, reconcile.Window) (int, error) {
			runs.Add(1)
			return 3, nil
		},
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	b.await("it runs", func() bool { return runs.Load() > 2 })
	if err := r.Run(ctx); err == nil {
		b.Error("a second Run is no error")
	}
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
	if rec, _, err := b.DB.JobRecords.FindJob(context.Background(), "repair"); err != nil || rec.Sent != 3 || !rec.Owner.IsZero() {
		b.Errorf("the record: %+v, %v", rec, err)
	}
}

func nested[T any](b *env[T]) {
	r := b.new(b.DB, reconcile.Config{}, b.truth.job())
	err := b.box.InTx(context.Background(), func(ctx context.Context, _ T) error {
		_, err := r.RunOnce(ctx, "job")
		return err
	})
	if !errors.Is(err, waybill.ErrNested) {
		b.Errorf("a run inside a transaction: %v", err)
	}
}
