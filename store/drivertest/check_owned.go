package drivertest

import (
	"context"
	"errors"
	"fmt"
	"runtime"

	"github.com/waybillhq/waybill"
)

// ownedChecks check that InTx owns the transaction, whatever the function does
// with it.
func ownedChecks[T any]() []check[T] {
	return []check[T]{
		{row: "transaction_belongs_to_intx", name: "commit on the handle", run: endsHandle[T](true, nil)},
		{row: "transaction_belongs_to_intx", name: "rollback on the handle", run: endsHandle[T](false, nil)},
		{row: "transaction_belongs_to_intx", name: "commit on the handle and an error", run: endsHandle[T](true, errBoom)},
		{row: "transaction_belongs_to_intx", name: "rollback on the handle and an error", run: endsHandle[T](false, errBoom)},
		{row: "transaction_belongs_to_intx", name: "inner error ignored", run: innerSwallowed[T]},
		{row: "transaction_belongs_to_intx", name: "inner joins", run: innerJoins[T]},
		{row: "transaction_belongs_to_intx", name: "panic", run: panics[T]},
		{row: "transaction_belongs_to_intx", name: "inner panic recovered", run: innerPanics[T]},
		{row: "transaction_belongs_to_intx", name: "goexit", run: goexits[T]},
	}
}

// endHandle calls Commit or Rollback on a handle, as faulty code would.
func (b *env[T]) endHandle(ctx context.Context, t tb, tx T, commit bool) error {
	t.Helper()
	name, given := "Rollback", b.Rollback
	if commit {
		name, given = "Commit", b.Commit
	}
	if given != nil {
		return given(ctx, tx)
	}
	var plain func() error
	var withContext func(context.Context) error
	if commit {
		if h, ok := any(tx).(interface{ Commit() error }); ok {
			plain = h.Commit
		} else if h, ok := any(tx).(interface{ Commit(context.Context) error }); ok {
			withContext = h.Commit
		}
	} else {
		if h, ok := any(tx).(interface{ Rollback() error }); ok {
			plain = h.Rollback
		} else if h, ok := any(tx).(interface{ Rollback(context.Context) error }); ok {
			withContext = h.Rollback
		}
	}
	switch {
	case plain != nil:
		return plain()
	case withContext != nil:
		return withContext(ctx)
	}
	t.Fatalf("a %T has no method %s that the suite knows: set Instance.%s", tx, name, name)
	return nil
}

// endsHandle ends the transaction inside InTx. A handle that can refuse returns
// an error, and nothing changes; if the type cannot refuse, InTx must report
// the error, because the caller would otherwise rely on an outcome that InTx
// did not decide. In both cases the event and the business row are committed or
// rolled back together.
func endsHandle[T any](commit bool, end error) func(context.Context, tb, *env[T]) {
	return func(ctx context.Context, t tb, b *env[T]) {
		var hooks record
		box := b.box(t, hooks.hook())
		before, after := b.event("a"), b.event("a")
		var refused error
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			if err := errors.Join(b.insert(ctx, tx, "note"), box.Write(ctx, tx, before)); err != nil {
				t.Fatalf("writing: %v", err)
			}
			refused = b.endHandle(ctx, t, tx, commit)
			// After a refusal the transaction continues; otherwise this write
			// fails.
			if err := box.Write(ctx, tx, after); (err == nil) != (refused != nil) {
				t.Errorf("the handle's own end returned %v, and then Write returned %v", refused, err)
			}
			return end
		})
		if refused != nil {
			if !errors.Is(refused, waybill.ErrTxOwned) {
				t.Errorf("the handle refused with %v, want ErrTxOwned", refused)
			}
			if !errors.Is(err, end) {
				t.Errorf("InTx returned %v, want %v: nothing has happened", err, end)
			}
			if end == nil {
				b.wantReady(ctx, t, before, after)
				b.wantNotes(ctx, t, "note", 1)
				wantBatches(t, "AfterCommit", hooks.committed, batch(before, after))
				wantBatches(t, "AfterRollback", hooks.rolledBk, nil)
				return
			}
			b.wantReady(ctx, t)
			b.wantNotes(ctx, t, "note", 0)
			wantBatches(t, "AfterCommit", hooks.committed, nil)
			return
		}
		if !errors.Is(err, waybill.ErrTxOwned) {
			t.Errorf("InTx returned %v, want ErrTxOwned: its transaction was ended inside", err)
		}
		// "Any other error means that nothing was stored": so the error must
		// match ErrUncertain, unless nothing was stored.
		if commit && !errors.Is(err, waybill.ErrUncertain) {
			t.Errorf("InTx returned %v for a transaction that was committed inside, want ErrUncertain", err)
		}
		if end != nil && !errors.Is(err, end) {
			t.Errorf("InTx returned %v and lost the function's own error", err)
		}
		wantBatches(t, "AfterCommit", hooks.committed, nil)
		if commit {
			wantBatches(t, "AfterRollback", hooks.rolledBk, nil)
			b.wantReady(ctx, t, before)
			b.wantNotes(ctx, t, "note", 1)
		} else {
			b.wantReady(ctx, t)
			b.wantNotes(ctx, t, "note", 0)
		}
	}
}

