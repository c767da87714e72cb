package idemtest

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store"
)

func phaseChecks[T any]() []check[T] {
	return []check[T]{
		{name: "phases_resume_after_the_last_committed_one", run: resume[T]},
		{name: "phases_of_other_code_stop_the_run", run: otherCode[T]},
		{name: "a_phase_that_lost_its_lease_is_rolled_back", run: phaseLost[T]},
		{name: "a_downstream_key_belongs_to_the_record", run: downstream[T]},
		{name: "phases_need_Do", run: phasesNeedDo[T]},
	}
}

// journey is a run of three phases that is interrupted after some of them.
type journey[T any] struct {
	b     *env[T]
	req   idempotency.Request
	calls []string // the calls, with the downstream keys
}

func (j *journey[T]) run(cut int) (idempotency.Result[order], error) {
	b := j.b
	return idempotency.Do(context.Background(), b.keys, j.req, func(ctx context.Context) (order, error) {
		if cut == 0 {
			return order{}, errBoom
		}
		reserved, err := idempotency.Phase(ctx, b.keys, "reserve", func(ctx context.Context, tx T) (int, error) {
			j.calls = append(j.calls, "reserve")
			return 41, b.effect(ctx, tx, "reserved")
		})
		if err != nil || cut == 1 {
			return order{}, errors.Join(err, errBoom)
		}
		charge, err := idempotency.Call(ctx, b.keys, "charge", func(_ context.Context, key string) (string, error) {
			j.calls = append(j.calls, "charge "+key)
			if cut == 2 {
				return "", errBoom // the call may have arrived
			}
			return fmt.Sprintf("charge of %d", reserved), nil
		})
		if err != nil || cut == 3 {
			return order{}, errors.Join(err, errBoom)
		}
		return idempotency.Phase(ctx, b.keys, "book", func(ctx context.Context, tx T) (order, error) {
			j.calls = append(j.calls, "book")
			err := b.effect(ctx, tx, "booked")
			if cut == 4 {
				err = errBoom
			}
			return order{ID: "O-1", Note: charge, Total: reserved}, err
		})
	})
}

func resume[T any](b *env[T]) {
	j := &journey[T]{b: b, req: request("journey")}
	for _, cut := range []int{0, 1, 0, 2, 2, 3, 1, 4, 0} {
		if _, err := j.run(cut); !errors.Is(err, errBoom) {
			b.Fatalf("cut at %d: %v", cut, err)
		}
	}
	res, err := j.run(9)
	if err != nil || res.Replayed || res.Value != (order{ID: "O-1", Note: "charge of 41", Total: 41}) {
		b.Errorf("the last: %+v, %v", res, err)
	}
	if again, err := j.run(9); err != nil || !again.Replayed || again.Value != res.Value {
		b.Errorf("a repeat: %+v, %v", again, err)
	}
	// reserve once; charge at the two interruptions and once more; book, which
	// rolled back, and again.
	if len(j.calls) != 6 || j.calls[0] != "reserve" || j.calls[4] != "book" || j.calls[5] != "book" {
		b.Errorf("calls: %q", j.calls)
	}
	if j.calls[1] != j.calls[2] || j.calls[2] != j.calls[3] {
		b.Errorf("a downstream call got several keys: %q", j.calls)
	}
	b.wantEffects("reserved", 1)
	b.wantEffects("booked", 1)
	if rec := b.record(j.req); rec.Attempts != 10 {
		b.Errorf("%d attempts, want 10", rec.Attempts)
	}
}

func otherCode[T any](b *env[T]) {
	nothing := func(context.Context, T) (int, error) { return 0, nil }
	never := func(context.Context, T) (int, error) { b.Error("a phase of other code was called"); return 0, nil }
	for how, next := range map[string]struct {
		run   func(ctx context.Context) (order, error)
		state store.KeyState
	}{
		"renamed": {func(ctx context.Context) (order, error) {
			_, err := idempotency.Phase(ctx, b.keys, "other", never)
			return order{}, err
		}, store.KeyFailed},
		"renamed, and the error is swallowed": {func(ctx context.Context) (order, error) {
			_, _ = idempotency.Phase(ctx, b.keys, "other", never)
			_, _ = idempotency.Phase(ctx, b.keys, "first", never)
			return order{}, nil
		}, store.KeyFailed},
		"another type": {func(ctx context.Context) (order, error) {
			_, err := idempotency.Phase(ctx, b.keys, "first", func(context.Context, T) ([]string, error) { return nil, nil })
			return order{}, err
		}, store.KeyFailed},
		// The run may have repeated the effect of the phase.
		"gone": {func(context.Context) (order, error) { return order{}, nil }, store.KeyUncertain},
	} {
		req := request(how)
		_, err := idempotency.Do(context.Background(), b.keys, req, func(ctx context.Context) (order, error) {
			_, err := idempotency.Phase(ctx, b.keys, "first", nothing)
			return order{}, errors.Join(err, errBoom)
		})
		if !errors.Is(err, errBoom) {
			b.Fatal(err)
		}
		if _, err := idempotency.Do(context.Background(), b.keys, req, next.run); !errors.Is(err, idempotency.ErrUnknownPhase) {
			b.Errorf("%s: %v", how, err)
		}
		b.wantState(req, next.state)
	}
}

