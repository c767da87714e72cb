package drivertest

import (
	"context"
	"errors"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// finishChecks check Finish with held lanes: an event is done if and only if
// the transaction commits.
func finishChecks[T any]() []check[T] {
	return []check[T]{
		{row: "effect_and_settlement_together", name: "commit", run: finishCommits[T]},
		{row: "effect_and_settlement_together", name: "rollback", run: finishRollsBack[T]},
		{row: "effect_and_settlement_together", name: "with and without history", fresh: true, run: finishHistory[T]},
		{row: "effect_and_settlement_together", name: "beside a write", run: finishBesideWrite[T]},
		{row: "effect_and_settlement_together", name: "in a savepoint", run: finishInSavepoint[T]},
		{row: "effect_and_settlement_together", name: "in a foreign transaction", run: finishForeign[T]},
		{row: "effect_and_settlement_together", name: "rows that are gone", run: finishGone[T]},
		{row: "effect_and_settlement_together", name: "many", run: finishMany[T]},
	}
}

// delivery is a row in flight to a sink, under a lease.
func delivery(r row, lease driver.Lease, history bool) waybill.Delivery {
	return waybill.Delivery{
		Event: r.Event, Attempt: r.Attempts + 1, Replay: r.Replay, Claim: &driver.Claim{Token: lease.Token, History: history},
		Position: waybill.Position{Lane: lease.Lane, Epoch: lease.Epoch, Seq: r.Seq},
	}
}

// deliveries are rows in flight to a sink, with history; leases are those of
// all lanes, in their order.
func deliveries(leases []driver.Lease, rows ...row) []waybill.Delivery {
	var ds []waybill.Delivery
	for _, r := range rows {
		ds = append(ds, delivery(r, leases[r.Lane], true))
	}
	return ds
}

// finishIn records deliveries as done in its own transaction, beside a business
// row; then fails with end.
func (b *env[T]) finishIn(ctx context.Context, t tb, end error, ds ...waybill.Delivery) error {
	t.Helper()
	box := b.box(t)
	return box.InTx(ctx, func(ctx context.Context, tx T) error {
		if err := b.insert(ctx, tx, "note"); err != nil {
			return err
		}
		if err := b.DB.Finisher.Finish(ctx, tx, ds); err != nil {
			return err
		}
		return end
	})
}

// threeRows writes a ready event, one with a dedup key, and one that is
// deferred and due.
func threeRows[T any](ctx context.Context, t tb, b *env[T]) ([]waybill.Event, []row) {
	t.Helper()
	evs := []waybill.Event{b.event("a"), b.keyed("a", "k"), b.event("a")}
	evs[2].Delay = 1
	b.write(ctx, t, evs...)
	due := b.awaitDue(ctx, t, evs[2].ID)
	return evs, append(b.ready(ctx, t), due)
}

func finishCommits[T any](ctx context.Context, t tb, b *env[T]) {
	evs, rows := threeRows(ctx, t, b)
	left := b.event("a")
	b.write(ctx, t, left)
	leases := b.own(ctx, t)
	before := b.now(ctx, t)
	if err := b.finishIn(ctx, t, nil, deliveries(leases, rows...)...); err != nil {
		t.Fatalf("InTx with Finish: %v", err)
	}
	b.wantNotes(ctx, t, "note", 1)
	b.wantReady(ctx, t, left)
	for i, ev := range evs {
		rec := b.wantState(ctx, t, ev, store.Delivered)
		wantEvent(t, rec.Row, ev)
		if rec.Key != rows[i].Key || rec.EndedAt.Before(before) {
			t.Errorf("delivered at %v, after %v: %+v, before %+v", rec.EndedAt, before, rec.Key, rows[i].Key)
		}
	}
	if _, late := find(b.due(ctx, t).Rows, evs[2].ID); late {
		t.Errorf("an event that is finished is due")
	}
	b.wantCommitted(ctx, t, true, evs...)
	next := b.keyed("a", "k")
	wantReceipts(t, receipts(ctx, t, b.box(t), next), written(next))
	// The lease stays valid: a later settlement of the relay skips these rows
	// and applies the rest.
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(rows), History: true}))
	b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(b.ready(ctx, t)), History: true})
	b.wantReady(ctx, t)
}

