package drivertest

import (
	"context"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// fenceChecks check that a settlement applies to held lanes only.
func fenceChecks[T any]() []check[T] {
	return []check[T]{
		{row: "stale_owner_fenced", name: "stale leases change nothing", run: staleLeases[T]},
		{row: "stale_owner_fenced", name: "a lost lane beside a held one", run: lostBesideHeld[T]},
		{row: "stale_owner_fenced", name: "results without a lease", run: resultsWithoutLease[T]},
	}
}

// staleLeases tries every kind of stale lease with every kind of result.
func staleLeases[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(2, "a")
	evs[1].Delay = 1
	b.write(ctx, t, evs...)
	ready := b.row(ctx, t, evs[0].ID)
	due := b.awaitDue(ctx, t, evs[1].ID)
	n := b.node(ctx, t, b.DB.Relay)
	old := b.acquire(ctx, t, b.DB.Relay, n, ready.Lane)[0]
	if err := b.DB.Relay.Release(ctx, []driver.Lease{old}, false); err != nil {
		t.Fatalf("Release: %v", err)
	}
	try := func(what string, lease driver.Lease) {
		t.Helper()
		for kind := range 3 {
			r1, r2 := result(ready), result(due)
			r1.Attempts, r2.Attempts, r1.Error, r2.Error = 9, 9, "stale", "stale"
			settled, err := b.DB.Relay.Settle(ctx, settlement(kind, []driver.Lease{lease}, r1, r2))
			if err != nil {
				t.Errorf("%s: Settle returned the error %v, want an empty answer", what, err)
			}
			if len(settled.Held) > 0 || len(settled.Moved) > 0 {
				t.Errorf("%s: the settlement was accepted: %+v", what, settled)
			}
		}
		b.wantReady(ctx, t, evs[0])
		if row := b.awaitDue(ctx, t, evs[1].ID); row.Attempts != 0 || row.LastError != "" || !row.DueAt.Equal(due.DueAt) {
			t.Errorf("%s: the deferred row has changed: %+v", what, row)
		}
	}
	try("a lease that was released", old)
	try("a lease without a token, on a lane without an owner", driver.Lease{Lane: old.Lane, Epoch: old.Epoch})
	held := b.acquire(ctx, t, b.DB.Relay, n, ready.Lane)[0]
	try("the lease before the present one", old)
	for what, change := range map[string]func(l *driver.Lease){
		"an old epoch with the present token": func(l *driver.Lease) { l.Epoch = old.Epoch },
		"a later epoch":                       func(l *driver.Lease) { l.Epoch++ },
		"the present epoch with an old token": func(l *driver.Lease) { l.Token = old.Token },
		"the present epoch with another token": func(l *driver.Lease) {
			l.Token[15] ^= 1
		},
		"no token":                    func(l *driver.Lease) { l.Token = waybill.ID{} },
		"a lane that does not exist":  func(l *driver.Lease) { l.Lane = b.lanes + 5 },
		"a lane below the first lane": func(l *driver.Lease) { l.Lane = -1 },
	} {
		lease := held
		change(&lease)
		try(what, lease)
	}
	// The current lease still counts, whatever its other fields are.
	held.Unclean, held.Window = !held.Unclean, held.Window+1
	settled := b.settle(ctx, t, driver.Settlement{Leases: []driver.Lease{held}, Done: []driver.Result{result(ready), result(due)}, History: true})
	wantMoved(t, settled, evs[0].ID, evs[1].ID)
}

func lostBesideHeld[T any](ctx context.Context, t tb, b *env[T]) {
	names := b.aggregates(3)
	if len(names) < 3 {
		t.Logf("the store has %d lanes: no lane beside another", b.lanes)
		return
	}
	var evs []waybill.Event
	for _, name := range names {
		evs = append(evs, b.events(3, name)...)
	}
	rows := b.writeRows(ctx, t, evs...)
	one, two := b.node(ctx, t, b.DB.Relay), b.node(ctx, t, b.second().Relay)
	lanes := []int{rows[0].Lane, rows[3].Lane, rows[6].Lane}
	leases := b.acquire(ctx, t, b.DB.Relay, one, lanes...)
	slices.SortFunc(leases, func(x, y driver.Lease) int { return slices.Index(lanes, x.Lane) - slices.Index(lanes, y.Lane) })
	// The middle lane changes its owner.
	if err := b.DB.Relay.Release(ctx, leases[1:2], false); err != nil {
		t.Fatalf("Release: %v", err)
	}
	b.acquire(ctx, t, b.second().Relay, two, lanes[1])
	s := driver.Settlement{Leases: leases, History: true}
	for i, row := range rows {
		r := result(row)
		r.Attempts, r.Delay = 1, defaultLease
		switch i % 3 {
		case 0:
			s.Done = append(s.Done, r)
		case 1:
			s.Retry = append(s.Retry, r)
		case 2:
			s.Dead = append(s.Dead, r)
		}
	}
	settled, err := b.DB.Relay.Settle(ctx, s)
	if err != nil {
		t.Fatalf("Settle: %v", err)
	}
	wantHeld(t, settled, lanes[0], lanes[2])
	wantMoved(t, settled, slices.Concat(rowIDs(rows[:3]), rowIDs(rows[6:]))...)
	left := b.wantReady(ctx, t, evs[3:6]...)
	for _, row := range left {
		if row.Attempts != 0 || row.LastError != "" || !row.DueAt.IsZero() {
			t.Errorf("a lane that is lost was changed: %+v", row)
		}
	}
}

// resultsWithoutLease names rows of lanes without a fence in the settlement,
// and rows under the fence of another lane.
func resultsWithoutLease[T any](ctx context.Context, t tb, b *env[T]) {
	names := b.aggregates(2)
	var evs []waybill.Event
	for _, name := range names {
		evs = append(evs, b.event(name))
	}
	rows := b.writeRows(ctx, t, evs...)
	leases := b.own(ctx, t)
	settled, err := b.DB.Relay.Settle(ctx, driver.Settlement{Done: results(rows), History: true})
	if err != nil {
		t.Fatalf("Settle: %v", err)
	}
	wantHeld(t, settled)
	wantMoved(t, settled)
	b.wantReady(ctx, t, evs...)
	if len(names) < 2 {
		return
	}
	first := leases[rows[0].Lane : rows[0].Lane+1]
	settled = b.settle(ctx, t, driver.Settlement{Leases: first, Done: results(rows), History: true})
	wantMoved(t, settled, evs[0].ID)
	b.wantReady(ctx, t, evs[1])
	// The fence of the row's actual lane protects it, not the fence of the lane
	// that the result names.
	wrong := result(rows[1])
	wrong.Lane = rows[0].Lane
	for kind := range 3 {
		wantMoved(t, b.settle(ctx, t, settlement(kind, first, wrong)))
		b.wantReady(ctx, t, evs[1])
	}
}