func innerSwallowed[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	ev := b.events(3, "a")
	ran := false
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := errors.Join(box.AfterRollback(ctx, func() { ran = true }), box.Write(ctx, tx, ev[0])); err != nil {
			return err
		}
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			return errors.Join(b.insert(ctx, tx, "inner"), box.Write(ctx, tx, ev[1]), errBoom)
		})
		if !errors.Is(err, errBoom) {
			t.Errorf("the inner InTx returned %v, want the function's own error", err)
		}
		return errors.Join(b.insert(ctx, tx, "outer"), box.Write(ctx, tx, ev[2]))
	})
	if !errors.Is(err, errBoom) || errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("the outer InTx returned %v, want the inner one's error", err)
	}
	b.wantReady(ctx, t)
	b.wantNotes(ctx, t, "inner", 0)
	b.wantNotes(ctx, t, "outer", 0)
	wantBatches(t, "AfterCommit", hooks.committed, nil)
	wantBatches(t, "AfterRollback", hooks.rolledBk, batch(ev...))
	if !ran {
		t.Errorf("the AfterRollback callback did not run")
	}
}

func innerJoins[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box, heard := b.box(t, hooks.hook()), b.listen(b.DB.Outbox)
	ev := b.events(3, "a")
	var calls []string
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := errors.Join(box.AfterCommit(ctx, func() { calls = append(calls, "outer") }), box.Write(ctx, tx, ev[0])); err != nil {
			return err
		}
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			return errors.Join(
				box.AfterCommit(ctx, func() { calls = append(calls, "inner") }), b.insert(ctx, tx, "inner"), box.Write(ctx, tx, ev[1]))
		})
		if err != nil {
			return err
		}
		if len(calls) > 0 || len(hooks.committed) > 0 || len(heard.heard()) > 0 {
			t.Errorf("the inner InTx was taken for a commit")
		}
		if rows := b.ready(ctx, t); len(rows) > 0 {
			t.Errorf("the inner InTx has committed %d events", len(rows))
		}
		b.wantNotes(ctx, t, "inner", 0)
		return box.Write(ctx, tx, ev[2])
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, ev...)
	b.wantNotes(ctx, t, "inner", 1)
	hooks.want(t, ev, batch(ev...), nil)
	if fmt.Sprint(calls) != "[outer inner]" {
		t.Errorf("callbacks ran as %v, want each once, in order", calls)
	}
	if n := len(heard.heard()); n != 1 {
		t.Errorf("the hub published one transaction %d times", n)
	}
}

// panics repeats often enough that leaked connections would run out.
func panics[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	var lost [][]waybill.Event
	for i := range 20 {
		ev := b.event("a")
		lost = append(lost, []waybill.Event{ev})
		func() {
			defer func() {
				if r := recover(); r != i {
					t.Errorf("recovered %v, want the function's own panic %d", r, i)
				}
			}()
			err := box.InTx(ctx, func(ctx context.Context, tx T) error {
				if err := errors.Join(b.insert(ctx, tx, "note"), box.Write(ctx, tx, ev)); err != nil {
					return err
				}
				panic(i)
			})
			t.Errorf("InTx returned %v instead of letting a panic pass", err)
		}()
	}
	b.wantReady(ctx, t)
	b.wantNotes(ctx, t, "note", 0)
	wantBatches(t, "AfterCommit", hooks.committed, nil)
	wantBatches(t, "AfterRollback", hooks.rolledBk, lost)
	ev := b.event("a")
	b.write(ctx, t, ev)
	b.wantReady(ctx, t, ev)
}

// innerPanics recovers from an inner panic, as a server's middleware would: the
// outer transaction is incomplete and must not commit.
func innerPanics[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		func() {
			defer func() { _ = recover() }()
			_ = box.InTx(ctx, func(ctx context.Context, tx T) error {
				_ = box.Write(ctx, tx, b.event("a"))
				panic("inner")
			})
		}()
		return errors.Join(b.insert(ctx, tx, "note"), box.Write(ctx, tx, b.event("a")))
	})
	if err == nil || errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("InTx returned %v, want an error that is certain", err)
	}
	b.wantReady(ctx, t)
	b.wantNotes(ctx, t, "note", 0)
}

func goexits[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	ev := b.event("a")
	done := make(chan struct{})
	go func() {
		defer close(done)
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			if err := errors.Join(b.insert(ctx, tx, "note"), box.Write(ctx, tx, ev)); err != nil {
				t.Errorf("writing: %v", err)
			}
			runtime.Goexit() // as t.FailNow in a test of the caller
			return nil
		})
		t.Errorf("InTx returned %v from a goroutine that has ended", err)
	}()
	<-done
	b.wantReady(ctx, t)
	b.wantNotes(ctx, t, "note", 0)
	wantBatches(t, "AfterCommit", hooks.committed, nil)
	wantBatches(t, "AfterRollback", hooks.rolledBk, batch(ev))
}
