package idempotency_test

import (
	"context"
	"errors"
	"fmt"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

var errLost = fmt.Errorf("%w: the connection is gone", waybill.ErrUncertain)

// TestUncertainCommit: if the response to the commit is lost, the record
// decides whether it belongs to this run. Without a record, the outcome stays
// uncertain.
func TestUncertainCommit(t *testing.T) {
	for _, committed := range []bool{true, false} {
		t.Run(fmt.Sprint("committed ", committed), func(t *testing.T) {
			d, k := open(t, idempotency.Config{})
			d.commit = func(next func() (driver.CommitInfo, error)) (driver.CommitInfo, error) {
				if committed {
					if _, err := next(); err != nil {
						return driver.CommitInfo{}, err
					}
				}
				return driver.CommitInfo{}, errLost
			}
			req := request(t, "k")
			res, err := idempotency.DoTx(t.Context(), k, req, inTx(value("mine")))
			switch {
			case committed && (err != nil || res.Value != "mine" || res.Replayed):
				t.Errorf("it is committed: %+v, %v", res, err)
			case !committed && (!errors.Is(err, waybill.ErrUncertain) || errors.Is(err, idempotency.ErrUnresolved)):
				t.Errorf("the outcome is unknown: %v", err)
			}
			d.commit = nil
			again, err := idempotency.DoTx(t.Context(), k, req, inTx(never(t)))
			switch {
			case committed && (err != nil || again.Value != "mine" || !again.Replayed):
				t.Errorf("a repeat: %+v, %v", again, err)
			case !committed && !errors.Is(err, waybill.ErrInProgress):
				// The session is still open, as a lost one is for the server.
				t.Errorf("a repeat: %+v, %v", again, err)
			}
		})
	}
}

// TestAnotherRunsSuccess: the record of another run does not resolve an
// uncertain commit as this run's.
func TestAnotherRunsSuccess(t *testing.T) {
	d, k := open(t, idempotency.Config{})
	req := request(t, "k")
	d.find = func(func() (store.KeyRecord, bool, error)) (store.KeyRecord, bool, error) {
		return store.KeyRecord{State: store.KeySucceeded, Owner: waybill.NewID()}, true, nil
	}
	d.commit = func(func() (driver.CommitInfo, error)) (driver.CommitInfo, error) {
		return driver.CommitInfo{}, errLost
	}
	if res, err := idempotency.DoTx(t.Context(), k, req, inTx(value("mine"))); !errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("got %+v, %v", res, err)
	}
}

// TestRestarts: a transaction that the database aborted because of a conflict
// is run again, a limited number of times. Settings of the first round are
// reset.
func TestRestarts(t *testing.T) {
	for _, at := range []string{"commit", "function"} {
		d, k := open(t, idempotency.Config{})
		collisions, calls := 3, 0
		collide := func() error {
			if collisions == 0 {
				return nil
			}
			collisions--
			return errCollided
		}
		d.commit = func(next func() (driver.CommitInfo, error)) (driver.CommitInfo, error) {
			if at == "commit" {
				if err := collide(); err != nil {
					return driver.CommitInfo{}, err
				}
			}
			return next()
		}
		fn := func(ctx context.Context, _ tx) (string, error) {
			calls++
			if calls == 1 {
				idempotency.SetRef(ctx, "of the first")
				idempotency.DontStore(ctx)
			}
			if at == "function" {
				if err := collide(); err != nil {
					return "", err
				}
			} else if calls == 1 {
				// An answer that is not to be stored is not committed either.
				return "", errCollided
			}
			return "v", nil
		}
		req := request(t, "k")
		res, err := idempotency.DoTx(t.Context(), k, req, fn)
		if err != nil || calls < 4 || res.Ref != "" {
			t.Errorf("%s: %+v, %v after %d calls", at, res, err, calls)
		}
		if rec, ok := stateOf(t, d, req); !ok || rec.State != store.KeySucceeded || rec.Attempts != 1 {
			t.Errorf("%s: the record is %+v", at, rec)
		}
		collisions, calls = 1000, 1
		if _, err := idempotency.DoTx(t.Context(), k, request(t, "other"), fn); !errors.Is(err, errCollided) || calls > 50 {
			t.Errorf("%s: %v after %d calls", at, err, calls)
		}
	}
}

