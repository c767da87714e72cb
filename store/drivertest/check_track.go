package drivertest

import (
	"context"
	"errors"

	"github.com/waybillhq/waybill"
)

// trackChecks check that events raised by aggregates are written at commit,
// once.
func trackChecks[T any]() []check[T] {
	return []check[T]{
		{row: "tracked_events_survive_a_rollback", name: "written at commit", run: trackCommit[T]},
		{row: "tracked_events_survive_a_rollback", name: "kept after a rollback", run: trackRollback[T]},
		{row: "tracked_events_survive_a_rollback", name: "kept when the commit fails", run: trackRefused[T]},
		{row: "tracked_events_survive_a_rollback", name: "inside a joined transaction", run: trackJoined[T]},
		{row: "tracked_events_survive_a_rollback", name: "needs a transaction", run: trackNoTx[T]},
	}
}

// thing is an aggregate.
type thing struct {
	waybill.Log
	name string
}

func trackCommit[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	one, two, silent := &thing{name: "one"}, &thing{name: "two"}, &thing{name: "silent"}
	ev := b.events(5, "a")
	one.Raise(ev[1])
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := box.Track(ctx, one, two, silent); err != nil {
			return err
		}
		two.Raise(ev[3])
		one.Raise(ev[2]) // after Track: written nevertheless
		if err := errors.Join(box.Track(ctx, one), box.Track(ctx, two, two)); err != nil {
			return err
		}
		two.Raise(ev[4])
		if err := b.insert(ctx, tx, "note"); err != nil {
			return err
		}
		if len(one.Raised()) != 2 || len(two.Raised()) != 2 {
			t.Errorf("events were forgotten before the commit")
		}
		// Written before the events of the commit.
		return box.Write(ctx, tx, ev[0])
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, ev...)
	b.wantNotes(ctx, t, "note", 1)
	hooks.want(t, ev, batch(ev...), nil)
	if n := len(one.Raised()) + len(two.Raised()) + len(silent.Raised()); n != 0 {
		t.Errorf("after the commit the aggregates still have %d events", n)
	}
	// Tracked again, the aggregates have nothing to write.
	if err := box.InTx(ctx, func(ctx context.Context, _ T) error { return box.Track(ctx, one, two) }); err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, ev...)
}

func trackRollback[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box := b.box(t, hooks.hook())
	one := &thing{}
	ev := b.events(3, "a")
	// Raise assigns permanent ids
	ev[0].ID, ev[1].ID = waybill.ID{}, waybill.ID{}
	one.Raise(ev[0], ev[1])
	raised := one.Raised()
	attempt := func(end error) error {
		return box.InTx(ctx, func(ctx context.Context, tx T) error {
			return errors.Join(box.Track(ctx, one), b.insert(ctx, tx, "note"), end)
		})
	}
	if err := attempt(errBoom); !errors.Is(err, errBoom) {
		t.Errorf("InTx returned %v, want the function's own error", err)
	}
	b.wantReady(ctx, t)
	if got := one.Raised(); len(got) != 2 || got[0].ID != raised[0].ID || got[1].ID != raised[1].ID {
		t.Fatalf("after a rollback the aggregate has %v, want the same two events", idsOf(got))
	}
	one.Raise(ev[2])
	if err := attempt(nil); err != nil {
		t.Fatalf("the second attempt: %v", err)
	}
	b.wantReady(ctx, t, append(raised, ev[2])...)
	b.wantNotes(ctx, t, "note", 1)
	wantBatches(t, "AfterCommit", hooks.committed, batch(append(raised, ev[2])...))
	if n := len(one.Raised()); n != 0 {
		t.Errorf("after the commit the aggregate still has %d events", n)
	}
}

// trackRefused raises events that cannot be written: the transaction fails at
// its commit, and the aggregate keeps all events.
func trackRefused[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	taken := b.event("a")
	b.write(ctx, t, taken)
	invalid := b.event("a")
	invalid.Type = ""
	duplicate := b.event("a")
	duplicate.ID = taken.ID
	for name, bad := range map[string]waybill.Event{"an invalid event": invalid, "a duplicate id": duplicate} {
		good, poor := &thing{}, &thing{}
		good.Raise(b.event("a"))
		poor.Raise(bad)
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			return errors.Join(b.insert(ctx, tx, "note"), box.Track(ctx, good, poor))
		})
		if err == nil || errors.Is(err, waybill.ErrUncertain) {
			t.Errorf("%s was raised: InTx returned %v, want an error that is certain", name, err)
		}
		if len(good.Raised()) != 1 || len(poor.Raised()) != 1 {
			t.Errorf("%s was raised: the aggregates lost their events", name)
		}
	}
	b.wantReady(ctx, t, taken)
	b.wantNotes(ctx, t, "note", 0)
}

func trackJoined[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	one := &thing{}
	ev := b.events(2, "a")
	one.Raise(ev[0])
	err := box.InTx(ctx, func(ctx context.Context, _ T) error {
		inner := func(ctx context.Context, _ T) error { return box.Track(ctx, one) }
		if err := errors.Join(box.InTx(ctx, inner), box.InTx(ctx, inner)); err != nil {
			return err
		}
		if len(one.Raised()) != 1 {
			t.Errorf("the inner transaction's end forgot the event: only the outer one commits")
		}
		one.Raise(ev[1])
		return nil
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, ev...)
	if n := len(one.Raised()); n != 0 {
		t.Errorf("after the commit the aggregate still has %d events", n)
	}
}

func trackNoTx[T any](ctx context.Context, t tb, b *env[T]) {
	box := b.box(t)
	one := &thing{}
	one.Raise(b.event("a"))
	if err := box.Track(ctx, one); !errors.Is(err, waybill.ErrNoTx) {
		t.Errorf("Track without a transaction returned %v, want ErrNoTx", err)
	}
	var old context.Context
	if err := box.InTx(ctx, func(ctx context.Context, _ T) error { old = ctx; return nil }); err != nil {
		t.Fatalf("InTx: %v", err)
	}
	if err := box.Track(old, one); !errors.Is(err, waybill.ErrTxDone) {
		t.Errorf("Track in a transaction that ended returned %v, want ErrTxDone", err)
	}
	b.wantReady(ctx, t)
	if len(one.Raised()) != 1 {
		t.Errorf("the aggregate lost its event")
	}
}
