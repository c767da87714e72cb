package drivertest

import (
	"context"
	"errors"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// lateChecks check that a row that appears below an already read seq can be
// found.
func lateChecks[T any]() []check[T] {
	return []check[T]{
		{row: "late_commits_are_found", name: "early seq, late commit", needs: lateCommits, run: lateCommit[T]},
		{row: "late_commits_are_found", name: "early seq, rollback", needs: lateCommits, run: lateRollback[T]},
	}
}

// early opens a transaction that writes an event and does not commit, and
// commits another event of the same aggregate.
func early[T any](ctx context.Context, t tb, b *env[T]) (open Foreign[T], first, second waybill.Event) {
	t.Helper()
	open = b.foreign(ctx, t)
	first, second = b.event("a"), b.event("a")
	box := b.box(t)
	if err := errors.Join(b.insert(ctx, open.Tx, "late"), box.Write(ctx, open.Tx, first)); err != nil {
		t.Fatalf("writing: %v", err)
	}
	b.write(ctx, t, second)
	return open, first, second
}

func lateCommit[T any](ctx context.Context, t tb, b *env[T]) {
	open, first, second := early(ctx, t, b)
	rows := b.wantReady(ctx, t, second)
	if len(rows) != 1 {
		t.Fatalf("the second transaction did not pass the first")
	}
	read := rows[0]
	sweep := []driver.Cursor{{Lane: read.Lane, UpTo: read.Seq}}
	seen, err := b.DB.Relay.Sweep(ctx, sweep, 100)
	if err != nil || len(seen) != 1 || seen[0].Key != read.Key {
		t.Fatalf("Sweep while the first is open: %v, %v", seen, err)
	}
	if err := open.Commit(); err != nil {
		t.Fatalf("the late commit: %v", err)
	}
	b.wantNotes(ctx, t, "late", 1)
	// A reader that continues from its cursor never sees the row ...
	page, err := b.DB.Relay.Fetch(ctx, []driver.Cursor{{Lane: read.Lane, After: read.Seq}}, 100)
	if err != nil || len(page.Rows) != 0 {
		t.Fatalf("Fetch behind the second: %v, %v: Features.LateCommits promises that the first has the lower seq",
			rowIDs(page.Rows), err)
	}
	// ... and the sweep does.
	seen, err = b.DB.Relay.Sweep(ctx, sweep, 100)
	if err != nil || len(seen) != 2 {
		t.Fatalf("Sweep after the late commit: %v, %v, want both", seen, err)
	}
	late := seen[0]
	if late.ID != first.ID || late.Seq >= read.Seq || late.Lane != read.Lane || seen[1].Key != read.Key {
		t.Errorf("Sweep returned %v, want the late event in front of %v", seen, read.Key)
	}
	loaded, err := b.DB.Relay.Load(ctx, []store.Key{late.Key})
	if err != nil || len(loaded.Rows) != 1 {
		t.Fatalf("Load of the late event: %v, %v", rowIDs(loaded.Rows), err)
	}
	wantEvent(t, loaded.Rows[0], first)
	b.wantReady(ctx, t, first, second)
}

func lateRollback[T any](ctx context.Context, t tb, b *env[T]) {
	open, first, second := early(ctx, t, b)
	if err := open.Rollback(); err != nil {
		t.Fatalf("the late rollback: %v", err)
	}
	rows := b.wantReady(ctx, t, second)
	if len(rows) != 1 {
		return
	}
	seen, err := b.DB.Relay.Sweep(ctx, []driver.Cursor{{Lane: rows[0].Lane, UpTo: rows[0].Seq}}, 100)
	if err != nil || len(seen) != 1 || seen[0].Key != rows[0].Key {
		t.Errorf("Sweep after the rollback: %v, %v, want %v", seen, err, rows[0].Key)
	}
	b.wantNotes(ctx, t, "late", 0)
	b.wantCommitted(ctx, t, false, first)
}