func finishRollsBack[T any](ctx context.Context, t tb, b *env[T]) {
	evs, rows := threeRows(ctx, t, b)
	leases := b.own(ctx, t)
	if err := b.finishIn(ctx, t, errBoom, deliveries(leases, rows...)...); !errors.Is(err, errBoom) {
		t.Fatalf("InTx with Finish: %v, want the function's own error", err)
	}
	b.wantNotes(ctx, t, "note", 0)
	b.wantReady(ctx, t, evs[:2]...)
	if due := b.awaitDue(ctx, t, evs[2].ID); due.Key != rows[2].Key || due.Attempts != 0 {
		t.Errorf("after the rollback the deferred row is %+v", due)
	}
	b.wantState(ctx, t, evs[0], store.Ready)
	// The key is still in use.
	wantReceipts(t, receipts(ctx, t, b.box(t), b.keyed("a", "k")), duplicateOf(evs[1]))
	// Repeat with a commit.
	if err := b.finishIn(ctx, t, nil, deliveries(leases, rows...)...); err != nil {
		t.Fatalf("InTx with Finish: %v", err)
	}
	b.wantReady(ctx, t)
}

// finishHistory ends with an event without a trace: afterwards a missing event
// proves nothing.
func finishHistory[T any](ctx context.Context, t tb, b *env[T]) {
	evs := append(b.events(2, "a"), b.keyed("a", "k"))
	rows := b.writeRows(ctx, t, evs...)
	unknown := b.event("a")
	leases := b.own(ctx, t)
	ds := deliveries(leases, rows...)
	ds[1], ds[2] = delivery(rows[1], leases[rows[1].Lane], false), delivery(rows[2], leases[rows[2].Lane], false)
	if err := b.finishIn(ctx, t, errBoom, ds...); !errors.Is(err, errBoom) {
		t.Fatalf("InTx with Finish: %v, want the function's own error", err)
	}
	b.wantReady(ctx, t, evs...)
	if err := b.finishIn(ctx, t, nil, ds...); err != nil {
		t.Fatalf("InTx with Finish: %v", err)
	}
	b.wantReady(ctx, t)
	b.wantState(ctx, t, evs[0], store.Delivered)
	b.wantNowhere(ctx, t, evs[1:]...)
	b.wantUncertain(ctx, t, append(evs[1:], unknown)...)
	next := b.keyed("a", "k")
	wantReceipts(t, receipts(ctx, t, b.box(t), next), written(next))
}

func finishBesideWrite[T any](ctx context.Context, t tb, b *env[T]) {
	ev, before, keyed := b.event("a"), b.event("a"), b.keyed("b", "k")
	rows := b.writeRows(ctx, t, ev)
	leases := b.own(ctx, t)
	box := b.box(t)
	for _, end := range []error{errBoom, nil} {
		err := box.InTx(ctx, func(ctx context.Context, tx T) error {
			if err := box.Write(ctx, tx, before, keyed); err != nil {
				return err
			}
			if err := b.DB.Finisher.Finish(ctx, tx, deliveries(leases, rows...)); err != nil {
				return err
			}
			return end
		})
		if !errors.Is(err, end) {
			t.Fatalf("InTx with Write and Finish: %v, want %v", err, end)
		}
		if end != nil {
			b.wantReady(ctx, t, ev)
		}
	}
	b.wantReady(ctx, t, before, keyed)
	b.wantState(ctx, t, ev, store.Delivered)
}