// TestNothingIsStoredOutsideTheTransaction: if the transaction has ended under
// the function, its answer must not be stored.
func TestNothingIsStoredOutsideTheTransaction(t *testing.T) {
	d, k := open(t, idempotency.Config{})
	d.prove = func() error { return waybill.ErrTxDone }
	req := request(t, "tx")
	if _, err := idempotency.DoTx(t.Context(), k, req, inTx(value(""))); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("DoTx: %v", err)
	}
	if rec, ok := stateOf(t, d, req); ok {
		t.Errorf("there is %+v", rec)
	}
	req = request(t, "phase")
	_, err := idempotency.Do(t.Context(), k, req, func(ctx context.Context) (int, error) {
		return idempotency.Phase(ctx, k, "p", func(context.Context, tx) (int, error) { return 1, nil })
	})
	if rec, _ := stateOf(t, d, req); !errors.Is(err, waybill.ErrTxDone) || rec.Point.Name != "" {
		t.Errorf("a phase: %v, %+v", err, rec)
	}
}

// TestPersistFails: the caller gets the answer, the key is not released, and
// the failure is reported.
func TestPersistFails(t *testing.T) {
	var reported []error
	d, k := open(t, idempotency.Config{Observe: observe.Hooks{KeyUnkept: func(info observe.KeyUnkeptInfo) { reported = append(reported, info.Err) }}})
	d.end = func(func() (bool, error)) (bool, error) { return false, errBoom }
	req := request(t, "k")
	res, err := idempotency.Do(t.Context(), k, req, value("v"))
	if err != nil || res.Value != "v" || res.Replayed || !errors.Is(res.Unkept, errBoom) {
		t.Errorf("got %+v, %v", res, err)
	}
	if len(reported) != 1 || !errors.Is(reported[0], errBoom) || !errors.Is(reported[0], idempotency.ErrStore) {
		t.Errorf("reported %v", reported)
	}
	if rec, _ := stateOf(t, d, req); rec.State != store.KeyProcessing {
		t.Errorf("the record is %+v", rec)
	}
	if _, err := idempotency.Do(t.Context(), k, req, never(t)); !errors.Is(err, waybill.ErrInProgress) {
		t.Errorf("the next: %v", err)
	}
}

// TestPersistIsTriedAgain: the answer is stored despite a temporary failure,
// even if the store succeeded and its response was lost.
func TestPersistIsTriedAgain(t *testing.T) {
	for _, did := range []bool{false, true} {
		d, k := open(t, idempotency.Config{})
		stumbles := 1
		d.end = func(next func() (bool, error)) (bool, error) {
			if stumbles == 0 {
				return next()
			}
			stumbles--
			if did {
				if _, err := next(); err != nil {
					return false, err
				}
			}
			return false, errBoom
		}
		req := request(t, "k")
		res, err := idempotency.Do(t.Context(), k, req, value("v"))
		if err != nil || res.Value != "v" || res.Unkept != nil || res.Replayed {
			t.Errorf("did %v: %+v, %v", did, res, err)
		}
		if rec, _ := stateOf(t, d, req); rec.State != store.KeySucceeded || string(rec.Result) != `"v"` {
			t.Errorf("did %v: the record is %+v", did, rec)
		}
	}
}

// TestAClaimWhoseAnswerWasLost: nothing has run, and the key is not held until
// its lease expires.
func TestAClaimWhoseAnswerWasLost(t *testing.T) {
	for _, did := range []bool{false, true} {
		d, k := open(t, idempotency.Config{})
		d.claim = func(next func() (store.KeyRecord, bool, error)) (store.KeyRecord, bool, error) {
			if did {
				_, _, _ = next()
			}
			return store.KeyRecord{}, false, errBoom
		}
		req := request(t, "k")
		if _, err := idempotency.Do(t.Context(), k, req, never(t)); !errors.Is(err, idempotency.ErrStore) || !errors.Is(err, errBoom) {
			t.Errorf("did %v: %v", did, err)
		}
		d.claim = nil
		if res, err := idempotency.Do(t.Context(), k, req, value("v")); err != nil || res.Value != "v" {
			t.Errorf("did %v: the next: %+v, %v", did, res, err)
		}
	}
}

