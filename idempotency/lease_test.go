package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// TestHeartbeat: the lease is renewed every third of it, as long as the run
// takes.
func TestHeartbeat(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := open(t, idempotency.Config{}) // 30 s
		req := request(t, "k")
		other := another(t, d, idempotency.Config{})
		_, err := idempotency.Do(t.Context(), k, req, func(ctx context.Context) (int, error) {
			for range 10 {
				<-time.After(20*time.Second + time.Millisecond)
				_, err := idempotency.Do(t.Context(), other, req, func(context.Context) (int, error) { t.Error("two run"); return 0, nil })
				var in *idempotency.InProgressError
				if !errors.As(err, &in) || in.RetryAfter < 19*time.Second {
					t.Errorf("another one: %v", err)
				}
				_, err = idempotency.Do(t.Context(), k, req, func(context.Context) (int, error) { t.Error("two run"); return 0, nil })
				if !errors.As(err, &in) || in.RetryAfter < 19*time.Second {
					t.Errorf("another one in this process: %v", err)
				}
			}
			return 0, ctx.Err()
		})
		if err != nil {
			t.Error(err)
		}
		if n := d.renews.Load(); n != 20 {
			t.Errorf("%d renewals in 200 s", n)
		}
	})
}

// TestALeaseIsLost: immediately when the store reports it; without an answer
// from the store, as soon as the lease has expired. A store that recovers in
// time changes nothing.
func TestALeaseIsLost(t *testing.T) {
	for name, tc := range map[string]struct {
		renew func(n int64, next func() (bool, error)) (bool, error)
		lost  time.Duration // 0: never
	}{
		"the store says no":      {func(int64, func() (bool, error)) (bool, error) { return false, nil }, 10 * time.Second},
		"the store does not say": {func(int64, func() (bool, error)) (bool, error) { return false, errBoom }, 30 * time.Second},
		"the store comes back": {func(n int64, next func() (bool, error)) (bool, error) {
			if n < 4 {
				return false, errBoom
			}
			return next()
		}, 0},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				d, k := open(t, idempotency.Config{})
				d.renew = func(next func() (bool, error)) (bool, error) { return tc.renew(d.renews.Load(), next) }
				began := time.Now()
				_, err := idempotency.Do(t.Context(), k, request(t, "k"), func(ctx context.Context) (int, error) {
					select {
					case <-ctx.Done():
						if took := time.Since(began); took != tc.lost {
							t.Errorf("it was lost after %v, want %v", took, tc.lost)
						}
						return 0, context.Cause(ctx)
					case <-time.After(5 * time.Minute):
						if tc.lost > 0 {
							t.Error("the context did not end")
						}
						return 0, nil
					}
				})
				if lost := errors.Is(err, waybill.ErrLeaseLost); lost != (tc.lost > 0) {
					t.Errorf("got %v", err)
				}
			})
		})
	}
}

// TestMaxExecution: the context ends, and a run that ignores it loses the key.
func TestMaxExecution(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := open(t, idempotency.Config{MaxExecution: time.Minute})
		for _, way := range []string{"Do", "DoTx"} {
			began := time.Now()
			fn := func(ctx context.Context) (int, error) { <-ctx.Done(); return 0, context.Cause(ctx) }
			var err error
			if way == "Do" {
				_, err = idempotency.Do(t.Context(), k, request(t, way), fn)
			} else {
				_, err = idempotency.DoTx(t.Context(), k, request(t, way), inTx(fn))
			}
			if !errors.Is(err, context.DeadlineExceeded) || time.Since(began) != time.Minute {
				t.Errorf("%s: %v after %v", way, err, time.Since(began))
			}
		}
		req := request(t, "stubborn")
		res, err := idempotency.Do(t.Context(), k, req, func(context.Context) (string, error) {
			<-time.After(2 * time.Minute)
			other, err := idempotency.Do(t.Context(), another(t, d, idempotency.Config{}), req, value("the other's"))
			if err != nil || other.Replayed {
				t.Errorf("the other: %+v, %v", other, err)
			}
			return "mine", nil
		})
		if err != nil || !res.Replayed || res.Value != "the other's" {
			t.Errorf("the run that ignores its context: %+v, %v", res, err)
		}
		_, k = open(t, idempotency.Config{MaxExecution: -1})
		res, err = idempotency.Do(t.Context(), k, request(t, "k"), func(ctx context.Context) (string, error) {
			<-time.After(24 * time.Hour)
			return "v", ctx.Err()
		})
		if err != nil || res.Value != "v" {
			t.Errorf("without a limit: %+v, %v", res, err)
		}
	})
}

// TestALateRunWhoseKeyIsAnothers: the key expired in the meantime, and belongs
// to another request now. The late run does not get that answer.
func TestALateRunWhoseKeyIsAnothers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := open(t, idempotency.Config{})
		d.renew = func(func() (bool, error)) (bool, error) { return false, errBoom }
		req := request(t, "k")
		_, err := idempotency.Do(t.Context(), k, req, func(context.Context) (string, error) {
			<-time.After(time.Minute)
			successor := another(t, d, idempotency.Config{Retention: time.Second})
			if _, err := idempotency.Do(t.Context(), successor, req, value("the successor's")); err != nil {
				t.Error(err)
			}
			<-time.After(time.Minute)
			other := req
			other.Hash = hash(t, "pears")
			if _, err := idempotency.Do(t.Context(), successor, other, value("another's")); err != nil {
				t.Error(err)
			}
			return "late", nil
		})
		if !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("got %v", err)
		}
		d.find = func(func() (store.KeyRecord, bool, error)) (store.KeyRecord, bool, error) {
			return store.KeyRecord{}, false, errBoom
		}
		req = request(t, "other")
		_, err = idempotency.Do(t.Context(), k, req, func(context.Context) (string, error) {
			<-time.After(time.Minute)
			if _, err := idempotency.Do(t.Context(), another(t, d, idempotency.Config{}), req, value("the successor's")); err != nil {
				t.Error(err)
			}
			return "late", nil
		})
		if !errors.Is(err, waybill.ErrLeaseLost) || !errors.Is(err, errBoom) {
			t.Errorf("when the key cannot be read: %v", err)
		}
	})
}

