package drivertest

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// purgeChecks check Purge.
func purgeChecks[T any]() []check[T] {
	return []check[T]{
		{row: "purge_respects_retention", name: "delivered events, the oldest first", fresh: true, run: purgesDelivered[T]},
		{row: "purge_respects_retention", name: "dead letters, the oldest first", fresh: true, run: purgesDead[T]},
		{row: "purge_respects_retention", name: "a history keeps its gaps", fresh: true, run: purgeKeepsGap[T]},
		{row: "purge_respects_retention", name: "states that cannot be purged", run: purgesNothingElse[T]},
	}
}

// purgeWrittenChecks check outboxes that change data capture reads.
func purgeWrittenChecks[T any]() []check[T] {
	return []check[T]{
		{row: "purge_written_and_make_ready", name: "ready events, in batches", fresh: true, run: purgesWritten[T]},
		{row: "purge_written_and_make_ready", name: "delayed events become ready when they are due", fresh: true, run: makesReady[T]},
		{row: "purge_written_and_make_ready", name: "nothing is made ready while a relay is live", fresh: true, run: makeReadyRefused[T]},
		{row: "purge_written_and_make_ready", name: "not while a relay is live", fresh: true, run: purgeWrittenRefused[T]},
		{row: "purge_written_and_make_ready", name: "a relay that starts concurrently", fresh: true, run: purgeWrittenRaces[T]},
	}
}

// endOneByOne ends events one after another, at different times, and waits
// until all of these times are past.
func (b *env[T]) endOneByOne(ctx context.Context, t tb, kind int, rows ...row) {
	t.Helper()
	leases := b.own(ctx, t)
	for _, row := range rows {
		wantMoved(t, b.settle(ctx, t, settlement(kind, leases, result(row))), row.ID)
		b.tick(ctx, t)
	}
	b.end()
}

// wantPurged purges in batches of two, and asserts that the events are removed
// in this order and nothing else is.
func (b *env[T]) wantPurged(ctx context.Context, t tb, state store.State, evs ...waybill.Event) {
	t.Helper()
	if n := b.purge(ctx, t, state, time.Hour, 100); n > 0 {
		t.Errorf("Purge of events that were %v an hour ago deleted %d", state, n)
	}
	for rest := evs; len(rest) > 0; {
		part := rest[:min(2, len(rest))]
		rest = rest[len(part):]
		if n := b.purge(ctx, t, state, 0, 2); n != len(part) {
			t.Errorf("Purge of 2 that are %v deleted %d, want %d", state, n, len(part))
		}
		b.wantNowhere(ctx, t, part...)
		for _, ev := range rest {
			b.wantState(ctx, t, ev, state)
		}
		b.wantUncertain(ctx, t, part...)
		b.wantCommitted(ctx, t, true, rest...)
	}
	if n := b.purge(ctx, t, state, 0, 2); n > 0 {
		t.Errorf("Purge of nothing deleted %d", n)
	}
}

// tomorrow is an event whose id is a day in the future: it was never written,
// whatever is purged today.
func tomorrow() waybill.Event {
	ev := waybill.Event{ID: waybill.NewID()}
	var stamp [8]byte
	binary.BigEndian.PutUint64(stamp[:], uint64(time.Now().Add(24*time.Hour).UnixMilli()))
	copy(ev.ID[:6], stamp[2:])
	return ev
}

// purgesDelivered delivers in an order other than that of seq.
func purgesDelivered[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(5, "a")
	rows := b.writeRows(ctx, t, evs...)
	b.endOneByOne(ctx, t, 2, rows[4])
	slices.Reverse(rows[:4])
	b.endOneByOne(ctx, t, 0, rows[:4]...)
	pending := b.events(2, "a")
	pending[1].Delay = defaultLease
	b.write(ctx, t, pending...)
	ended := slices.Clone(evs[:4])
	slices.Reverse(ended)
	b.wantPurged(ctx, t, store.Delivered, ended...)
	b.wantReady(ctx, t, pending[0])
	b.wantState(ctx, t, pending[1], store.Delayed)
	b.wantState(ctx, t, evs[4], store.Dead)
	b.wantCommitted(ctx, t, true, append(pending, evs[4])...)
	b.wantCommitted(ctx, t, false, tomorrow()) // the history has a beginning
}

