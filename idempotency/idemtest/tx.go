package idemtest

import (
	"context"
	"errors"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/store"
)

func txChecks[T any]() []check[T] {
	return []check[T]{
		{name: "DoTx_commits_everything_or_nothing", run: oneTransaction[T]},
		{name: "DoTx_is_refused_immediately_while_another_is_open", concurrent: true, run: answeredAtOnce[T]},
		{name: "DoTx_takes_over_a_key_of_Do", run: afterDo[T]},
		{name: "nested_in_a_transaction_is_refused", run: nested[T]},
		{name: "a_savepoint_rolls_back_only_its_own_writes", run: savepoint[T]},
	}
}

func oneTransaction[T any](b *env[T]) {
	req := request("tx")
	run := func(id string, result error) (idempotency.Result[order], error) {
		return idempotency.DoTx(context.Background(), b.keys, req, func(ctx context.Context, tx T) (order, error) {
			// An outbox joins through the context, too.
			err := b.box.InTx(ctx, func(ctx context.Context, tx T) error { return b.effect(ctx, tx, "E") })
			return order{ID: id}, errors.Join(err, b.effect(ctx, tx, "E"), result)
		})
	}
	if _, err := run("O-1", errBoom); !errors.Is(err, errBoom) {
		b.Errorf("a failure: %v", err)
	}
	b.wantEffects("E", 0)
	b.wantNone(req)
	if res, err := run("O-2", nil); err != nil || res.Replayed {
		b.Errorf("a success: %+v, %v", res, err)
	}
	b.wantEffects("E", 2)
	if res, err := run("O-3", nil); err != nil || !res.Replayed || res.Value.ID != "O-2" || res.Ref != "O-2" {
		b.Errorf("a repeat: %+v, %v", res, err)
	}
	b.wantEffects("E", 2)
}

func answeredAtOnce[T any](b *env[T]) {
	req := request("tx")
	other := b.open(b.db, idempotency.Config{})
	_, err := idempotency.DoTx(context.Background(), b.keys, req, func(ctx context.Context, tx T) (order, error) {
		if err := b.effect(ctx, tx, "E"); err != nil {
			return order{}, err
		}
		_, err := idempotency.DoTx(context.Background(), other, req, func(context.Context, T) (order, error) {
			b.Error("two runs at the same time")
			return order{}, nil
		})
		if !errors.Is(err, waybill.ErrInProgress) {
			b.Errorf("the second: %v", err)
		}
		return order{ID: "O"}, nil
	})
	if err != nil {
		b.Error(err)
	}
	b.wantEffects("E", 1)
}

func afterDo[T any](b *env[T]) {
	req := request("tx")
	_, _ = idempotency.Do(context.Background(), b.keys, req, func(context.Context) (order, error) { return order{}, errBoom })
	b.wantState(req, store.KeyFailed)
	run := func(result error) error {
		_, err := idempotency.DoTx(context.Background(), b.keys, req, func(ctx context.Context, tx T) (order, error) {
			return order{ID: "O"}, errors.Join(b.effect(ctx, tx, "E"), result)
		})
		return err
	}
	if err := run(errBoom); !errors.Is(err, errBoom) {
		b.Error(err)
	}
	if rec := b.wantState(req, store.KeyFailed); rec.Fence != 1 || rec.Attempts != 1 {
		b.Errorf("a transaction that was rolled back left %+v", rec)
	}
	if err := run(nil); err != nil {
		b.Error(err)
	}
	if rec := b.wantState(req, store.KeySucceeded); rec.Fence != 2 || rec.Attempts != 2 {
		b.Errorf("the record is %+v", rec)
	}
	b.wantEffects("E", 1)
}

func nested[T any](b *env[T]) {
	for way, do := range b.ways() {
		req := request(way)
		err := b.box.InTx(context.Background(), func(ctx context.Context, _ T) error {
			_, err := do(ctx, b.keys, req, never[order](b))
			return err
		})
		if !errors.Is(err, waybill.ErrNested) {
			b.Errorf("%s: %v", way, err)
		}
		b.wantNone(req)
	}
	_, err := idempotency.DoTx(context.Background(), b.keys, request("outer"), func(ctx context.Context, _ T) (order, error) {
		res, err := idempotency.Do(ctx, b.keys, request("inner"), never[order](b))
		return res.Value, err
	})
	if !errors.Is(err, waybill.ErrNested) {
		b.Errorf("one in another: %v", err)
	}
}

func savepoint[T any](b *env[T]) {
	if b.Savepoint == nil {
		b.Skip("this driver's transactions have no savepoints")
	}
	req := request("tx")
	res, err := idempotency.DoTx(context.Background(), b.keys, req, func(ctx context.Context, tx T) (order, error) {
		err := b.Savepoint(ctx, tx, func(tx T) error { return errors.Join(b.effect(ctx, tx, "undone"), errBoom) })
		if !errors.Is(err, errBoom) {
			return order{}, err
		}
		return order{ID: "O"}, b.effect(ctx, tx, "done")
	})
	if err != nil || res.Value.ID != "O" {
		b.Errorf("got %+v, %v", res, err)
	}
	b.wantEffects("undone", 0)
	b.wantEffects("done", 1)
	b.wantState(req, store.KeySucceeded)
}
