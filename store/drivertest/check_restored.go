package drivertest

import (
	"context"
	"errors"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// restoredChecks check Restored.
func restoredChecks[T any]() []check[T] {
	return []check[T]{
		{row: "restored", name: "positions are beyond all issued ones", fresh: true, run: restores[T]},
		{row: "restored", name: "not while a relay is live", fresh: true, run: restoreRefused[T]},
		{row: "restored", name: "by force while a relay is live", fresh: true, run: restoreForced[T]},
	}
}

// owned returns the highest seq, and the lanes, of an outbox whose lanes have
// had several owners and whose last owners released them cleanly.
func (b *env[T]) owned(ctx context.Context, t tb) (rows []row, leases []driver.Lease) {
	t.Helper()
	rows = b.writeRows(ctx, t, b.event("a"), b.event("b"), b.event(""))
	for range 2 {
		b.own(ctx, t)
		b.end()
	}
	n := b.node(ctx, t, b.DB.Relay)
	leases = b.acquire(ctx, t, b.DB.Relay, n, b.allLanes()...)
	slices.SortFunc(leases, func(x, y driver.Lease) int { return x.Lane - y.Lane })
	return rows, leases
}

// wantRestored asserts that every lane is free and has a higher epoch, that no
// node is left, that rows are unchanged, and that new positions are beyond the
// old ones.
func (b *env[T]) wantRestored(ctx context.Context, t tb, before []driver.Lease, rows []row) {
	t.Helper()
	s := b.stats(ctx, t)
	if len(s.Nodes) > 0 || len(s.Lanes) != len(before) {
		t.Errorf("restored, the outbox has the nodes %v and %d lanes, want no node and %d lanes", s.Nodes, len(s.Lanes), len(before))
	}
	for i, l := range s.Lanes {
		if !l.Owner.IsZero() || l.Live || l.Epoch < before[i].Epoch+driver.RestoreEpochs {
			t.Errorf("restored, lane %d is %+v; its epoch was %d", i, l, before[i].Epoch)
		}
	}
	wantRows(t, "restored", b.ready(ctx, t), rows)
	stale := driver.Settlement{Leases: before, Done: results(rows), History: true}
	if settled, err := b.DB.Relay.Settle(ctx, stale); err != nil || len(settled.Held)+len(settled.Moved) > 0 {
		t.Errorf("leases from before settled %+v, %v", settled, err)
	}
	last := rows[len(rows)-1].Seq
	for _, name := range []string{"a", "b", ""} {
		ev := b.event(name)
		b.write(ctx, t, ev)
		r := b.row(ctx, t, ev.ID)
		if r.Seq < last+driver.RestoreSeqs {
			t.Errorf("restored, a new event has the seq %d; the last one was %d", r.Seq, last)
		}
		b.until(ctx, t, "restored", func(w driver.WriterState) bool { return w.HighSeq >= r.Seq && w.Issued >= r.Seq })
	}
	for _, l := range b.own(ctx, t) {
		if !l.Unclean || l.Window != 7 || l.Epoch <= before[l.Lane].Epoch+driver.RestoreEpochs {
			t.Errorf("restored, lane %d was acquired as %+v; want it unclean, with the window 7, and an epoch beyond %d", l.Lane, l, before[l.Lane].Epoch)
		}
	}
	all := b.ready(ctx, t)
	wantIDs(t, "Fetch", all[:min(len(rows), len(all))], eventsOf(rows))
	b.end()
}

func eventsOf(rows []row) []waybill.Event {
	evs := make([]waybill.Event, len(rows))
	for i, r := range rows {
		evs[i] = r.Event
	}
	return evs
}

func restores[T any](ctx context.Context, t tb, b *env[T]) {
	rows, leases := b.owned(ctx, t)
	if err := b.DB.Relay.Release(ctx, leases, false); err != nil {
		t.Fatalf("Release: %v", err)
	}
	b.end()
	if err := b.DB.Restorer.Restored(ctx, false); err != nil {
		t.Fatalf("Restored: %v", err)
	}
	b.wantRestored(ctx, t, leases, rows)
	// Again, after another backup: positions of new events and owners count.
	rows = b.ready(ctx, t)
	held := b.own(ctx, t)
	b.end()
	if err := b.second().Restorer.Restored(ctx, false); err != nil {
		t.Fatalf("Restored again: %v", err)
	}
	b.wantRestored(ctx, t, held, rows)
}

func restoreRefused[T any](ctx context.Context, t tb, b *env[T]) {
	rows, leases := b.owned(ctx, t)
	before := b.stats(ctx, t)
	if err := b.second().Restorer.Restored(ctx, false); !errors.Is(err, store.ErrRelayLive) {
		t.Errorf("Restored beside a live relay returned %v, want ErrRelayLive", err)
	}
	after := b.stats(ctx, t)
	if !slices.Equal(after.Lanes, before.Lanes) || !slices.Equal(after.Nodes, before.Nodes) {
		t.Errorf("refused, Restored changed %+v to %+v", before.Membership, after.Membership)
	}
	ev := b.event("a")
	b.write(ctx, t, ev)
	if r := b.row(ctx, t, ev.ID); r.Seq >= driver.RestoreSeqs {
		t.Errorf("refused, Restored raised the seqs to %d", r.Seq)
	}
	all := b.ready(ctx, t)
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(all), History: true}), rowIDs(all)...)
	if len(all) != len(rows)+1 {
		t.Errorf("refused, Restored left %d rows of %d", len(all), len(rows)+1)
	}
	// A dead relay does not count.
	n := store.Node{ID: before.Nodes[0].ID, Relay: relayName}
	witness := b.node(ctx, t, b.DB.Relay)
	b.expire(ctx, t, b.DB.Relay, n, witness)
	if err := b.DB.Relay.Leave(ctx, witness); err != nil {
		t.Fatalf("Leave: %v", err)
	}
	if err := b.DB.Restorer.Restored(ctx, false); err != nil {
		t.Errorf("Restored beside a dead relay: %v", err)
	}
	for i, l := range b.stats(ctx, t).Lanes {
		if !l.Owner.IsZero() || l.Epoch < leases[i].Epoch+driver.RestoreEpochs {
			t.Errorf("restored beside a dead relay, lane %d is %+v; its epoch was %d", i, l, leases[i].Epoch)
		}
	}
}

func restoreForced[T any](ctx context.Context, t tb, b *env[T]) {
	rows, leases := b.owned(ctx, t)
	if err := b.DB.Restorer.Restored(ctx, true); err != nil {
		t.Fatalf("Restored by force: %v", err)
	}
	b.wantRestored(ctx, t, leases, rows)
}