// TestALateRunLeavesNothing: a late run returns the answer of its successor,
// without any part of its own.
func TestALateRunLeavesNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := open(t, idempotency.Config{})
		d.renew = func(func() (bool, error)) (bool, error) { return false, errBoom }
		req := request(t, "k")
		res, err := idempotency.Do(t.Context(), k, req, func(context.Context) (map[string]int, error) {
			<-time.After(time.Minute)
			successor := another(t, d, idempotency.Config{})
			made := func(context.Context) (map[string]int, error) { return map[string]int{"first": 1}, nil }
			if _, err := idempotency.Do(t.Context(), successor, req, made); err != nil {
				t.Error(err)
			}
			return map[string]int{"late": 2}, nil
		})
		if err != nil || !res.Replayed || len(res.Value) != 1 || res.Value["first"] != 1 {
			t.Errorf("got %+v, %v", res, err)
		}
	})
}

// TestRunCleans: about once per interval, batch by batch, and soon after the
// start; a failure does not stop it.
func TestRunCleans(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var purged, counted int
		hooks := observe.Hooks{
			Purged: func(info observe.PurgedInfo) {
				if info.Kind == "keys" {
					purged += info.Rows
				}
			},
			Keys: func(s observe.KeysInfo) { counted += int(s.Lapsed) },
		}
		d, k := open(t, idempotency.Config{Observe: hooks, Retention: time.Minute})
		for i := range 1100 {
			if _, err := idempotency.Do(t.Context(), k, request(t, fmt.Sprint(i)), value("")); err != nil {
				t.Fatal(err)
			}
		}
		<-time.After(time.Minute)
		var limits []int
		var times []time.Time
		d.purge = func(limit int) (int, error) {
			limits = append(limits, limit)
			if len(times) == 0 || time.Since(times[len(times)-1]) > 0 {
				times = append(times, time.Now())
			}
			if len(times) == 2 {
				return 0, errBoom
			}
			return d.Complete.PurgeKeys(t.Context(), limit)
		}
		d.stats = func() (store.KeyStats, error) { return store.KeyStats{Lapsed: 1}, nil }
		ctx, cancel := context.WithCancel(t.Context())
		began := time.Now()
		done := make(chan error, 1)
		go func() { done <- k.Run(ctx) }()
		synctest.Wait()
		if err := k.Run(ctx); err == nil {
			t.Error("a second Run was accepted")
		}
		<-time.After(10 * time.Hour)
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
		if purged != 1100 || len(limits) < 3 || limits[0] != 500 {
			t.Errorf("%d were removed, in batches of %v", purged, limits[:min(len(limits), 5)])
		}
		if len(times) < 6 || len(times) > 22 || times[0].Sub(began) > 2*time.Minute {
			t.Errorf("%d purges in ten hours", len(times))
		}
		if counted < 700 || counted > 2500 {
			t.Errorf("%d counts in ten hours", counted)
		}
		ctx, cancel = context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		if err := k.Run(ctx); err != nil { // the first Run has ended
			t.Error(err)
		}
	})
}

// TestRunWithNothingToDo: Run waits for the end of its context.
func TestRunWithNothingToDo(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := open(t, idempotency.Config{PurgeInterval: -1, CountInterval: -1})
		d.purge = func(int) (int, error) { t.Error("it cleans"); return 0, nil }
		ctx, cancel := context.WithTimeout(t.Context(), 24*time.Hour)
		defer cancel()
		if err := k.Run(ctx); err != nil {
			t.Error(err)
		}
	})
}

// TestLeaseOfARequest: it replaces the lease of the keys, for the claim and for
// its renewals.
func TestLeaseOfARequest(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := open(t, idempotency.Config{}) // 30 s
		req := request(t, "k")
		req.Lease = 3 * time.Minute
		other := another(t, d, idempotency.Config{})
		_, err := idempotency.Do(t.Context(), k, req, func(ctx context.Context) (int, error) {
			for _, after := range []time.Duration{time.Second, 3 * time.Minute} {
				<-time.After(after)
				_, err := idempotency.Do(t.Context(), other, req, func(context.Context) (int, error) { t.Error("two run"); return 0, nil })
				var in *idempotency.InProgressError
				if !errors.As(err, &in) || in.RetryAfter < 110*time.Second {
					t.Errorf("another one after %v: %v", after, err)
				}
			}
			return 0, ctx.Err()
		})
		if err != nil {
			t.Error(err)
		}
		if n := d.renews.Load(); n != 3 {
			t.Errorf("%d renewals in 3 minutes, want one a minute", n)
		}
		req.Lease = -1
		if err := req.Validate(); err == nil {
			t.Error("a negative lease is valid")
		}
	})
}
