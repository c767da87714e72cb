package drivertest

import (
	"context"
	"errors"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
)

// foreignChecks check transactions that the caller commits.
func foreignChecks[T any]() []check[T] {
	return []check[T]{
		{row: "foreign_transactions", name: "committed", needs: foreignTx, run: foreignCommits[T]},
		{row: "foreign_transactions", name: "rolled back", needs: foreignTx, run: foreignRollsBack[T]},
		{row: "foreign_transactions", name: "dedup keys", needs: foreignTx, run: foreignKeys[T]},
		{row: "foreign_transactions", name: "beside a transaction of the context", needs: foreignTx, run: foreignInside[T]},
	}
}

func foreignCommits[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box, heard := b.box(t, hooks.hook()), b.listen(b.DB.Outbox)
	evs := []waybill.Event{b.event("a"), b.event(""), b.event("a"), b.event("b")}
	f := b.foreign(ctx, t)
	if err := errors.Join(box.Write(ctx, f.Tx, evs[:2]...), b.insert(ctx, f.Tx, "note")); err != nil {
		t.Fatalf("writing: %v", err)
	}
	got, err := box.WriteEach(ctx, f.Tx, evs[2:]...)
	if err != nil {
		t.Fatalf("WriteEach: %v", err)
	}
	wantReceipts(t, got, written(evs[2]), written(evs[3]))
	b.wantReady(ctx, t) // not yet
	if err := f.Commit(); err != nil {
		t.Fatalf("the commit: %v", err)
	}
	b.wantReady(ctx, t, evs...)
	b.wantNotes(ctx, t, "note", 1)
	b.wantCommitted(ctx, t, true, evs...)
	hooks.want(t, evs, nil, nil) // the outbox does not see the commit
	if commits := heard.heard(); len(commits) > 0 {
		t.Errorf("the hub published %v of a foreign transaction", commits)
	}
	box.Wake()
	if commits := heard.heard(); len(commits) != 1 || len(commits[0].Entries) != 0 {
		t.Errorf("after Wake the hub published %v, want one bare wake-up", commits)
	}
}

func foreignRollsBack[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	evs := []waybill.Event{b.event("a"), b.keyed("a", "k")}
	f := b.foreign(ctx, t)
	if err := errors.Join(b.insert(ctx, f.Tx, "note"), box.Write(ctx, f.Tx, evs...)); err != nil {
		t.Fatalf("writing: %v", err)
	}
	if err := f.Rollback(); err != nil {
		t.Fatalf("the rollback: %v", err)
	}
	b.wantReady(ctx, t)
	b.wantNotes(ctx, t, "note", 0)
	b.wantCommitted(ctx, t, false, evs...)
	hooks.want(t, evs, nil, nil)
	next := b.keyed("a", "k")
	wantReceipts(t, receipts(ctx, t, box, next), written(next))
}

func foreignKeys[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	first := b.keyed("a", "k")
	b.write(ctx, t, first)
	evs := []waybill.Event{b.event("a"), b.keyed("a", "k"), b.keyed("a", "new"), b.keyed("a", "new"), b.event("a")}
	f := b.foreign(ctx, t)
	got, err := box.WriteEach(ctx, f.Tx, evs...)
	if err != nil {
		t.Fatalf("WriteEach: %v", err)
	}
	wantReceipts(t, got, written(evs[0]), duplicateOf(first), written(evs[2]), duplicateOf(evs[2]), written(evs[4]))
	if err := f.Commit(); err != nil {
		t.Fatalf("the commit: %v", err)
	}
	b.wantReady(ctx, t, first, evs[0], evs[2], evs[4])
	hooks.want(t, []waybill.Event{evs[0], evs[2], evs[4]}, nil, nil)
	wantReceipts(t, receipts(ctx, t, box, b.keyed("b", "new")), duplicateOf(evs[2]))
}

// foreignInside writes to a foreign transaction with a context that carries
// another one: the transaction argument counts, not the context.
func foreignInside[T any](ctx context.Context, t tb, b *env[T]) {
	if !b.features.LateCommits {
		t.Skipf("two transactions that write cannot be open at the same time: nothing to confuse")
	}
	var hooks record
	box := boxOver[T](t, b.DB.Outbox, outbox.Config{Hooks: []outbox.Hook{hooks.hook()}})
	f := b.foreign(ctx, t)
	mine, theirs := b.event("a"), b.event("b")
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		return errors.Join(box.Write(ctx, f.Tx, theirs), box.Write(ctx, tx, mine))
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, mine)
	wantBatches(t, "AfterCommit", hooks.committed, batch(mine))
	if err := f.Commit(); err != nil {
		t.Fatalf("the foreign commit: %v", err)
	}
	if rows := b.ready(ctx, t); len(rows) != 2 {
		t.Errorf("%d events are ready, want both", len(rows))
	}
}
