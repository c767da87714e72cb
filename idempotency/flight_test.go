package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store"
)

// TestParallelDuplicatesShareOneClaim: a duplicate of a request in flight in
// this process costs the store nothing.
func TestParallelDuplicatesShareOneClaim(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := open(t, idempotency.Config{})
		req := request(t, "k")
		release := make(chan struct{})
		go func() {
			_, _ = idempotency.Do(t.Context(), k, req, func(context.Context) (string, error) { <-release; return "v", nil })
		}()
		synctest.Wait()
		other := req
		other.Hash = hash(t, "pears")
		waiting := req
		waiting.WaitMax = time.Minute
		for range 10 {
			if _, err := idempotency.Do(t.Context(), k, req, never(t)); !errors.Is(err, waybill.ErrInProgress) {
				t.Errorf("a duplicate: %v", err)
			}
			if _, err := idempotency.Do(t.Context(), k, other, never(t)); !errors.Is(err, waybill.ErrConflict) {
				t.Errorf("another request: %v", err)
			}
		}
		var all sync.WaitGroup
		for range 10 {
			all.Go(func() {
				if res, err := idempotency.Do(t.Context(), k, waiting, never(t)); err != nil || !res.Replayed || res.Value != "v" {
					t.Errorf("a waiting request: %+v, %v", res, err)
				}
			})
		}
		synctest.Wait()
		close(release)
		all.Wait()
		if d.claims.Load() != 1 || d.finds.Load() != 0 {
			t.Errorf("%d claims and %d reads for 31 requests", d.claims.Load(), d.finds.Load())
		}
	})
}

// TestABurstOfRepeatsGetsTheAnswer: a claim in progress has no outcome yet.
// Repeats wait for the outcome and share it.
func TestABurstOfRepeatsGetsTheAnswer(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := open(t, idempotency.Config{})
		req := request(t, "k")
		if _, err := idempotency.Do(t.Context(), k, req, value("v")); err != nil {
			t.Fatal(err)
		}
		hold := make(chan struct{})
		d.claim = func(next func() (store.KeyRecord, bool, error)) (store.KeyRecord, bool, error) { <-hold; return next() }
		var all sync.WaitGroup
		bodies := make(chan []byte, 20)
		for range 20 {
			all.Go(func() {
				res, err := k.DoBytes(t.Context(), req, nil2(t))
				if err != nil || !res.Replayed || string(res.Body) != `"v"` {
					t.Errorf("a repeat: %+v, %v", res, err)
				}
				bodies <- res.Body
			})
		}
		synctest.Wait()
		close(hold)
		all.Wait()
		if n := d.claims.Load(); n != 2 {
			t.Errorf("%d claims for the first and 20 repeats", n)
		}
		close(bodies)
		for b := range bodies { // each has its own bytes
			if string(b) != `"v"` {
				t.Errorf("the body is %q", b)
			}
			b[1] = 'x'
		}
	})
}

func nil2(t *testing.T) func(context.Context) (idempotency.Answer, error) {
	return func(context.Context) (idempotency.Answer, error) {
		t.Error("it was called")
		return idempotency.Answer{}, nil
	}
}

// TestAWrongRequestDoesNotSpoilTheRightOne: while the claim of a conflicting
// request is in progress, the right request is not refused as a conflict.
func TestAWrongRequestDoesNotSpoilTheRightOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := open(t, idempotency.Config{})
		req := request(t, "k")
		if _, err := idempotency.Do(t.Context(), k, req, value("v")); err != nil {
			t.Fatal(err)
		}
		hold := make(chan struct{})
		d.claim = func(next func() (store.KeyRecord, bool, error)) (store.KeyRecord, bool, error) { <-hold; return next() }
		wrong := req
		wrong.Hash = hash(t, "pears")
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := idempotency.Do(t.Context(), k, wrong, never(t)); !errors.Is(err, waybill.ErrConflict) {
				t.Errorf("the wrong one: %v", err)
			}
		})
		synctest.Wait()
		all.Go(func() {
			if res, err := idempotency.Do(t.Context(), k, req, never(t)); err != nil || !res.Replayed {
				t.Errorf("the right one: %+v, %v", res, err)
			}
		})
		synctest.Wait()
		close(hold)
		all.Wait()
	})
}

