package drivertest

import (
	"context"
	"errors"
	"slices"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// tidyChecks check Tidy.
func tidyChecks[T any]() []check[T] {
	return []check[T]{
		{row: "tidy", name: "tidying loses nothing", fresh: true, run: tidies[T]},
		{row: "tidy", name: "several nodes concurrently", fresh: true, run: tidiesTogether[T]},
	}
}

// keepDays is long enough that the events of a check are in a partition that
// stays.
const keepDays = 48 * time.Hour

func tidies[T any](ctx context.Context, t tb, b *env[T]) {
	evs := []waybill.Event{b.event("a"), b.event("a"), b.event("a"), b.keyed("b", "k"), b.keyed("b", "late"), b.keyed("b", "free")}
	evs[4].Delay = defaultLease
	b.write(ctx, t, evs...)
	witness := b.node(ctx, t, b.DB.Relay)
	leases := b.acquire(ctx, t, b.DB.Relay, witness, b.allLanes()...)
	end := func(kind int, ev waybill.Event) {
		t.Helper()
		b.settle(ctx, t, settlement(kind, leases, result(b.row(ctx, t, ev.ID))))
	}
	end(0, evs[0])
	end(2, evs[1])
	b.expire(ctx, t, b.DB.Relay, b.node(ctx, t, b.DB.Relay), witness)
	for i, age := range []time.Duration{-1, keepDays, keepDays, 365 * 24 * time.Hour, -1} {
		if i == 2 {
			end(0, evs[5]) // after Tidy
		}
		if err := b.DB.OutboxAdmin.Tidy(ctx, age); err != nil {
			t.Fatalf("Tidy(%v): %v", age, err)
		}
		b.wantState(ctx, t, evs[0], store.Delivered)
		b.wantState(ctx, t, evs[1], store.Dead)
		b.wantState(ctx, t, evs[2], store.Ready)
		b.wantState(ctx, t, evs[3], store.Ready)
		b.wantState(ctx, t, evs[4], store.Delayed)
		b.wantCommitted(ctx, t, true, evs...)
	}
	b.wantState(ctx, t, evs[5], store.Delivered)
	b.wantCommitted(ctx, t, false, b.event("a")) // no history was lost
	box := b.box(t)
	next := b.keyed("b", "free")
	wantReceipts(t, receipts(ctx, t, box, b.keyed("a", "k"), b.keyed("a", "late"), next), duplicateOf(evs[3]), duplicateOf(evs[4]), written(next))
	// The relay continues.
	if m := b.beat(ctx, t, b.DB.Relay, witness, defaultLease); !slices.Equal(m.Nodes, []store.Node{witness}) {
		t.Errorf("after Tidy the nodes are %v, want %v", m.Nodes, witness)
	}
	b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(b.ready(ctx, t)), History: true})
	b.wantReady(ctx, t)
}

// tidiesTogether runs Tidy on several nodes while events are written and
// delivered.
func tidiesTogether[T any](ctx context.Context, t tb, b *env[T]) {
	evs := b.events(20, "a")
	leases := b.own(ctx, t)
	var wg sync.WaitGroup
	defer wg.Wait() // no report to a finished test
	for _, db := range []driver.Roles[T]{b.DB, b.second(), b.DB} {
		wg.Go(func() {
			for range 3 {
				if err := db.OutboxAdmin.Tidy(ctx, keepDays); err != nil {
					t.Errorf("Tidy: %v", err)
				}
			}
		})
	}
	for _, ev := range evs {
		b.write(ctx, t, ev)
		b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(b.ready(ctx, t)), History: true})
	}
	wg.Wait()
	for _, ev := range evs {
		b.wantState(ctx, t, ev, store.Delivered)
	}
}

// setLanesChecks check SetLanes.
func setLanesChecks[T any]() []check[T] {
	return []check[T]{
		{row: "set_lanes", name: "rows move to their new lane", fresh: true, run: setsLanes[T]},
		{row: "set_lanes", name: "epochs rise", fresh: true, run: setLanesEpochs[T]},
		{row: "set_lanes", name: "not while a relay is live", fresh: true, run: setLanesRefused[T]},
		{row: "set_lanes", name: "invalid numbers", run: setLanesBounds[T]},
	}
}

