package drivertest

import (
	"context"
	"errors"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
)

// hubChecks check that in-process notifications match the rows that a relay
// would read.
func hubChecks[T any]() []check[T] {
	return []check[T]{
		{row: "commits_are_published_once", name: "one commit with all entries", run: hubOnce[T]},
		{row: "commits_are_published_once", name: "the same hub always", run: hubSame[T]},
		{row: "commits_are_published_once", name: "preferred lanes", run: hubPrefers[T]},
		{row: "commits_are_published_once", name: "published after the commit", run: hubAfterCommit[T]},
	}
}

func hubOnce[T any](ctx context.Context, t tb, b *env[T]) {
	var hooks record
	box, heard := b.box(t, hooks.hook()), b.listen(b.DB.Outbox)
	away := b.second()
	afar := b.listen(away.Outbox)
	evs := []waybill.Event{b.event("a"), b.event(""), b.event("b"), b.keyed("c", "k"), b.event("a")}
	evs[2].Headers = map[string]string{"h": "v"}
	evs[2].TenantID = "acme"
	later := b.event("a")
	later.Delay = defaultLease
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		return errors.Join(box.Write(ctx, tx, evs[:2]...), box.Write(ctx, tx, evs[2], later), box.Write(ctx, tx, evs[3:]...))
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	commits := heard.heard()
	wantHeard(t, commits, []waybill.Event{evs[0], evs[1], evs[2], later, evs[3], evs[4]}, nil)
	if len(commits) != 1 {
		return
	}
	if !commits[0].Checked {
		t.Errorf("a hook needs the committed events, and the commit is not checked")
	}
	rows := b.wantReady(ctx, t, evs...)
	for _, entry := range commits[0].Entries {
		if entry.Event.ID == later.ID {
			if want := b.laneOf(later); entry.Lane != want || !entry.Event.Delayed() {
				t.Errorf("the hub published the delayed event as %+v, want it delayed, in lane %d", entry, want)
			}
			continue
		}
		row, ok := find(rows, entry.Event.ID)
		if !ok {
			continue // reported above
		}
		if row.Lane != entry.Lane {
			t.Errorf("the hub published event %s in lane %d; its row is in %d", row.ID, entry.Lane, row.Lane)
		}
		for _, diff := range differences(entry.Event, row.Event) {
			t.Errorf("the published event %s differs from its row: %s", row.ID, diff)
		}
	}
	if away.Outbox.Local() != b.DB.Outbox.Local() && len(afar.heard()) > 0 {
		t.Errorf("the hub of another process published %v", afar.heard())
	}
	if away.Relay == nil {
		return
	}
	if got := rowIDs(b.readyIn(ctx, t, away.Relay)); !slices.Equal(got, idsOf(evs)) {
		t.Errorf("another process reads %v, want %v", got, idsOf(evs))
	}
}

func hubSame[T any](_ context.Context, t tb, b *env[T]) {
	if first, second := b.DB.Outbox.Local(), b.DB.Outbox.Local(); first == nil || first != second {
		t.Errorf("Local does not return the same hub every time")
	}
	if b.features.SecondStore && b.second().Outbox.Local() == b.DB.Outbox.Local() {
		t.Errorf("Instance.Second returned a store with the same hub: it must look like another process")
	}
}

// hubPrefers lets a relay own some lanes: unordered events go to these lanes,
// ordered ones to their own.
func hubPrefers[T any](ctx context.Context, t tb, b *env[T]) {
	mine := []int{b.lanes - 1, b.lanes / 2}
	b.DB.Outbox.Local().SetLocalLanes(mine)
	b.later(func() { b.DB.Outbox.Local().SetLocalLanes(nil) })
	evs := append(b.events(20, ""), b.event("a"), b.event("b"))
	b.write(ctx, t, evs...)
	for _, row := range b.wantReady(ctx, t, evs...) {
		switch ordered := row.Event.Ordered(); {
		case ordered && row.Lane != b.laneOf(row.Event):
			t.Errorf("an ordered event is in lane %d, want %d", row.Lane, b.laneOf(row.Event))
		case !ordered && !slices.Contains(mine, row.Lane):
			t.Errorf("an unordered event is in lane %d, want one of %v", row.Lane, mine)
		}
	}
	// Without local lanes the events are spread: 40 events in one of several
	// lanes by chance are practically impossible.
	b.DB.Outbox.Local().SetLocalLanes(nil)
	b.write(ctx, t, b.events(40, "")...)
	lanes := map[int]bool{}
	for _, row := range b.ready(ctx, t)[len(evs):] {
		lanes[row.Lane] = true
	}
	if b.lanes > 1 && len(lanes) < 2 {
		t.Errorf("40 unordered events went into %d of %d lanes", len(lanes), b.lanes)
	}
}

// hubAfterCommit reads on another connection inside the listener: the published
// events are visible.
func hubAfterCommit[T any](ctx context.Context, t tb, b *env[T]) {
	box := boxOver[T](t, b.DB.Outbox, outbox.Config{})
	ev := b.event("a")
	told := false
	var seen []waybill.ID
	b.later(b.DB.Outbox.Local().Listen(func(c driver.Commit) {
		told = told || len(c.Entries) > 0
		seen = rowIDs(b.ready(ctx, t))
	}))
	err := box.InTx(ctx, func(ctx context.Context, tx T) error {
		if _, err := box.WriteEach(ctx, tx, ev); err != nil {
			return err
		}
		if told {
			t.Errorf("the hub published an event before its commit")
		}
		return nil
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	if !told || !slices.Equal(seen, []waybill.ID{ev.ID}) {
		t.Errorf("when the hub published the commit (%v), a reader saw %v, want %s", told, seen, ev.ID)
	}
}