func purgesDead[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(4, "a")
	rows := b.writeRows(ctx, t, evs...)
	b.endOneByOne(ctx, t, 0, rows[3])
	slices.Reverse(rows[:3])
	b.endOneByOne(ctx, t, 2, rows[:3]...)
	pending := b.events(2, "a")
	pending[1].Delay = defaultLease
	b.write(ctx, t, pending...)
	ended := slices.Clone(evs[:3])
	slices.Reverse(ended)
	b.wantPurged(ctx, t, store.Dead, ended...)
	b.wantReady(ctx, t, pending[0])
	b.wantState(ctx, t, pending[1], store.Delayed)
	b.wantState(ctx, t, evs[3], store.Delivered)
}

// purgeKeepsGap purges a history that already has a gap: the rest of it still
// proves nothing.
func purgeKeepsGap[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(2, "a")
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(rows[:1])})
	b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(rows[1:]), History: true})
	b.tick(ctx, t)
	if n := b.purge(ctx, t, store.Delivered, 0, 100); n != 1 {
		t.Errorf("Purge deleted %d, want 1", n)
	}
	b.wantUncertain(ctx, t, append(evs, tomorrow())...)
}

func purgesNothingElse[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(2, "a")
	evs[1].Delay = defaultLease
	b.write(ctx, t, evs...)
	b.tick(ctx, t)
	for _, state := range []store.State{store.Ready, store.Delayed, -1, 99} {
		if n, err := b.DB.OutboxAdmin.Purge(ctx, state, 0, 100); err == nil || n > 0 {
			t.Errorf("Purge of rows that are %v deleted %d, and returned %v", state, n, err)
		}
	}
	b.wantReady(ctx, t, evs[0])
	b.wantState(ctx, t, evs[1], store.Delayed)
}

func (b *env[T]) purgeWritten(ctx context.Context, t tb, age time.Duration, limit int) int {
	t.Helper()
	n, err := b.DB.OutboxAdmin.PurgeWritten(ctx, age, limit)
	if err != nil {
		t.Fatalf("PurgeWritten: %v", err)
	}
	return n
}

func purgesWritten[T any](ctx context.Context, t tb, b *env[T]) {
	kept := b.events(2, "a")
	rows := b.writeRows(ctx, t, kept...)
	b.endOneByOne(ctx, t, 0, rows[0])
	b.endOneByOne(ctx, t, 2, rows[1])
	evs := []waybill.Event{b.event("a"), b.event("b"), b.keyed("a", "k"), b.event(""), b.keyed("b", "late")}
	evs[1].Delay, evs[4].Delay = defaultLease, defaultLease
	b.write(ctx, t, evs...)
	b.tick(ctx, t)
	if n := b.purgeWritten(ctx, t, time.Hour, 100); n > 0 {
		t.Errorf("PurgeWritten of events written an hour ago deleted %d", n)
	}
	if n := b.purgeWritten(ctx, t, 0, 2); n != 2 {
		t.Errorf("PurgeWritten of 2 deleted %d", n)
	}
	if left := b.stats(ctx, t); left.Ready != 1 || left.Scheduled != 2 {
		t.Errorf("after PurgeWritten of 2 of 3 that are ready, %d are ready and %d scheduled", left.Ready, left.Scheduled)
	}
	if n := b.purgeWritten(ctx, t, 0, 100); n != 1 {
		t.Errorf("PurgeWritten of the rest deleted %d, want 1", n)
	}
	if n := b.purgeWritten(ctx, t, 0, 100); n > 0 {
		t.Errorf("PurgeWritten of nothing deleted %d", n)
	}
	gone := []waybill.Event{evs[0], evs[2], evs[3]}
	b.wantNowhere(ctx, t, gone...)
	for _, ev := range []waybill.Event{evs[1], evs[4]} {
		// Change data capture has not read them.
		b.wantState(ctx, t, ev, store.Delayed)
	}
	b.wantState(ctx, t, kept[0], store.Delivered)
	b.wantState(ctx, t, kept[1], store.Dead)
	b.wantUncertain(ctx, t, gone...) // no trace is left
	again := []waybill.Event{b.keyed("a", "k"), b.keyed("a", "late")}
	wantReceipts(t, receipts(ctx, t, b.box(t), again...), written(again[0]), duplicateOf(evs[4]))
}