func finishInSavepoint[T any](ctx context.Context, t tb, b *env[T]) {
	if b.features.lacks(savepoints) != "" {
		t.Skipf("no savepoints")
	}
	evs := b.events(2, "a")
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	err := b.box(t).InTx(ctx, func(ctx context.Context, tx T) error {
		err := savepointDriver(ctx, b, tx, func(tx T) error {
			return errors.Join(b.DB.Finisher.Finish(ctx, tx, deliveries(leases, rows[0])), errBoom)
		})
		if !errors.Is(err, errBoom) || errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("Finish in a savepoint: %v, want the function's own error", err)
		}
		return savepointDriver(ctx, b, tx, func(tx T) error { return b.DB.Finisher.Finish(ctx, tx, deliveries(leases, rows[1])) })
	})
	if err != nil {
		t.Fatalf("InTx: %v", err)
	}
	b.wantReady(ctx, t, evs[0])
	b.wantState(ctx, t, evs[1], store.Delivered)
}

func finishForeign[T any](ctx context.Context, t tb, b *env[T]) {
	if b.features.lacks(foreignTx) != "" {
		t.Skipf("no transactions but the store's own")
	}
	evs := b.events(2, "a")
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	back := b.foreign(ctx, t)
	if err := errors.Join(b.insert(ctx, back.Tx, "back"), b.DB.Finisher.Finish(ctx, back.Tx, deliveries(leases, rows...))); err != nil {
		t.Fatalf("Finish: %v", err)
	}
	b.wantReady(ctx, t, evs...) // not yet
	if err := back.Rollback(); err != nil {
		t.Fatalf("the rollback: %v", err)
	}
	b.wantReady(ctx, t, evs...)
	there := b.foreign(ctx, t)
	if err := errors.Join(b.insert(ctx, there.Tx, "there"), b.DB.Finisher.Finish(ctx, there.Tx, deliveries(leases, rows...))); err != nil {
		t.Fatalf("Finish: %v", err)
	}
	if err := there.Commit(); err != nil {
		t.Fatalf("the commit: %v", err)
	}
	b.wantReady(ctx, t)
	b.wantNotes(ctx, t, "back", 0)
	b.wantNotes(ctx, t, "there", 1)
	b.wantState(ctx, t, evs[0], store.Delivered)
	if err := b.DB.Finisher.Finish(ctx, there.Tx, deliveries(leases, rows...)); err == nil {
		t.Errorf("Finish in a transaction that has ended returned nil")
	}
}

// finishGone finishes rows that do not exist, twice, under another lane's
// lease, and an empty list.
func finishGone[T any](ctx context.Context, t tb, b *env[T]) {
	names := b.aggregates(2)
	evs := []waybill.Event{b.event(names[0]), b.event(names[0]), b.event(names[len(names)-1])}
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	never := rows[0]
	never.ID = waybill.NewID()
	never.Event.ID = never.ID
	if err := b.finishIn(ctx, t, nil); err != nil {
		t.Errorf("Finish of nothing: %v", err)
	}
	ds := deliveries(leases, never, rows[0], rows[0], never)
	wrong := slices.Clone(rows[2:])
	wrong[0].Lane = rows[0].Lane // the fence of the row's own lane protects it
	if rows[2].Lane != rows[0].Lane {
		ds = append(ds, deliveries(leases, wrong...)...)
	}
	if err := b.finishIn(ctx, t, nil, ds...); err != nil {
		t.Fatalf("InTx with Finish: %v", err)
	}
	b.wantReady(ctx, t, evs[1:]...)
	b.wantState(ctx, t, evs[0], store.Delivered)
	if err := b.finishIn(ctx, t, nil, ds...); err != nil {
		t.Errorf("Finish of finished deliveries: %v", err)
	}
	b.wantState(ctx, t, evs[0], store.Delivered) // once
	b.wantNowhere(ctx, t, never.Event)
}

func finishMany[T any](ctx context.Context, t tb, b *env[T]) {
	var evs []waybill.Event
	for _, name := range b.aggregates(8) {
		evs = append(evs, b.events(100, name)...)
	}
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	part := len(rows) - 3
	ds := deliveries(leases, rows[:part]...)
	slices.Reverse(ds)
	if err := b.finishIn(ctx, t, nil, ds...); err != nil {
		t.Fatalf("InTx with Finish: %v", err)
	}
	b.wantReady(ctx, t, evs[part:]...)
	for i := 0; i < part; i += 97 {
		b.wantState(ctx, t, evs[i], store.Delivered)
	}
}
