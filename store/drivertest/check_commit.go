package drivertest

import (
	"context"
	"errors"
	"slices"

	"github.com/waybillhq/waybill"
)

// commitChecks check that an event exists if and only if its transaction
// committed, and that events keep their order.
func commitChecks[T any]() []check[T] {
	return []check[T]{
		{row: "rollback_leaves_nothing", name: "rollback", run: rollsBack[T]},
		{row: "commit_keeps_rows", name: "commit", run: commits[T]},
		{row: "commit_keeps_rows", name: "many commits", run: manyCommits[T]},
		{row: "write_order", name: "several writes", run: severalWrites[T]},
		{row: "write_order", name: "some with a dedup key", run: severalWritesKeyed[T]},
		{row: "write_order", name: "some delayed", run: severalWritesDelayed[T]},
	}
}

func rollsBack[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box, heard := b.box(t, hooks.hook()), b.listen(b.DB.Outbox)
	evs := b.events(2, "a")
	var committed, rolledBack int
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := b.insert(ctx, tx, "note"); err != nil {
			return err
		}
		if err := errors.Join(
			box.AfterCommit(ctx, func() { committed++ }), box.AfterRollback(ctx, func() { rolledBack++ }),
		); err != nil {
			return err
		}
		if _, err := box.WriteEach(ctx, tx, evs...); err != nil {
			return err
		}
		return errBoom
	})
	if !errors.Is(err, errBoom) {
		t.Errorf("InTx returned %v, want the function's own error", err)
	}
	if errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("InTx is uncertain about its own rollback: %v", err)
	}
	b.wantReady(ctx, t)
	b.wantNotes(ctx, t, "note", 0)
	b.wantCommitted(ctx, t, false, evs...)
	hooks.want(t, evs, nil, batch(evs...))
	if committed != 0 || rolledBack != 1 {
		t.Errorf("AfterCommit ran %d times and AfterRollback %d times, want 0 and 1", committed, rolledBack)
	}
	if commits := heard.heard(); len(commits) > 0 {
		t.Errorf("the hub published a rolled-back transaction: %v", commits)
	}
}

func commits[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	evs := b.events(3, "a")
	var committed, rolledBack int
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := errors.Join(
			b.insert(ctx, tx, "note"),
			box.AfterCommit(ctx, func() { committed++ }), box.AfterRollback(ctx, func() { rolledBack++ }),
		); err != nil {
			return err
		}
		return box.Write(ctx, tx, evs...)
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	rows := b.wantReady(ctx, t, evs...)
	b.wantNotes(ctx, t, "note", 1)
	b.wantCommitted(ctx, t, true, evs...)
	hooks.want(t, evs, batch(evs...), nil)
	if committed != 1 || rolledBack != 0 {
		t.Errorf("AfterCommit ran %d times and AfterRollback %d times, want 1 and 0", committed, rolledBack)
	}
	for _, row := range rows {
		switch {
		case row.Lane != b.laneOf(evs[0]):
			t.Errorf("event %s is in lane %d, want %d", row.ID, row.Lane, b.laneOf(evs[0]))
		case row.Event.ID != row.ID:
			t.Errorf("the row of event %s holds event %s", row.ID, row.Event.ID)
		case row.Err != nil || row.Attempts != 0 || row.Replay != 0 || row.Holds || row.LastError != "" || !row.DueAt.IsZero():
			t.Errorf("a new row is not blank: %+v", row)
		case row.CreatedAt.IsZero():
			t.Errorf("event %s has no time of creation", row.ID)
		}
	}
}

// manyCommits commits one transaction after another: each event is ready after
// the earlier ones.
func manyCommits[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	var all []waybill.Event
	var batches [][]waybill.Event
	for i := range 10 {
		evs := b.events(1+i%3, []string{"a", "b", ""}[i%3])
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			if i%4 == 3 {
				return errors.Join(box.Write(ctx, tx, b.event("a")), errBoom)
			}
			return box.Write(ctx, tx, evs...)
		})
		if i%4 == 3 {
			if !errors.Is(err, errBoom) {
				t.Fatalf("InTx returned %v, want the function's own error", err)
			}
			continue
		}
		if err != nil {
			t.Fatalf("InTx: %v", err)
		}
		all, batches = append(all, evs...), append(batches, evs)
	}
	rows := b.wantReady(ctx, t, all...)
	wantBatches(t, "AfterCommit", hooks.committed, batches)
	for _, row := range rows {
		if row.Lane < 0 || row.Lane >= b.lanes {
			t.Errorf("event %s is in lane %d of %d", row.ID, row.Lane, b.lanes)
		}
	}
}

// severalWrites writes to several lanes in several calls, with other statements
// between them: the seqs have the order of the writes.
func severalWrites[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	evs := []waybill.Event{b.event("a"), b.event("b"), b.event(""), b.event("a"), b.event("b"), b.event("c"), b.event("a")}
	var calls int
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := box.AfterCommit(ctx, func() { calls++ }); err != nil {
			return err
		}
		if err := box.Write(ctx, tx, evs[0]); err != nil {
			return err
		}
		if err := b.insert(ctx, tx, "note"); err != nil {
			return err
		}
		if err := box.Write(ctx, tx, evs[1:4]...); err != nil {
			return err
		}
		if _, err := box.WriteEach(ctx, tx, evs[4]); err != nil {
			return err
		}
		if err := box.Emit(ctx, evs[5]); err != nil {
			return err
		}
		return box.Write(ctx, tx, evs[6])
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, evs...)
	b.wantNotes(ctx, t, "note", 1)
	hooks.want(t, evs, batch(evs...), nil)
	if calls != 1 {
		t.Errorf("the callback ran %d times", calls)
	}
}

func severalWritesKeyed[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	evs := []waybill.Event{
		b.event("a"), b.keyed("a", "k1"), b.event("a"), b.keyed("a", "k2"), b.event("b"), b.keyed("", "k0"), b.event("a"),
		b.event("a"), b.keyed("a", "k3"), b.event("a"),
	}
	again := b.keyed("a", "k1")
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		for _, part := range [][]waybill.Event{evs[:1], evs[1:2], evs[2:5], {again}, evs[5:7], evs[7:]} {
			if err := box.Write(ctx, tx, part...); err != nil {
				return err
			}
		}
		return nil
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, evs...)
	hooks.want(t, evs, batch(evs...), nil)
	b.wantCommitted(ctx, t, false, again)
}

// severalWritesDelayed mixes ready and delayed events: the ready ones keep
// their order.
func severalWritesDelayed[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	evs := b.events(9, "a")
	var ready []waybill.Event
	for i := range evs {
		switch i % 3 {
		case 1:
			evs[i].Delay = defaultLease
		case 2:
			evs[i].AvailableAt = b.now(ctx, t).Add(defaultLease)
		default:
			ready = append(ready, evs[i])
		}
	}
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		return errors.Join(box.Write(ctx, tx, evs[:5]...), box.Write(ctx, tx, evs[5:]...))
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, ready...)
	b.wantCommitted(ctx, t, true, evs...)
	hooks.want(t, evs, batch(evs...), nil)
	if b.Pending == nil {
		return
	}
	rows := slices.DeleteFunc(b.pending(ctx, t), func(r row) bool { return !slices.Contains(idsOf(evs), r.ID) })
	if got := rowIDs(rows); !slices.Equal(got, idsOf(evs)) {
		t.Errorf("pending by seq are %v, want %v: deferred events take their seq from the same counter", got, idsOf(evs))
	}
}
