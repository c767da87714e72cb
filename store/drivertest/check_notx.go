package drivertest

import (
	"context"
	"errors"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/outbox"
)

// noTxChecks check writes without a transaction, and writes without events.
func noTxChecks[T any]() []check[T] {
	return []check[T]{
		{row: "no_write_without_a_transaction", name: "no transaction", run: writesWithoutTx[T]},
		{row: "no_write_without_a_transaction", name: "finished", run: writesToFinished[T]},
		{row: "no_write_without_a_transaction", name: "finished by the caller", needs: foreignTx, run: writesToFinishedForeign[T]},
		{row: "empty_write", name: "empty write", run: writesNothing[T]},
	}
}

func writesWithoutTx[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	if tx, isNil := nilTx[T](); isNil {
		if err := box.Write(ctx, tx, b.event("a")); !errors.Is(err, waybill.ErrNoTx) {
			t.Errorf("Write to a nil transaction returned %v, want ErrNoTx", err)
		}
		if _, err := box.WriteEach(ctx, tx, b.event("a")); !errors.Is(err, waybill.ErrNoTx) {
			t.Errorf("WriteEach to a nil transaction returned %v, want ErrNoTx", err)
		}
	}
	if err := box.Emit(ctx, b.event("a")); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("Emit without a transaction returned %v, want ErrNoTx", err)
	}
	b.wantReady(ctx, t)
	hooks.want(t, nil, nil, nil)
}

func writesToFinished[T any](ctx context.Context, t tb, b *env[T]) {
	for _, end := range []error{nil, errBoom} {
		var hooks record
		box := b.box(t, hooks.hook())
		var old T
		var inner context.Context
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			old, inner = tx, ctx
			return errors.Join(b.insert(ctx, tx, "note"), end)
		})
		if !errors.Is(err, end) {
			t.Fatalf("InTx: %v", err)
		}
		// Write with the context of InTx, and with one that does not carry the
		// transaction. A store that knows only its own transactions cannot
		// distinguish an ended one from an unknown one.
		refused := func(ctx context.Context, err error) bool {
			return errors.Is(err, waybill.ErrTxDone) || ctx != inner && !b.features.ForeignTx && errors.Is(err, waybill.ErrNoTx)
		}
		for _, ctx := range []context.Context{inner, ctx} {
			if err := box.Write(ctx, old, b.event("a")); !refused(ctx, err) {
				t.Errorf("Write to a transaction that ended (%v) returned %v, want ErrTxDone", end, err)
			}
			if _, err := box.WriteEach(ctx, old, b.event("a")); !refused(ctx, err) {
				t.Errorf("WriteEach to a transaction that ended (%v) returned %v, want ErrTxDone", end, err)
			}
		}
		if err := box.Emit(inner, b.event("a")); !errors.Is(err, waybill.ErrTxDone) {
			t.Errorf("Emit in a transaction that ended (%v) returned %v, want ErrTxDone", end, err)
		}
		hooks.want(t, nil, nil, nil)
	}
	b.wantReady(ctx, t)
}

func writesToFinishedForeign[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	for _, commit := range []bool{true, false} {
		f := b.foreign(ctx, t)
		if err := b.insert(ctx, f.Tx, "note"); err != nil {
			t.Fatalf("insert: %v", err)
		}
		end := f.Rollback
		if commit {
			end = f.Commit
		}
		if err := end(); err != nil {
			t.Fatalf("ending the transaction: %v", err)
		}
		if err := box.Write(ctx, f.Tx, b.event("a")); !errors.Is(err, waybill.ErrTxDone) {
			t.Errorf("Write to a finished transaction (committed: %v) returned %v, want ErrTxDone", commit, err)
		}
		if _, err := b.DB.Outbox.Append(ctx, f.Tx, []waybill.Event{eventfill.Defaults(b.event("a"))}); !errors.Is(err, waybill.ErrTxDone) {
			t.Errorf("Append to a finished transaction (committed: %v) returned %v, want ErrTxDone", commit, err)
		}
	}
	b.wantNotes(ctx, t, "note", 1)
	b.wantReady(ctx, t)
	hooks.want(t, nil, nil, nil)
}

func writesNothing[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	hook := hooks.hook()
	before := 0
	hook.BeforeWrite = func(_ context.Context, info outbox.BeforeWriteInfo) ([]waybill.Event, error) {
		before++
		return info.Events, nil
	}
	box, heard := b.box(t, hook), b.listen(b.DB.Outbox)
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		receipts, err := box.WriteEach(ctx, tx)
		if len(receipts) > 0 {
			t.Errorf("WriteEach of nothing returned %v", receipts)
		}
		return errors.Join(err, box.Write(ctx, tx), box.Emit(ctx), b.insert(ctx, tx, "note"))
	})
	if err != nil {
		t.Errorf("InTx: %v", err)
	}
	b.wantReady(ctx, t)
	b.wantNotes(ctx, t, "note", 1)
	hooks.want(t, nil, nil, nil)
	if before != 0 {
		t.Errorf("BeforeWrite ran %d times for no events", before)
	}
	if commits := heard.heard(); len(commits) > 0 {
		t.Errorf("the hub published a transaction without events: %v", commits)
	}
}