func (b *env[T]) makeReady(ctx context.Context, t tb, limit int) int {
	t.Helper()
	n, err := b.DB.OutboxAdmin.MakeReady(ctx, limit)
	if err != nil {
		t.Fatalf("MakeReady: %v", err)
	}
	return n
}

// makesReady makes delayed events ready, one of them after a failure, the
// longest due first. They can then be purged.
func makesReady[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(4, "a")
	evs[1].DedupKey = b.unique("k")
	for i, delay := range []time.Duration{0, 30 * time.Millisecond, 20 * time.Millisecond, defaultLease} {
		evs[i].Delay = delay
	}
	b.write(ctx, t, evs...)
	failed := result(b.row(ctx, t, evs[0].ID))
	failed.Delay, failed.Holds = 10*time.Millisecond, true
	b.settle(ctx, t, driver.Settlement{Leases: b.own(ctx, t), Retry: []driver.Result{failed}})
	b.end()
	first := b.awaitDue(ctx, t, evs[1].ID)
	var due []row
	b.await(ctx, t, "three events are due", func() bool { due = b.due(ctx, t).Rows; return len(due) == 3 })
	if n := b.makeReady(ctx, t, 2); n != 2 {
		t.Errorf("MakeReady of 2 moved %d", n)
	}
	if left := b.due(ctx, t).Rows; len(left) != 1 || left[0].ID != due[2].ID {
		t.Errorf("MakeReady of 2 of %v left %v", rowIDs(due), rowIDs(left))
	}
	if n := b.makeReady(ctx, t, 100); n != 1 {
		t.Errorf("MakeReady of the rest moved %d, want 1", n)
	}
	if n := b.makeReady(ctx, t, 100); n > 0 {
		t.Errorf("MakeReady of nothing moved %d", n)
	}
	b.wantState(ctx, t, evs[3], store.Delayed)
	ready := b.row(ctx, t, evs[1].ID)
	if r := b.wantState(ctx, t, evs[1], store.Ready); r.Key != first.Key || r.Event.DedupKey != evs[1].DedupKey {
		t.Errorf("moved as %+v, key %q; it was %+v", r.Key, r.Event.DedupKey, first.Key)
	}
	if !bytes.Equal(ready.Event.Payload, evs[1].Payload) || !ready.CreatedAt.Equal(first.CreatedAt) {
		t.Errorf("moved as %+v, want %+v", ready, first)
	}
	if s := b.stats(ctx, t); s.Ready != 3 || s.Scheduled != 1 || s.Failed != 0 || s.Holding != 0 {
		t.Errorf("3 ready and 1 scheduled became %+v", s)
	}
	again := b.keyed("a", "k")
	wantReceipts(t, receipts(ctx, t, b.box(t), again), duplicateOf(evs[1]))
	b.tick(ctx, t)
	if n := b.purgeWritten(ctx, t, 0, 100); n != 3 {
		t.Errorf("PurgeWritten deleted %d that were moved, want 3", n)
	}
	wantReceipts(t, receipts(ctx, t, b.box(t), again), written(again))
}

