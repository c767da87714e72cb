package drivertest

import (
	"context"
	"database/sql"
	"errors"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
)

// contextChecks check the transaction in a context, canceled contexts, and
// joined transactions.
func contextChecks[T any]() []check[T] {
	return []check[T]{
		{row: "transaction_in_the_context", name: "emit", run: emits[T]},
		{row: "transaction_in_the_context", name: "callbacks need a transaction", run: callbacksNoTx[T]},
		{row: "transaction_in_the_context", name: "write with another context", run: otherContext[T]},
		{row: "transaction_in_the_context", name: "a canceled context begins anew", run: endedContext[T]},
		{row: "canceled_contexts", name: "canceled before the start", run: canceledBeforeStart[T]},
		{row: "canceled_contexts", name: "canceled before the commit", run: canceledBeforeCommit[T]},
		{row: "canceled_contexts", name: "canceled during the commit", run: canceledDuringCommit[T]},
		{row: "joined_transactions", name: "other options", run: otherOptions[T]},
		{row: "joined_transactions", name: "two outboxes of one store", run: twoOutboxes[T]},
	}
}

func emits[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	evs := b.events(3, "a")
	type key struct{}
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		deep := context.WithValue(ctx, key{}, "deep inside")
		return errors.Join(box.Emit(deep, evs[0]), box.Write(ctx, tx, evs[1]), box.Emit(deep, evs[2]))
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, evs...)
	hooks.want(t, evs, batch(evs...), nil)
	err = box.InTx(ctx, func(ctx context.Context, _ T) error { return errors.Join(box.Emit(ctx, b.event("a")), errBoom) })
	if !errors.Is(err, errBoom) {
		t.Errorf("InTx returned %v, want the function's own error", err)
	}
	b.wantReady(ctx, t, evs...)
}

func callbacksNoTx[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	ran := func() { t.Errorf("a callback ran that was refused") }
	if err := box.AfterCommit(ctx, ran); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("AfterCommit without a transaction returned %v, want ErrNoTx", err)
	}
	if err := box.AfterRollback(ctx, ran); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("AfterRollback without a transaction returned %v, want ErrNoTx", err)
	}
	var old context.Context
	if err := box.InTx(ctx, func(ctx context.Context, _ T) error { old = ctx; return nil }); err != nil {
		t.Fatalf("InTx: %v", err)
	}
	if err := box.AfterCommit(old, ran); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("AfterCommit in a transaction that ended returned %v, want ErrTxDone", err)
	}
	if err := box.AfterRollback(old, ran); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("AfterRollback in a transaction that ended returned %v, want ErrTxDone", err)
	}
}

// otherContext writes with a context that is not from InTx: the store still
// recognizes the transaction.
func otherContext[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box, heard := b.box(t, hooks.hook()), b.listen(b.DB.Outbox)
	ev := b.event("a")
	outer := ctx
	err := box.InTx(ctx, func(_ context.Context, tx T) error { return box.Write(outer, tx, ev) })
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, ev)
	hooks.want(t, []waybill.Event{ev}, batch(ev), nil)
	wantHeard(t, heard.heard(), []waybill.Event{ev}, nil)
}

func endedContext[T any](ctx context.Context, t tb, b *env[T]) {
	for _, end := range []error{nil, errBoom} {
		box := b.box(t)
		var old context.Context
		if err := box.InTx(ctx, func(ctx context.Context, _ T) error { old = ctx; return end }); !errors.Is(err, end) {
			t.Fatalf("InTx: %v", err)
		}
		ev := b.event("a")
		if err := box.InTx(old, func(ctx context.Context, _ T) error { return box.Emit(ctx, ev) }); err != nil {
			t.Errorf("InTx in the context of a transaction that ended (%v): %v", end, err)
		}
		b.wantCommitted(ctx, t, true, ev)
	}
}

func canceledBeforeStart[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	gone, cancel := context.WithCancel(ctx)
	cancel()
	err := box.InTx(gone, func(context.Context, T) error {
		t.Errorf("the function ran although its context was over")
		return nil
	})
	if !errors.Is(err, context.Canceled) {
		t.Errorf("InTx returned %v, want the context's error", err)
	}
}