// numbers are the numbers of lanes that a store gets, one after another.
func (b *env[T]) numbers() []int {
	if b.features.OneLane {
		return []int{1, 1}
	}
	return []int{b.lanes + 3, 1, 5, b.lanes}
}

func (b *env[T]) setLanes(ctx context.Context, t tb, n int) {
	t.Helper()
	if err := b.DB.OutboxAdmin.SetLanes(ctx, n); err != nil {
		t.Fatalf("SetLanes(%d): %v", n, err)
	}
	b.lanes = n
}

func setsLanes[T any](ctx context.Context, t tb, b *env[T]) {
	var evs []waybill.Event
	for i := range 30 {
		ev := b.event([]string{"a", "b", "c", "d", ""}[i%5])
		if i%2 == 0 {
			ev.TenantID = "tenant"
		}
		evs = append(evs, ev)
	}
	rows := b.writeRows(ctx, t, evs...)
	s := driver.Settlement{Leases: b.own(ctx, t), History: true, Done: results(rows[:2])}
	for i, row := range rows[2:12] {
		r := result(row)
		r.Holds = row.Event.Ordered()
		if i%2 == 0 {
			s.Retry = append(s.Retry, r)
		} else {
			s.Dead = append(s.Dead, r)
		}
	}
	b.settle(ctx, t, s)
	b.end()
	ready := evs[12:]
	for _, n := range b.numbers() {
		b.setLanes(ctx, t, n)
		got := b.wantReady(ctx, t, ready...)
		for _, row := range append(got, b.due(ctx, t).Rows...) {
			b.wantLane(t, row)
		}
		for i, row := range rows[2:12] {
			state := []store.State{store.Delayed, store.Dead}[i%2]
			rec := b.wantState(ctx, t, evs[i+2], state)
			b.wantLane(t, rec.Row)
			if rec.Seq != row.Seq || rec.Holds != row.Event.Ordered() {
				t.Errorf("with %d lanes the row is %+v; it was %+v", n, rec.Row, row)
			}
		}
		if len(b.due(ctx, t).Rows) != 5 {
			t.Errorf("with %d lanes %d rows are due, want 5", n, len(b.due(ctx, t).Rows))
		}
		// New events go there too.
		more := []waybill.Event{b.event("a"), b.event("z"), b.event("")}
		b.write(ctx, t, more...)
		ready = append(ready, more...)
		for _, row := range b.wantReady(ctx, t, ready...) {
			b.wantLane(t, row)
		}
		b.wantPlainLane(ctx, t, &ready)
	}
	leases := b.own(ctx, t)
	last := append(b.ready(ctx, t), b.due(ctx, t).Rows...)
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: leases, Done: results(last), History: true}), rowIDs(last)...)
}

// wantLane asserts that a row is in an allowed lane.
func (b *env[T]) wantLane(t tb, r row) {
	t.Helper()
	if r.Event.Ordered() && r.Lane != b.laneOf(r.Event) || r.Lane < 0 || r.Lane >= b.lanes {
		t.Errorf("with %d lanes event %s of %+v is in lane %d, want %d", b.lanes, r.ID, driver.AggregateOf(&r.Event), r.Lane, b.laneOf(r.Event))
	}
}

// wantPlainLane inserts with plain SQL, if possible: the database must use the
// number of lanes too.
func (b *env[T]) wantPlainLane(ctx context.Context, t tb, ready *[]waybill.Event) {
	t.Helper()
	if !b.features.PlainSQL {
		return
	}
	known := b.ready(ctx, t)
	for range 3 {
		p := Plain{Type: "plain", AggregateType: "thing", AggregateID: b.event("plain").ID.String(), Payload: []byte("{}")}
		if err := b.InsertPlain(ctx, p); err != nil {
			t.Fatalf("InsertPlain: %v", err)
		}
	}
	for _, row := range b.ready(ctx, t) {
		if _, old := find(known, row.ID); !old {
			b.wantLane(t, row)
			*ready = append(*ready, row.Event)
		}
	}
}

