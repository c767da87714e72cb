package idemtest

import (
	"context"
	"errors"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func leaseChecks[T any]() []check[T] {
	return []check[T]{
		{name: "retry_after_is_the_remaining_lease", run: retryAfter[T]},
		{name: "a_dead_process_is_taken_over_after_its_lease", run: takenOver[T]},
		{name: "a_late_finisher_gets_the_stored_answer", run: lateFinisher[T]},
		{name: "a_late_finisher_with_a_running_successor", run: lateFinisherBusy[T]},
		{name: "a_late_finisher_without_a_successor", run: lateFinisherAlone[T]},
		{name: "a_late_phase_without_a_successor", run: latePhase[T]},
		{name: "a_long_run_keeps_its_key", run: longRun[T]},
		{name: "a_lost_lease_ends_the_context", run: lostLease[T]},
		{name: "an_answer_is_stored_after_its_caller_has_gone", run: callerGone[T]},
	}
}

// unrenewed is a store whose leases cannot be renewed: the process is
// disconnected until the end of its run.
type unrenewed[T any] struct{ driver.Keys[T] }

func (unrenewed[T]) RenewKey(context.Context, driver.KeyAttempt, time.Duration) (bool, error) {
	return false, errors.New("no route to the database")
}

// leaseless returns keys that lose every lease.
func (b *env[T]) leaseless() *idempotency.Keys[T] {
	b.Helper()
	return b.open(unrenewed[T]{b.db}, idempotency.Config{Lease: 100 * time.Millisecond})
}

// takeOver runs a request in another process as soon as possible.
func (b *env[T]) takeOver(req idempotency.Request, id string) {
	b.Helper()
	k := b.open(b.db, idempotency.Config{})
	b.until("the key is taken over", func() bool {
		res, err := idempotency.Do(context.Background(), k, req, func(context.Context) (order, error) { return order{ID: id}, nil })
		if err != nil && !errors.Is(err, waybill.ErrInProgress) {
			b.Fatal(err)
		}
		return err == nil && res.Value.ID == id
	})
}

func retryAfter[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		req := request(way)
		b.dead(req, time.Hour)
		_, err := do(context.Background(), b.keys, req, never[order](b))
		var in *idempotency.InProgressError
		if !errors.As(err, &in) || in.RetryAfter < 50*time.Minute || in.RetryAfter > time.Hour {
			b.Errorf("got %v", err)
		}
		if class, d := waybill.Classify(err); class != waybill.ClassDefer || d != in.RetryAfter {
			b.Errorf("its class is %v, %v", class, d)
		}
	})
}

func takenOver[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		req := request(way)
		b.dead(req, 50*time.Millisecond)
		var calls int
		b.until("the key is taken over", func() bool {
			res, err := do(context.Background(), b.keys, req, making(&calls, "O"))
			if err != nil && !errors.Is(err, waybill.ErrInProgress) {
				b.Fatal(err)
			}
			return err == nil && !res.Replayed
		})
		if rec := b.wantState(req, store.KeySucceeded); calls != 1 || rec.Fence != 2 || rec.Attempts != 2 {
			b.Errorf("%d calls, %+v", calls, rec)
		}
	})
}

func lateFinisher[T any](b *env[T]) {
	req := request("late")
	res, err := idempotency.Do(context.Background(), b.leaseless(), req, func(context.Context) (order, error) {
		b.takeOver(req, "the successor's")
		return order{ID: "the late one's"}, nil
	})
	if err != nil || !res.Replayed || res.Value.ID != "the successor's" || res.Ref != "the successor's" {
		b.Errorf("got %+v, %v", res, err)
	}
}

func lateFinisherBusy[T any](b *env[T]) {
	req := request("late")
	_, err := idempotency.Do(context.Background(), b.leaseless(), req, func(context.Context) (order, error) {
		b.until("the lease has run out", func() bool { rec := b.record(req); return !rec.LeaseUntil.After(rec.Now) })
		b.dead(req, time.Hour)
		return order{ID: "late"}, nil
	})
	if !errors.Is(err, waybill.ErrInProgress) {
		b.Errorf("got %v", err)
	}
	if rec := b.wantState(req, store.KeyProcessing); rec.Fence != 2 {
		b.Errorf("the record is %+v", rec)
	}
}

