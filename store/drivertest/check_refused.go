package drivertest

import (
	"context"
	"errors"
	"sync"

	"github.com/waybillhq/waybill"
)

// refusedChecks check that a rejected write fails its transaction, even if the
// caller ignores the error.
func refusedChecks[T any]() []check[T] {
	return []check[T]{
		{row: "rejected_writes", name: "a duplicate id", run: takenID[T]},
		{row: "rejected_writes", name: "the same id twice in one write", run: sameIDTwice[T]},
		{row: "rejected_writes", name: "the same id in two transactions", run: sameIDRace[T]},
	}
}

// wantRefused asserts that a transaction failed with a definite error.
func wantRefused(t tb, err error) {
	t.Helper()
	if err == nil {
		t.Errorf("InTx committed although a write in it was refused")
	}
	if errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("InTx is uncertain about a write that was refused: %v", err)
	}
}

func takenID[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	taken := b.keyed("a", "k")
	b.write(ctx, t, taken)
	again := b.event("b")
	again.ID = taken.ID
	same := taken // same id and dedup key: not absorbed
	for _, fn := range []func(ctx context.Context, tx T) error{
		func(ctx context.Context, tx T) error { return box.Write(ctx, tx, b.event("a"), again, b.event("a")) },
		// All errors ignored, business row last.
		func(ctx context.Context, tx T) error {
			_ = box.Write(ctx, tx, b.event("a"), again)
			_ = b.insert(ctx, tx, "note")
			return nil
		},
		// A valid event after a rejected one.
		func(ctx context.Context, tx T) error {
			_ = b.insert(ctx, tx, "note")
			_, _ = box.WriteEach(ctx, tx, again)
			_ = box.Write(ctx, tx, b.event("a"))
			return nil
		},
		func(ctx context.Context, tx T) error {
			_ = b.insert(ctx, tx, "note")
			if got, err := box.WriteEach(ctx, tx, same); err == nil {
				t.Errorf("writing the same event twice gave the receipts %v", got)
			}
			return nil
		},
		func(ctx context.Context, tx T) error { // no later statement
			_ = b.insert(ctx, tx, "note")
			_ = box.Write(ctx, tx, again)
			return nil
		},
	} {
		wantRefused(t, box.InTx(ctx, fn))
	}
	rows := b.wantReady(ctx, t, taken)
	if len(rows) == 1 {
		wantEvent(t, rows[0], taken)
	}
	b.wantNotes(ctx, t, "note", 0)
	wantBatches(t, "AfterCommit", hooks.committed, nil)
}

func sameIDTwice[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	one, two := b.event("a"), b.event("a")
	two.ID = one.ID
	wantRefused(t, box.InTx(ctx, func(ctx context.Context, tx T) error {
		_ = box.Write(ctx, tx, one, two)
		return nil
	}))
	wantRefused(t, box.InTx(ctx, func(ctx context.Context, tx T) error {
		_ = box.Write(ctx, tx, one)
		_ = box.Write(ctx, tx, two)
		return nil
	}))
	b.wantReady(ctx, t)
	b.write(ctx, t, two) // its id was never in use
	b.wantReady(ctx, t, two)
}

// sameIDRace writes the same id in concurrent transactions: one of them wins.
func sameIDRace[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	ev := b.event("a")
	errs := make([]error, 4)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() {
			errs[i] = box.InTx(ctx, func(ctx context.Context, tx T) error {
				if err := b.insert(ctx, tx, "note"); err != nil {
					return err
				}
				_, err := box.WriteEach(ctx, tx, ev)
				_, _ = b.DB.Outbox.Committed(ctx, ev.ID) // takes some time
				return err
			})
		})
	}
	wg.Wait()
	won := 0
	for _, err := range errs {
		if err == nil {
			won++
		} else {
			wantRefused(t, err)
		}
	}
	if won != 1 {
		t.Errorf("%d of %d transactions with the same event id committed, want 1: %v", won, len(errs), errors.Join(errs...))
	}
	b.wantReady(ctx, t, ev)
	b.wantNotes(ctx, t, "note", 1)
}
