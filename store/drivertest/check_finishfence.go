package drivertest

import (
	"context"
	"errors"
	"slices"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// finishFenceChecks check Finish with lost lanes: nothing is finished.
func finishFenceChecks[T any]() []check[T] {
	return []check[T]{
		{row: "effect_and_settlement_together", name: "stale claims change nothing", run: finishStale[T]},
		{row: "effect_and_settlement_together", name: "a lost lane beside a held one", run: finishLostBesideHeld[T]},
		{row: "effect_and_settlement_together", name: "a takeover waits", run: takeOverWaits[T]},
		{row: "effect_and_settlement_together", name: "against a takeover", run: finishAgainstTakeOver[T]},
		{row: "effect_and_settlement_together", name: "concurrent finishes of one delivery", run: finishTogether[T]},
	}
}

// wantLost asserts that deliveries cannot be finished, and that trying changes
// nothing: neither if the transaction is rolled back, nor if the caller commits
// it nevertheless.
func (b *env[T]) wantLost(ctx context.Context, t tb, what string, evs []waybill.Event, ds ...waybill.Delivery) {
	t.Helper()
	if err := b.finishIn(ctx, t, nil, ds...); !errors.Is(err, waybill.ErrLeaseLost) {
		t.Errorf("%s: InTx with Finish returned %v, want ErrLeaseLost", what, err)
	}
	b.wantReady(ctx, t, evs...)
	_ = b.box(t).InTx(ctx, func(ctx context.Context, tx T) error {
		if err := b.DB.Finisher.Finish(ctx, tx, ds); !errors.Is(err, waybill.ErrLeaseLost) {
			t.Errorf("%s: Finish returned %v, want ErrLeaseLost", what, err)
		}
		return nil
	})
	b.wantReady(ctx, t, evs...)
}

// finishStale tries every kind of stale claim.
func finishStale[T any](ctx context.Context, t tb, b *env[T]) {
	evs := []waybill.Event{b.event("a"), b.event("a")}
	rows := b.writeRows(ctx, t, evs...)
	n := b.node(ctx, t, b.DB.Relay)
	old := b.acquire(ctx, t, b.DB.Relay, n, rows[0].Lane)[0]
	if err := b.DB.Relay.Release(ctx, []driver.Lease{old}, false); err != nil {
		t.Fatalf("Release: %v", err)
	}
	try := func(what string, lease driver.Lease) {
		t.Helper()
		b.wantLost(ctx, t, what, evs, delivery(rows[0], lease, true), delivery(rows[1], lease, true))
	}
	try("a lease that was released", old)
	try("a lease without a token, on a lane without an owner", driver.Lease{Lane: old.Lane, Epoch: old.Epoch})
	held := b.acquire(ctx, t, b.DB.Relay, n, rows[0].Lane)[0]
	try("the lease before the present one", old)
	for what, change := range map[string]func(l *driver.Lease){
		"an old epoch with the present token": func(l *driver.Lease) { l.Epoch = old.Epoch },
		"a later epoch":                       func(l *driver.Lease) { l.Epoch++ },
		"the present epoch with an old token": func(l *driver.Lease) { l.Token = old.Token },
		"no token":                            func(l *driver.Lease) { l.Token = waybill.ID{} },
		"a lane that does not exist":          func(l *driver.Lease) { l.Lane = b.lanes + 5 },
		"a lane below the first lane":         func(l *driver.Lease) { l.Lane = -1 },
	} {
		lease := held
		change(&lease)
		try(what, lease)
		// One stale claim rejects the valid ones, in either order.
		good, bad := delivery(rows[0], held, true), delivery(rows[1], lease, true)
		b.wantLost(ctx, t, what+", behind a good one", evs, good, bad)
		b.wantLost(ctx, t, what+", in front of a good one", evs, bad, good)
	}
	b.wantNotes(ctx, t, "note", 0)
	// The current claim still counts.
	if err := b.finishIn(ctx, t, nil, delivery(rows[0], held, true), delivery(rows[1], held, true)); err != nil {
		t.Fatalf("InTx with Finish: %v", err)
	}
	b.wantReady(ctx, t)
}

func finishLostBesideHeld[T any](ctx context.Context, t tb, b *env[T]) {
	names := b.aggregates(3)
	if len(names) < 3 {
		t.Logf("the store has %d lanes: no lane beside another", b.lanes)
		return
	}
	var evs []waybill.Event
	for _, name := range names {
		evs = append(evs, b.event(name))
	}
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	lost := leases[rows[1].Lane]
	if err := b.DB.Relay.Release(ctx, []driver.Lease{lost}, false); err != nil {
		t.Fatalf("Release: %v", err)
	}
	b.acquire(ctx, t, b.second().Relay, b.node(ctx, t, b.second().Relay), lost.Lane)
	b.wantLost(ctx, t, "the middle lane is lost", evs, deliveries(leases, rows...)...)
	if err := b.finishIn(ctx, t, nil, deliveries(leases, rows[0], rows[2])...); err != nil {
		t.Fatalf("InTx with Finish of held deliveries: %v", err)
	}
	b.wantReady(ctx, t, evs[1])
}

// takeOver is the result of a takeover of a lane.
type takeOver struct {
	leases []driver.Lease
	seen   []row // rows that the heir finds
	err    error
}

// takeOver takes a lane whose owner is dead, and reads its rows.
func (b *env[T]) takeOver(ctx context.Context, db driver.Roles[T], heir store.Node, lane int) takeOver {
	leases, err := db.Relay.Acquire(ctx, heir, []int{lane}, 7)
	if err != nil {
		return takeOver{err: err}
	}
	page, err := db.Relay.Fetch(ctx, []driver.Cursor{{Lane: lane}}, 100)
	return takeOver{leases: leases, seen: page.Rows, err: err}
}

// want asserts that the heir has the lane, and that it sees the row if and only
// if the transaction that finished the delivery, and ended with err, did not
// commit.
func (o takeOver) want(t tb, round int, id waybill.ID, err error) {
	t.Helper()
	if o.err != nil || len(o.leases) != 1 {
		t.Fatalf("round %d: the heir acquired %v of a lane whose owner is dead: %v", round, o.leases, o.err)
	}
	if err != nil && !errors.Is(err, waybill.ErrLeaseLost) {
		t.Fatalf("round %d: InTx with Finish: %v", round, err)
	}
	if _, there := find(o.seen, id); there == (err == nil) {
		t.Errorf("round %d: after the takeover the row was there: %v; the transaction that finished it ended with %v", round, there, err)
	}
}

// staleOwner writes an event and lets the lease of its lane's owner expire;
// heir is a live node.
func staleOwner[T any](ctx context.Context, t tb, b *env[T], other driver.Roles[T]) (r row, lease driver.Lease, heir store.Node) {
	t.Helper()
	r = b.writeRows(ctx, t, b.event("a"))[0]
	stale, heir := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, other.Relay)
	lease = b.acquire(ctx, t, b.DB.Relay, stale, r.Lane)[0]
	b.expire(ctx, t, b.DB.Relay, stale, heir)
	return r, lease, heir
}