// lateFinisherAlone: the database was unavailable for longer than the lease,
// and is back before the run ends. No other run has the key, so the answer is
// stored, and the repeat gets it.
func lateFinisherAlone[T any](b *env[T]) {
	for _, effect := range []bool{false, true} {
		req := request("late")
		req.TenantID = map[bool]string{true: "marked", false: "not"}[effect]
		res, err := idempotency.Do(context.Background(), b.leaseless(), req, func(ctx context.Context) (order, error) {
			if effect {
				idempotency.MarkEffect(ctx)
			}
			b.until("the lease has run out", func() bool { rec := b.record(req); return !rec.LeaseUntil.After(rec.Now) })
			return order{ID: "late"}, nil
		})
		if err != nil || res.Replayed || res.Value.ID != "late" {
			b.Errorf("the late one: %+v, %v", res, err)
		}
		if rec := b.wantState(req, store.KeySucceeded); rec.Fence != 1 || rec.Attempts != 1 {
			b.Errorf("the record is %+v", rec)
		}
		res, err = idempotency.Do(context.Background(), b.keys, req, never[order](b))
		if err != nil || !res.Replayed || res.Value.ID != "late" {
			b.Errorf("the repeat: %+v, %v", res, err)
		}
	}
}

// latePhase: a phase that commits after the lease has expired is saved, as long
// as no other run has the key.
func latePhase[T any](b *env[T]) {
	leaseless, req := b.leaseless(), request("late")
	res, err := idempotency.Do(context.Background(), leaseless, req, func(ctx context.Context) (order, error) {
		b.until("the lease has run out", func() bool { rec := b.record(req); return !rec.LeaseUntil.After(rec.Now) })
		ctx = context.WithoutCancel(ctx)
		_, err := idempotency.Phase(ctx, leaseless, "late", func(ctx context.Context, tx T) (int, error) { return 0, b.effect(ctx, tx, "late") })
		return order{ID: "late"}, err
	})
	if err != nil || res.Value.ID != "late" {
		b.Errorf("got %+v, %v", res, err)
	}
	b.wantEffects("late", 1)
	b.wantState(req, store.KeySucceeded)
}

func longRun[T any](b *env[T]) {
	// On a busy machine, a shorter one ends before it is renewed.
	const lease = 5 * time.Second
	k := b.open(b.db, idempotency.Config{Lease: lease})
	req := request("long")
	res, err := idempotency.Do(context.Background(), k, req, func(ctx context.Context) (order, error) {
		first := b.record(req).LeaseUntil
		b.until("the first lease is over", func() bool { return b.record(req).Now.After(first) })
		_, err := idempotency.Do(context.Background(), b.keys, req, never[order](b))
		if !errors.Is(err, waybill.ErrInProgress) {
			b.Errorf("another one, after the first lease: %v", err)
		}
		return order{ID: "O"}, ctx.Err()
	})
	if err != nil || res.Replayed {
		b.Errorf("got %+v, %v", res, err)
	}
	if rec := b.wantState(req, store.KeySucceeded); rec.Fence != 1 {
		b.Errorf("the record is %+v", rec)
	}
}

func lostLease[T any](b *env[T]) {
	_, err := idempotency.Do(context.Background(), b.leaseless(), request("lost"), func(ctx context.Context) (order, error) {
		select {
		case <-ctx.Done():
			return order{}, context.Cause(ctx)
		case <-time.After(30 * time.Second):
			return order{}, errors.New("the context did not end")
		}
	})
	if !errors.Is(err, waybill.ErrLeaseLost) {
		b.Errorf("got %v", err)
	}
}

func callerGone[T any](b *env[T]) {
	ctx, cancel := context.WithCancel(context.Background())
	req := request("gone")
	res, err := idempotency.Do(ctx, b.keys, req, func(context.Context) (order, error) {
		cancel()
		return order{ID: "O"}, nil
	})
	if err != nil || res.Value.ID != "O" {
		b.Errorf("got %+v, %v", res, err)
	}
	b.wantState(req, store.KeySucceeded)
	failed := request("failed")
	ctx, cancel = context.WithCancel(context.Background())
	_, err = idempotency.Do(ctx, b.keys, failed, func(ctx context.Context) (order, error) {
		cancel()
		return order{}, ctx.Err()
	})
	if !errors.Is(err, context.Canceled) {
		b.Errorf("got %v", err)
	}
	b.wantState(failed, store.KeyFailed)
}