// setLanesEpochs raises the epochs of lanes, removes the lanes, and adds them
// again: no old lease is valid any more.
func setLanesEpochs[T any](ctx context.Context, t tb, b *env[T]) {
	ev := b.event("a")
	b.write(ctx, t, ev)
	highest := map[int]int64{}
	var stale []driver.Lease
	for round, n := range append(b.numbers(), b.numbers()...) {
		// The last lane changes its owner most often in round 0.
		hands := 1 + 6/(round+1)
		for lane := b.lanes - 1; lane >= 0; lane -= max(b.lanes-1, 1) {
			for range hands {
				stale = append(stale, b.acquire(ctx, t, b.DB.Relay, b.node(ctx, t, b.DB.Relay), lane)...)
				b.end()
			}
			hands = 1
		}
		for _, l := range stale {
			highest[l.Lane] = max(highest[l.Lane], l.Epoch)
		}
		b.setLanes(ctx, t, n)
		m := b.stats(ctx, t).Membership
		if len(m.Lanes) != n {
			t.Fatalf("SetLanes(%d) gave %d lanes", n, len(m.Lanes))
		}
		for i, l := range m.Lanes {
			if l.Lane != i || !l.Owner.IsZero() || l.Live || l.Epoch <= highest[i] {
				t.Errorf("round %d: lane %d is %+v; it has had the epoch %d", round, i, l, highest[i])
			}
		}
		for _, l := range stale {
			settled, err := b.DB.Relay.Settle(ctx, driver.Settlement{Leases: []driver.Lease{l}, Done: []driver.Result{{Lane: l.Lane, ID: ev.ID}}, History: true})
			if err != nil || len(settled.Held)+len(settled.Moved) > 0 {
				t.Errorf("round %d: a lease from before settled %+v, %v", round, settled, err)
			}
		}
		b.wantReady(ctx, t, ev)
	}
}

func setLanesRefused[T any](ctx context.Context, t tb, b *env[T]) {
	ev := b.event("a")
	row := b.writeRows(ctx, t, ev)[0]
	n := b.node(ctx, t, b.second().Relay)
	lease := b.acquire(ctx, t, b.second().Relay, n, row.Lane)[0]
	number := b.numbers()[0]
	if err := b.DB.OutboxAdmin.SetLanes(ctx, number); !errors.Is(err, store.ErrRelayLive) {
		t.Errorf("SetLanes beside a live relay returned %v, want ErrRelayLive", err)
	}
	if m := b.beat(ctx, t, b.DB.Relay, n, defaultLease); len(m.Lanes) != b.lanes || m.Lanes[lease.Lane].Epoch != lease.Epoch {
		t.Errorf("refused, SetLanes changed the lanes: %+v", m.Lanes)
	}
	wantMoved(t, b.settle(ctx, t, driver.Settlement{Leases: []driver.Lease{lease}, Done: []driver.Result{result(row)}, History: true}), ev.ID)
	b.end()
	b.setLanes(ctx, t, number)
}

func setLanesBounds[T any](ctx context.Context, t tb, b *env[T]) {
	wrong := []int{0, -1, 1025, 1 << 20}
	if b.features.OneLane {
		wrong = append(wrong, 2, 32)
	}
	before := b.stats(ctx, t)
	for _, n := range wrong {
		if err := b.DB.OutboxAdmin.SetLanes(ctx, n); err == nil || errors.Is(err, store.ErrRelayLive) {
			t.Errorf("SetLanes(%d) returned %v", n, err)
		}
	}
	if after := b.stats(ctx, t); !slices.Equal(after.Lanes, before.Lanes) {
		t.Errorf("SetLanes with impossible numbers changed the lanes")
	}
}