func canceledBeforeCommit[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	evs := b.events(2, "a")
	for i, cause := range []error{context.Canceled, errBoom} {
		gone, cancel := context.WithCancelCause(ctx)
		err := box.InTx(gone, func(ctx context.Context, tx T) error {
			if _, err := box.WriteEach(ctx, tx, evs[i]); err != nil {
				return err
			}
			if err := b.insert(ctx, tx, "note"); err != nil {
				return err
			}
			cancel(cause)
			return nil
		})
		if !errors.Is(err, cause) || errors.Is(err, waybill.ErrUncertain) {
			t.Errorf("InTx returned %v, want %v", err, cause)
		}
	}
	b.wantReady(ctx, t)
	b.wantNotes(ctx, t, "note", 0)
	hooks.want(t, evs, nil, [][]waybill.Event{evs[:1], evs[1:]})
	ev := b.event("a")
	b.write(ctx, t, ev) // the connection works or was replaced
	b.wantReady(ctx, t, ev)
}

// canceledDuringCommit cancels the caller's context after the commit was
// requested: the commit succeeds.
func canceledDuringCommit[T any](ctx context.Context, t tb, b *env[T]) {
	for range 5 {
		gone, cancel := context.WithCancel(ctx)
		db := &spy[T]{Outbox: b.DB.Outbox, committing: cancel}
		var hooks record
		box := boxOver[T](t, db, outbox.Config{Hooks: []outbox.Hook{hooks.hook()}})
		ev := b.event("a")
		err := box.InTx(gone, func(ctx context.Context, tx T) error {
			return errors.Join(b.insert(ctx, tx, "note"), box.Write(ctx, tx, ev))
		})
		if err != nil {
			t.Errorf("InTx returned %v, although its context ended during the commit only", err)
		}
		if gone.Err() == nil {
			t.Fatalf("the check did not cancel")
		}
		b.wantCommitted(ctx, t, true, ev)
		hooks.want(t, []waybill.Event{ev}, batch(ev), nil)
	}
	b.wantNotes(ctx, t, "note", 5)
}

func otherOptions[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	ev := b.events(2, "a")
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := box.Write(ctx, tx, ev[0]); err != nil {
			return err
		}
		err := box.InTxWith(ctx, &sql.TxOptions{Isolation: sql.LevelSerializable}, func(context.Context, T) error {
			t.Errorf("the inner function ran in a transaction with other options")
			return nil
		})
		if !errors.Is(err, waybill.ErrNested) {
			t.Errorf("joining with other options returned %v, want ErrNested", err)
		}
		// The same options, and none, join.
		return box.InTxWith(ctx, &sql.TxOptions{}, func(ctx context.Context, _ T) error {
			return box.InTxWith(ctx, nil, func(ctx context.Context, tx T) error { return box.Write(ctx, tx, ev[1]) })
		})
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, ev...)
}

// Two outboxes of one store join each other: one transaction, and the hooks of
// each outbox see its own events.
func twoOutboxes[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks1, hooks2 record
	box1, box2 := b.box(t, hooks1.hook()), b.box(t, hooks2.hook())
	heard := b.listen(b.DB.Outbox)
	ev := b.events(4, "a")
	err := box1.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := box1.Write(ctx, tx, ev[0]); err != nil {
			return err
		}
		err := box2.InTx(ctx, func(ctx context.Context, tx T) error { return box2.Write(ctx, tx, ev[1], ev[2]) })
		return errors.Join(err, box1.Emit(ctx, ev[3]))
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, ev...)
	hooks1.want(t, []waybill.Event{ev[0], ev[3]}, batch(ev[0], ev[3]), nil)
	hooks2.want(t, ev[1:3], batch(ev[1:3]...), nil)
	wantHeard(t, heard.heard(), ev, nil)
	// Both fail together.
	lost := b.event("a")
	err = box1.InTx(ctx, func(ctx context.Context, _ T) error {
		_ = box2.InTx(ctx, func(ctx context.Context, tx T) error {
			_, err := box2.WriteEach(ctx, tx, lost)
			return errors.Join(err, errBoom)
		})
		return nil
	})
	if !errors.Is(err, errBoom) {
		t.Errorf("InTx returned %v, want the other outbox's error", err)
	}
	b.wantReady(ctx, t, ev...)
	wantBatches(t, "AfterRollback", hooks2.rolledBk, batch(lost))
}