// TestTheLeaderGivesUp: the leader's context does not affect the others.
func TestTheLeaderGivesUp(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := open(t, idempotency.Config{})
		req := request(t, "k")
		hold := make(chan error)
		d.claim = func(next func() (store.KeyRecord, bool, error)) (store.KeyRecord, bool, error) {
			if err := <-hold; err != nil {
				return store.KeyRecord{}, false, err
			}
			return next()
		}
		var all sync.WaitGroup
		all.Go(func() {
			if _, err := idempotency.Do(t.Context(), k, req, never(t)); !errors.Is(err, context.Canceled) {
				t.Errorf("the leader: %v", err)
			}
		})
		synctest.Wait()
		all.Go(func() {
			if res, err := idempotency.Do(t.Context(), k, req, value("v")); err != nil || res.Value != "v" {
				t.Errorf("the request after the leader: %+v, %v", res, err)
			}
		})
		synctest.Wait()
		ctx, cancel := context.WithCancel(t.Context())
		all.Go(func() {
			if _, err := idempotency.Do(ctx, k, req, never(t)); !errors.Is(err, context.Canceled) {
				t.Errorf("a request that did not wait for the claim: %v", err)
			}
		})
		synctest.Wait()
		cancel()
		synctest.Wait()
		hold <- context.Canceled
		hold <- nil
		all.Wait()
	})
}

// TestWaiting: for a run in this process, and in another one.
func TestWaiting(t *testing.T) {
	for _, elsewhere := range []bool{false, true} {
		for _, way := range []string{"Do", "DoTx"} {
			t.Run(fmt.Sprint(way, " elsewhere ", elsewhere), func(t *testing.T) {
				synctest.Test(t, func(t *testing.T) { waiting(t, way, elsewhere) })
			})
		}
	}
}

func waiting(t *testing.T, way string, elsewhere bool) {
	d, k := open(t, idempotency.Config{})
	mine := k
	if elsewhere {
		mine = another(t, d, idempotency.Config{})
	}
	do := func(ctx context.Context, k *keys, req idempotency.Request, fn func(context.Context) (string, error)) (idempotency.Result[string], error) {
		if way == "DoTx" {
			return idempotency.DoTx(ctx, k, req, inTx(fn))
		}
		return idempotency.Do(ctx, k, req, fn)
	}
	run := func(key string, takes time.Duration, result error) {
		go func() {
			_, _ = do(t.Context(), k, request(t, key), func(context.Context) (string, error) {
				<-time.After(takes)
				return "theirs", result
			})
		}()
		synctest.Wait()
	}
	req := request(t, "succeeds")
	req.WaitMax = 20 * time.Second
	run(req.Key, 10*time.Second, nil)
	began := time.Now()
	if res, err := do(t.Context(), mine, req, never(t)); err != nil || !res.Replayed || res.Value != "theirs" || time.Since(began) > 11*time.Second {
		t.Errorf("the run succeeds: %+v, %v after %v", res, err, time.Since(began))
	}

	req.Key = "fails"
	run(req.Key, 10*time.Second, errBoom)
	began = time.Now()
	if res, err := do(t.Context(), mine, req, value("mine")); err != nil || res.Replayed || res.Value != "mine" || time.Since(began) > 11*time.Second {
		t.Errorf("the run fails: %+v, %v after %v", res, err, time.Since(began))
	}

	req.Key = "takes long"
	req.WaitMax = 5 * time.Second
	run(req.Key, 10*time.Second, nil)
	began = time.Now()
	if _, err := do(t.Context(), mine, req, never(t)); !errors.Is(err, waybill.ErrInProgress) || time.Since(began) != req.WaitMax {
		t.Errorf("the run takes too long: %v after %v", err, time.Since(began))
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Second)
	defer cancel()
	if _, err := do(ctx, mine, req, never(t)); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("the context ends: %v", err)
	}
	d.find = func(func() (store.KeyRecord, bool, error)) (store.KeyRecord, bool, error) {
		return store.KeyRecord{}, false, errBoom
	}
	if _, err := do(t.Context(), mine, req, never(t)); elsewhere && !errors.Is(err, idempotency.ErrStore) {
		t.Errorf("the store fails: %v", err)
	}
	d.find = nil
	<-time.After(10 * time.Second) // the run has ended
}

// TestOneOfThoseWhoWaitRuns: if a run fails, the next waiting request runs;
// until one succeeds.
func TestOneOfThoseWhoWaitRuns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		d, k := open(t, idempotency.Config{})
		processes := []*keys{k, another(t, d, idempotency.Config{}), another(t, d, idempotency.Config{})}
		req := request(t, "k")
		req.WaitMax = time.Hour
		var mu sync.Mutex
		calls, failed := 0, 0
		var all sync.WaitGroup
		for i := range 30 {
			all.Go(func() {
				res, err := idempotency.Do(t.Context(), processes[i%3], req, func(context.Context) (int, error) {
					mu.Lock()
					calls++
					n := calls
					mu.Unlock()
					<-time.After(time.Second)
					if n < 5 {
						return 0, errBoom
					}
					return n, nil
				})
				mu.Lock()
				defer mu.Unlock()
				switch {
				case errors.Is(err, errBoom):
					failed++
				case err != nil || res.Value != 5:
					t.Errorf("got %+v, %v", res, err)
				}
			})
		}
		all.Wait()
		if calls != 5 || failed != 4 {
			t.Errorf("%d calls, %d of them failed", calls, failed)
		}
	})
}
