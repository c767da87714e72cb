package idemtest

import (
	"context"
	"errors"
	"runtime"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func failChecks[T any]() []check[T] {
	return []check[T]{
		{name: "a_failed_key_runs_again", run: failedRunsAgain[T]},
		{name: "a_late_failure_overwrites_nothing", run: lateFailure[T]},
		{name: "an_unstored_answer_goes_to_its_caller_only", run: dontStore[T]},
		{name: "after_an_effect_nothing_runs_again", run: afterAnEffect[T]},
		{name: "a_panic_releases_the_key_and_continues", run: panics[T]},
	}
}

func failedRunsAgain[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		req := request(way)
		for range 2 {
			if _, err := do(context.Background(), b.keys, req, func(context.Context) (order, error) { return order{}, errBoom }); err != errBoom { //nolint:errorlint // as it is
				b.Fatalf("the error of the function: %v", err)
			}
			if way == "DoTx" {
				b.wantNone(req)
				continue
			}
			if rec := b.wantState(req, store.KeyFailed); rec.LastError != "boom" || rec.Code == "" || rec.ExpiresAt.IsZero() {
				b.Errorf("the record is %+v", rec)
			}
		}
		calls := 0
		res, err := do(context.Background(), b.keys, req, making(&calls, "O"))
		if err != nil || res.Replayed || calls != 1 {
			b.Errorf("then: %+v, %v", res, err)
		}
		if rec := b.wantState(req, store.KeySucceeded); way == "Do" && (rec.Attempts != 3 || rec.Fence != 3) || rec.LastError != "" {
			b.Errorf("the record is %+v", rec)
		}
	})
}

// lateFailure: a run that lost its key and then fails does not change the
// answer of its successor.
func lateFailure[T any](b *env[T]) {
	for _, effect := range []bool{false, true} {
		req := request("late")
		req.TenantID = map[bool]string{true: "marked", false: "not"}[effect]
		_, err := idempotency.Do(context.Background(), b.leaseless(), req, func(ctx context.Context) (order, error) {
			if effect {
				idempotency.MarkEffect(ctx)
			}
			b.takeOver(req, "O-2")
			return order{}, errBoom
		})
		if !errors.Is(err, errBoom) {
			b.Errorf("the late one: %v", err)
		}
		res, err := idempotency.Do(context.Background(), b.keys, req, never[order](b))
		if err != nil || !res.Replayed || res.Value.ID != "O-2" {
			b.Errorf("afterwards: %+v, %v", res, err)
		}
	}
}

func dontStore[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		req := request(way)
		res, err := do(context.Background(), b.keys, req, func(ctx context.Context) (order, error) {
			idempotency.DontStore(ctx)
			return order{ID: "wrong code"}, nil
		})
		if err != nil || res.Value.ID != "wrong code" || res.Replayed {
			b.Errorf("its caller: %+v, %v", res, err)
		}
		calls := 0
		if res, err := do(context.Background(), b.keys, req, making(&calls, "O")); err != nil || res.Replayed || res.Value.ID != "O" {
			b.Errorf("the next: %+v, %v", res, err)
		}
	})
}

func afterAnEffect[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		for how, end := range map[string]func(ctx context.Context) (order, error){
			"error": func(context.Context) (order, error) { return order{}, errBoom },
			"panic": func(context.Context) (order, error) { panic("boom") },
			"released": func(ctx context.Context) (order, error) {
				idempotency.DontStore(ctx)
				return order{ID: "O"}, nil
			},
		} {
			req := request(way + how)
			func() {
				defer func() { _ = recover() }()
				_, _ = do(context.Background(), b.keys, req, func(ctx context.Context) (order, error) {
					idempotency.MarkEffect(ctx)
					return end(ctx)
				})
			}()
			b.wantState(req, store.KeyUncertain)
			_, err := do(context.Background(), b.keys, req, never[order](b))
			if !errors.Is(err, idempotency.ErrUnresolved) || !errors.Is(err, waybill.ErrUncertain) {
				b.Errorf("%s: the next: %v", how, err)
			}
			// The operator decides that the effect did not happen.
			id := store.KeyID{Tenant: req.TenantID, Operation: req.Operation, Key: req.Key}
			ok, err := b.db.ResolveKey(context.Background(), id, driver.KeyEnd{State: store.KeyFailed, Answer: driver.KeyAnswer{Retention: 1e15}})
			if err != nil || !ok {
				b.Fatalf("%s: resolving: %v, %v", how, ok, err)
			}
			if res, err := do(context.Background(), b.keys, req, making(new(int), "O")); err != nil || res.Replayed {
				b.Errorf("%s: after the operator's decision: %+v, %v", how, res, err)
			}
		}
	})
}

func panics[T any](b *env[T]) {
	b.eachWay(func(b *env[T], way string, do doFunc[T]) {
		req := request(way)
		value := &struct{ int }{7}
		func() {
			defer func() {
				if got := recover(); got != value {
					b.Errorf("the panic's value is %v", got)
				}
			}()
			_, err := do(context.Background(), b.keys, req, func(context.Context) (order, error) { panic(value) })
			b.Errorf("it returned %v", err)
		}()
		var all sync.WaitGroup
		all.Go(func() {
			_, err := do(context.Background(), b.keys, req, func(context.Context) (order, error) { runtime.Goexit(); return order{}, nil })
			b.Errorf("it returned %v", err)
		})
		all.Wait()
		if res, err := do(context.Background(), b.keys, req, making(new(int), "O")); err != nil || res.Replayed {
			b.Errorf("the next: %+v, %v", res, err)
		}
	})
}