// TestAPhaseWhoseCommitWasLost: the record decides whether the phase is saved;
// if not, the next attempt runs it.
func TestAPhaseWhoseCommitWasLost(t *testing.T) {
	for _, committed := range []bool{true, false} {
		d, k := open(t, idempotency.Config{})
		lost := true
		d.commit = func(next func() (driver.CommitInfo, error)) (driver.CommitInfo, error) {
			if !lost {
				return next()
			}
			lost = false
			if committed {
				_, _ = next()
				return driver.CommitInfo{}, errLost
			}
			return driver.CommitInfo{}, errBoom
		}
		calls := 0
		run := func() (idempotency.Result[int], error) {
			return idempotency.Do(t.Context(), k, request(t, "k"), func(ctx context.Context) (int, error) {
				a, err := idempotency.Phase(ctx, k, "a", func(context.Context, tx) (int, error) { calls++; return calls, nil })
				if err != nil {
					return 0, err
				}
				return idempotency.Phase(ctx, k, "b", func(context.Context, tx) (int, error) { return 10 * a, nil })
			})
		}
		res, err := run()
		if !committed {
			if !errors.Is(err, errBoom) {
				t.Errorf("not committed: %v", err)
			}
			res, err = run()
		}
		if want := map[bool]int{true: 1, false: 2}[committed]; err != nil || res.Value != 10*want || calls != want {
			t.Errorf("committed %v: %+v, %v after %d calls", committed, res, err, calls)
		}
	}
}

// TestPhasesHaveALimit: the results of all phases together fit into the record.
func TestPhasesHaveALimit(t *testing.T) {
	d, k := open(t, idempotency.Config{MaxResult: 100})
	req := request(t, "k")
	_, err := idempotency.Do(t.Context(), k, req, func(ctx context.Context) (string, error) {
		return idempotency.Phase(ctx, k, "p", func(context.Context, tx) (string, error) { return string(make([]byte, 200)), nil })
	})
	if rec, _ := stateOf(t, d, req); err == nil || rec.State != store.KeyFailed || rec.Point.Name != "" {
		t.Errorf("got %v, %+v", err, rec)
	}
	for _, name := range []string{"", string(make([]byte, 129))} {
		_, err := idempotency.Do(t.Context(), k, request(t, "n"), func(ctx context.Context) (int, error) {
			return idempotency.Phase(ctx, k, name, func(context.Context, tx) (int, error) { return 0, nil })
		})
		if err == nil {
			t.Errorf("a name of %d bytes is accepted", len(name))
		}
	}
}

// TestStoreErrors: errors of the store are distinct from those of the function.
func TestStoreErrors(t *testing.T) {
	d, k := open(t, idempotency.Config{})
	d.commit = func(func() (driver.CommitInfo, error)) (driver.CommitInfo, error) {
		return driver.CommitInfo{}, errBoom
	}
	if _, err := idempotency.DoTx(t.Context(), k, request(t, "k"), inTx(value(""))); !errors.Is(err, idempotency.ErrStore) || !errors.Is(err, errBoom) {
		t.Errorf("the commit: %v", err)
	}
	own := fmt.Errorf("%w: of another database", waybill.ErrUncertain)
	_, err := idempotency.DoTx(t.Context(), k, request(t, "k"), func(context.Context, tx) (int, error) { return 0, own })
	if err != own { //nolint:errorlint // as it is
		t.Errorf("the function's: %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := idempotency.DoTx(ctx, k, request(t, "k"), inTx(never(t))); !errors.Is(err, context.Canceled) {
		t.Errorf("a caller that has gone: %v", err)
	}
}

// TestTheCallerHasGone: the outcome of a run is recorded even if the caller has
// gone, whatever the outcome.
func TestTheCallerHasGone(t *testing.T) {
	d, k := open(t, idempotency.Config{})
	for name, tc := range map[string]struct {
		end   func(ctx context.Context) (string, error)
		state store.KeyState
	}{
		"succeeds": {value("v"), store.KeySucceeded},
		"fails":    {func(ctx context.Context) (string, error) { return "", ctx.Err() }, store.KeyFailed},
		"called": {func(ctx context.Context) (string, error) {
			return idempotency.Call(ctx, k, "c", func(context.Context, string) (string, error) { return "v", nil })
		}, store.KeySucceeded},
	} {
		ctx, cancel := context.WithCancel(t.Context())
		req := request(t, name)
		_, err := idempotency.Do(ctx, k, req, func(ctx context.Context) (string, error) { cancel(); return tc.end(ctx) })
		if rec, _ := stateOf(t, d, req); rec.State != tc.state || (err == nil) != (tc.state == store.KeySucceeded) {
			t.Errorf("%s: %v, and the record is %+v", name, err, rec)
		}
	}
}