func makeReadyRefused[T any](ctx context.Context, t tb, b *env[T]) {
	ev := b.event("a")
	ev.Delay = time.Millisecond
	b.write(ctx, t, ev)
	b.awaitDue(ctx, t, ev.ID)
	one, two := b.node(ctx, t, b.second().Relay), b.node(ctx, t, b.DB.Relay)
	if n, err := b.DB.OutboxAdmin.MakeReady(ctx, 100); !errors.Is(err, store.ErrRelayLive) || n > 0 {
		t.Errorf("MakeReady beside a live relay moved %d, and returned %v, want ErrRelayLive", n, err)
	}
	b.wantState(ctx, t, ev, store.Delayed)
	b.expire(ctx, t, b.DB.Relay, one, two)
	if err := b.DB.Relay.Leave(ctx, two); err != nil {
		t.Fatalf("Leave: %v", err)
	}
	if n := b.makeReady(ctx, t, 100); n != 1 { // a dead relay does not count
		t.Errorf("MakeReady moved %d, want 1", n)
	}
	b.wantReady(ctx, t, ev)
}

func purgeWrittenRefused[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(2, "a")
	evs[1].Delay = defaultLease
	b.write(ctx, t, evs...)
	b.tick(ctx, t)
	one, two := b.node(ctx, t, b.second().Relay), b.node(ctx, t, b.DB.Relay)
	if n, err := b.DB.OutboxAdmin.PurgeWritten(ctx, 0, 100); !errors.Is(err, store.ErrRelayLive) || n > 0 {
		t.Errorf("PurgeWritten beside a live relay deleted %d, and returned %v, want ErrRelayLive", n, err)
	}
	b.wantReady(ctx, t, evs[0])
	b.wantState(ctx, t, evs[1], store.Delayed)
	b.wantCommitted(ctx, t, false, b.event("a"))
	b.expire(ctx, t, b.DB.Relay, one, two)
	if err := b.DB.Relay.Leave(ctx, two); err != nil {
		t.Fatalf("Leave: %v", err)
	}
	if n := b.purgeWritten(ctx, t, 0, 100); n != 1 {
		// A dead relay does not count.
		t.Errorf("PurgeWritten deleted %d, want 1", n)
	}
}

// purgeWrittenRaces starts a relay while pending events are purged: events that
// the live relay has seen must stay.
func purgeWrittenRaces[T any](ctx context.Context, t tb, b *env[T]) {
	other := b.second()
	purged := 0
	for round := range 20 {
		b.write(ctx, t, b.events(200, "a")...) // enough to slow the purge down
		b.tick(ctx, t)
		n := store.Node{ID: waybill.NewID(), Relay: relayName}
		var seen []row
		var purge, beat error
		start := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			<-start
			b.stumble(ctx)
			_, purge = b.DB.OutboxAdmin.PurgeWritten(ctx, 0, 1000)
		})
		wg.Go(func() {
			<-start
			b.stumble(ctx)
			if _, beat = other.Relay.Heartbeat(ctx, n, defaultLease); beat == nil {
				var page driver.Page
				page, beat = other.Relay.Fetch(ctx, b.cursors(), 1000)
				seen = page.Rows
			}
		})
		close(start)
		wg.Wait()
		if beat != nil || purge != nil && !errors.Is(purge, store.ErrRelayLive) {
			t.Fatalf("round %d: Heartbeat: %v; PurgeWritten: %v", round, beat, purge)
		}
		if len(seen) == 0 {
			purged++
		}
		if left := b.ready(ctx, t); !slices.Equal(rowIDs(left), rowIDs(slices.SortedFunc(slices.Values(seen), bySeq))) {
			t.Errorf("round %d: a relay saw %d rows when it was live; %d are left", round, len(seen), len(left))
		}
		if err := other.Relay.Leave(ctx, n); err != nil {
			t.Fatalf("Leave: %v", err)
		}
		b.purgeWritten(ctx, t, 0, 1000)
	}
	t.Logf("in %d of 20 rounds the purge came first", purged)
}