func phaseLost[T any](b *env[T]) {
	leaseless := b.leaseless()
	req := request("lost")
	_, err := idempotency.Do(context.Background(), leaseless, req, func(ctx context.Context) (order, error) {
		b.until("the lease has run out", func() bool { rec := b.record(req); return !rec.LeaseUntil.After(rec.Now) })
		b.dead(req, time.Hour)
		// Not the ended context: a function that ignores it must not get
		// through.
		_, err := idempotency.Phase(context.WithoutCancel(ctx), leaseless, "late", func(ctx context.Context, tx T) (int, error) { return 0, b.effect(ctx, tx, "late") })
		return order{}, err
	})
	if !errors.Is(err, waybill.ErrLeaseLost) {
		b.Errorf("got %v", err)
	}
	b.wantEffects("late", 0)
	if rec := b.wantState(req, store.KeyProcessing); rec.Point.Name != "" || rec.Fence != 2 {
		b.Errorf("the record is %+v", rec)
	}
}

func downstream[T any](b *env[T]) {
	key := func(req idempotency.Request, name string, result error) (key string) {
		_, err := idempotency.Do(context.Background(), b.keys, req, func(ctx context.Context) (order, error) {
			var err error
			if key, err = idempotency.DownstreamKey(ctx, name); err != nil {
				return order{}, err
			}
			return order{}, result
		})
		if !errors.Is(err, result) || len(key) != 36 {
			b.Errorf("the key is %q: %v", key, err)
		}
		return key
	}
	req := request("k")
	req.Retention = 24 * time.Hour
	first := key(req, "charge", errBoom)
	if again := key(req, "charge", errBoom); again != first {
		b.Errorf("two attempts have %s and %s", first, again)
	}
	if other := key(req, "refund", errBoom); other == first {
		b.Error("two names have the same downstream key")
	}
	if other := key(request("K"), "charge", errBoom); other == first {
		b.Error("two requests have the same downstream key")
	}
	req.Retention = time.Millisecond
	if last := key(req, "charge", nil); last != first {
		b.Errorf("two attempts have %s and %s", first, last)
	}
	b.expired(req)
	if other := key(req, "charge", nil); other == first {
		b.Error("a request after the expiry of its record has the same downstream key")
	}
}

func phasesNeedDo[T any](b *env[T]) {
	nothing := func(context.Context, T) (int, error) { return 0, nil }
	if _, err := idempotency.Phase(context.Background(), b.keys, "p", nothing); err == nil {
		b.Error("outside of a run")
	}
	_, err := idempotency.DoTx(context.Background(), b.keys, request("tx"), func(ctx context.Context, _ T) (order, error) {
		if _, err := idempotency.DownstreamKey(ctx, "p"); err == nil {
			b.Error("DoTx has a downstream key")
		}
		_, err := idempotency.Phase(ctx, b.keys, "p", nothing)
		return order{}, err
	})
	if err == nil {
		b.Error("in DoTx")
	}
	_, err = idempotency.Do(context.Background(), b.keys, request("do"), func(ctx context.Context) (order, error) {
		if _, err := idempotency.Phase(ctx, b.open(b.db, idempotency.Config{}), "p", nothing); err == nil {
			b.Error("with other keys")
		}
		_, err := idempotency.Phase(ctx, b.keys, "p", func(ctx context.Context, _ T) (int, error) { return idempotency.Phase(ctx, b.keys, "q", nothing) })
		if !errors.Is(err, waybill.ErrNested) {
			b.Errorf("one in another: %v", err)
		}
		if _, err := idempotency.Phase(ctx, b.keys, "p", nothing); err != nil {
			b.Errorf("after it was rolled back: %v", err)
		}
		if _, err := idempotency.Phase(ctx, b.keys, "p", nothing); err == nil {
			b.Error("two phases with the same name")
		}
		return order{}, nil
	})
	if err != nil {
		b.Error(err)
	}
}