// takeOverWaits takes a lane over while a transaction that has finished a
// delivery of that lane is open. Either the takeover waits for the end of the
// transaction, or the transaction cannot commit.
func takeOverWaits[T any](ctx context.Context, t tb, b *env[T]) {
	other := b.second()
	for round, end := range []error{nil, errBoom, nil} {
		r, lease, heir := staleOwner(ctx, t, b, other)
		took := make(chan takeOver, 1)
		early := false
		err := b.box(t).InTx(ctx, func(ctx context.Context, tx T) error {
			if err := b.DB.Finisher.Finish(ctx, tx, []waybill.Delivery{delivery(r, lease, true)}); err != nil {
				return err
			}
			go func() { took <- b.takeOver(context.WithoutCancel(ctx), other, heir, r.Lane) }()
			for range 25 { // time for a takeover that does not wait
				if _, err := b.DB.Relay.Fetch(ctx, b.cursors(), 1); err != nil {
					return err
				}
			}
			early = len(took) > 0
			return end
		})
		if early && err == nil {
			t.Errorf("round %d: the takeover did not wait, and the transaction committed", round)
		}
		if errors.Is(err, errBoom) {
			err = waybill.ErrLeaseLost // the transaction did not commit
		}
		select {
		case o := <-took:
			o.want(t, round, r.ID, err)
			if err != nil && len(o.leases) == 1 {
				b.settle(ctx, t, driver.Settlement{Leases: o.leases, Done: []driver.Result{result(r)}, History: true})
			}
		case <-ctx.Done():
			t.Fatalf("round %d: the takeover never ends", round)
		}
		b.end()
	}
}

// finishAgainstTakeOver lets a stale owner finish a delivery during the
// takeover of its lane.
func finishAgainstTakeOver[T any](ctx context.Context, t tb, b *env[T]) {
	rounds := 30
	if b.short {
		rounds = 10
	}
	other := b.second()
	first := 0
	for round := range rounds {
		r, lease, heir := staleOwner(ctx, t, b, other)
		var took takeOver
		var err error
		start := make(chan struct{})
		var wg sync.WaitGroup
		wg.Go(func() {
			<-start
			b.stumble(ctx)
			err = b.finishIn(ctx, t, nil, delivery(r, lease, true))
		})
		wg.Go(func() {
			<-start
			b.stumble(ctx)
			took = b.takeOver(ctx, other, heir, r.Lane)
		})
		close(start)
		wg.Wait()
		took.want(t, round, r.ID, err)
		if err == nil {
			first++
		} else {
			b.settle(ctx, t, driver.Settlement{Leases: took.leases, Done: []driver.Result{result(r)}, History: true})
		}
		b.wantState(ctx, t, r.Event, store.Delivered)
		b.end()
	}
	t.Logf("in %d of %d rounds Finish came first", first, rounds)
}

// finishTogether records the same deliveries as done in two transactions and a
// settlement: each is done once.
func finishTogether[T any](ctx context.Context, t tb, b *env[T]) {
	for range 5 {
		evs := b.events(6, "a")
		rows := b.writeRows(ctx, t, evs...)
		leases := b.own(ctx, t)
		ds := deliveries(leases, rows...)
		var wg sync.WaitGroup
		for range 2 {
			wg.Go(func() {
				if err := b.finishIn(ctx, t, nil, slices.Clone(ds)...); err != nil {
					t.Errorf("InTx with Finish: %v", err)
				}
			})
		}
		wg.Go(func() {
			if _, err := b.DB.Relay.Settle(ctx, driver.Settlement{Leases: leases, Done: results(rows), History: true}); err != nil {
				t.Errorf("Settle: %v", err)
			}
		})
		wg.Wait()
		b.wantReady(ctx, t)
		for _, ev := range evs {
			b.wantState(ctx, t, ev, store.Delivered)
		}
		b.end()
	}
}
