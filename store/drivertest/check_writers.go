package drivertest

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// writersChecks check which transactions may still commit a row before existing
// ones.
func writersChecks[T any]() []check[T] {
	return []check[T]{
		{row: "drawn_seqs", name: "drawn seqs", run: drawn[T]},
		{row: "open_writers", name: "open writers", needs: lateCommits, run: stillWriting[T]},
	}
}

func (b *env[T]) writers(ctx context.Context, t tb) driver.WriterState {
	t.Helper()
	w, err := b.DB.Relay.OpenWriters(ctx)
	if err != nil {
		t.Fatalf("Writers: %v", err)
	}
	return w
}

// until polls until the condition holds: a store may sometimes be unable to
// answer.
func (b *env[T]) until(ctx context.Context, t tb, what string, ok func(driver.WriterState) bool) driver.WriterState {
	t.Helper()
	for deadline := time.Now().Add(10 * time.Second); ; {
		w := b.writers(ctx, t)
		if !w.Unknown && ok(w) {
			return w
		}
		if !w.Unknown || time.Now().After(deadline) {
			t.Fatalf("%s: Writers returned %+v", what, w)
		}
		select {
		case <-time.After(200 * time.Millisecond):
		case <-ctx.Done():
		}
	}
}

func drawn[T any](ctx context.Context, t tb, b *env[T]) {
	ev := b.event("a")
	b.write(ctx, t, ev)
	rows := b.wantReady(ctx, t, ev)
	if len(rows) != 1 {
		return
	}
	b.until(ctx, t, "a committed row", func(w driver.WriterState) bool {
		return w.HighSeq >= rows[0].Seq && w.Issued >= rows[0].Seq
	})
	b.settle(ctx, t, driver.Settlement{Leases: b.own(ctx, t), Done: []driver.Result{result(rows[0])}})
	b.until(ctx, t, "a delivered row", func(w driver.WriterState) bool { return w.Issued >= rows[0].Seq })
}

func stillWriting[T any](ctx context.Context, t tb, b *env[T]) {
	before := b.writers(ctx, t)
	open, first, second := early(ctx, t, b)
	rows := b.wantReady(ctx, t, second)
	if len(rows) != 1 {
		return
	}
	isNew := func(name string) bool { return !slices.Contains(before.Open, name) }
	w := b.until(ctx, t, "while the first is open", func(w driver.WriterState) bool {
		return w.HighSeq >= rows[0].Seq && slices.ContainsFunc(w.Open, isNew)
	})
	names := slices.DeleteFunc(w.Open, func(name string) bool { return !isNew(name) })
	if err := open.Commit(); err != nil {
		t.Fatalf("the late commit: %v", err)
	}
	b.until(ctx, t, "after the late commit", func(w driver.WriterState) bool {
		return slices.ContainsFunc(names, func(name string) bool { return !slices.Contains(w.Open, name) })
	})
	b.wantReady(ctx, t, first, second)
}
