package inboxtest

import (
	"context"
	"errors"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

func sinkChecks[T any]() []check[T] {
	return []check[T]{
		{name: "settles_with_the_effect", run: settlesWithEffect[T]},
		{name: "all_or_nothing", run: allOrNothing[T]},
		{name: "relayed", run: relayed[T]},
		{name: "bus_settles_when_all_have_it", run: busSettles[T]},
		{name: "bus", run: bus[T]},
		{name: "no_handler", run: noHandler[T]},
	}
}

// deliveries writes events and returns them as a relay that owns all lanes
// would read them.
func (b *env[T]) deliveries(n int) []waybill.Delivery {
	b.Helper()
	ctx := context.Background()
	var evs []waybill.Event
	for i := range n {
		evs = append(evs, event(i))
	}
	if err := b.box.InTx(ctx, func(ctx context.Context, tx T) error { return b.box.Write(ctx, tx, evs...) }); err != nil {
		b.Fatal(err)
	}
	stats, err := b.DB.OutboxAdmin.Stats(ctx)
	if err != nil {
		b.Fatal(err)
	}
	var lanes []int
	var from []driver.Cursor
	for i := range stats.Lanes {
		lanes = append(lanes, i)
		from = append(from, driver.Cursor{Lane: i})
	}
	node := store.Node{ID: waybill.NewID(), Relay: "r"}
	if _, err := b.DB.Relay.Heartbeat(ctx, node, time.Hour); err != nil {
		b.Fatal(err)
	}
	leases, err := b.DB.Relay.Acquire(ctx, node, lanes, 10)
	if err != nil {
		b.Fatal(err)
	}
	page, err := b.DB.Relay.Fetch(ctx, from, 100)
	if err != nil || len(page.Rows) != n {
		b.Fatal(page, err)
	}
	var out []waybill.Delivery
	for _, row := range page.Rows {
		for _, l := range leases {
			if l.Lane == row.Lane {
				p := waybill.Position{Lane: row.Lane, Epoch: l.Epoch, Seq: row.Seq}
				out = append(out, waybill.Delivery{
					Event: row.Event, Attempt: 1, Position: p, Claim: &driver.Claim{Token: l.Token, History: true, Source: b.DB.Outbox.Local()},
				})
			}
		}
	}
	return out
}

func (b *env[T]) state(id waybill.ID) string {
	b.Helper()
	recs, err := b.DB.OutboxAdmin.Find(context.Background(), id)
	if err != nil || len(recs) != 1 {
		b.Fatalf("the event: %v, %v", recs, err)
	}
	return recs[0].State.String()
}

// settlesWithEffect: outbox row, effect and record are one transaction, for a
// batch as for one event.
func settlesWithEffect[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	g.Handle("", "Happened", b.apply("sink"))
	ds := b.deliveries(5)
	again := ds[4]
	again.Attempt = 2 // in its own transaction, attempt recorded
	for _, part := range [][]waybill.Delivery{ds[:1], ds[1:4], {again}} {
		for _, err := range g.Deliver(context.Background(), part) {
			if !errors.Is(err, waybill.ErrSettled) {
				b.Errorf("Deliver: %v, want ErrSettled", err)
			}
		}
	}
	for _, d := range ds {
		if s := b.state(d.ID); s != "delivered" {
			b.Errorf("the event is %s", s)
		}
	}
	b.wantEffects("sink", 5)
	// A repeated delivery has no effect, and the relay settles it.
	for _, err := range g.Deliver(context.Background(), ds[:2]) {
		if err != nil {
			b.Errorf("Deliver again: %v", err)
		}
	}
	b.wantEffects("sink", 5)
}

// allOrNothing: if the lane is lost between effect and settlement, there is no
// effect, no record and no settlement.
func allOrNothing[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	g.Handle("", "Happened", b.apply("lost"))
	ds := b.deliveries(3)
	for i := range ds {
		p := ds[i].Position
		p.Epoch-- // as if another node had taken the lane over
		ds[i].Position, ds[i].Claim = p, &driver.Claim{Token: driver.ClaimOf(&ds[i]).Token, Source: b.DB.Outbox.Local()}
	}
	for _, part := range [][]waybill.Delivery{ds[:1], ds} {
		for _, err := range g.Deliver(context.Background(), part) {
			b.wantError(err, waybill.ErrLeaseLost, waybill.ClassDefer)
		}
	}
	for _, d := range ds {
		if s := b.state(d.ID); s != "ready" {
			b.Errorf("the event is %s", s)
		}
		b.wantNone(g, d.Event)
	}
	b.wantEffects("lost", 0)
}

// relayed: a relay feeds the group, and some events fail at first. Every event
// is applied once, and the relay counts no attempt.
func relayed[T any](b *env[T]) {
	o := eager
	g := b.in.MustGroup("G", o)
	var failures atomic.Int64
	g.Handle("", "Happened", func(ctx context.Context, tx T, _ waybill.Event) error {
		if d, _ := waybill.DeliveryFrom(ctx); d.Attempt > 1 {
			b.Errorf("the relay counted attempt %d", d.Attempt)
		}
		if err := b.effect(ctx, tx, "relayed"); err != nil {
			return err
		}
		if failures.Add(1) <= 5 {
			return errNo
		}
		return nil
	})
	// kept ready so that they can be counted
	g.Handle("effect", "Effect", func(context.Context, T, waybill.Event) error { return waybill.Unavailable(errNo) })
	r, err := relay.New(b.DB, g, relay.Config{BackoffBase: time.Millisecond, PollInterval: 20 * time.Millisecond})
	if err != nil {
		b.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	var evs []waybill.Event
	for i := range 40 {
		evs = append(evs, event(i))
	}
	for part := range 4 {
		if err := b.box.InTx(ctx, func(ctx context.Context, tx T) error { return b.box.Write(ctx, tx, evs[10*part:10*part+10]...) }); err != nil {
			b.Fatal(err)
		}
	}
	b.await("all are delivered", func() bool {
		n, err := b.DB.OutboxAdmin.Count(ctx, store.Delivered, store.Filter{Type: "Happened"})
		return err == nil && n == 40
	})
	cancel()
	if err := <-done; err != nil {
		b.Error(err)
	}
	b.wantEffects("relayed", 40)
	for _, ev := range evs {
		if rec := b.record(g, ev); rec.State != store.InboxSucceeded {
			b.Errorf("the record is %+v", rec)
		}
	}
}

// busSettles: an event that two groups handle is settled by the relay after
// both have applied it.
func busSettles[T any](b *env[T]) {
	one, two := b.in.MustGroup("one", inbox.Options{}), b.in.MustGroup("two", inbox.Options{})
	one.Handle("", "Happened", b.apply("one"))
	two.Handle("", "Happened", b.failing("two", errNo))
	ds := b.deliveries(3)
	for _, err := range inbox.NewBus(one, two).Deliver(context.Background(), ds) {
		b.wantError(err, errNo, waybill.ClassDefer)
	}
	for _, d := range ds {
		if s := b.state(d.ID); s != "ready" {
			b.Errorf("the event is %s, and one group does not have it", s)
		}
	}
	b.wantEffects("one", 3)
	b.wantEffects("two", 0)
}

// bus: every group that handles an event gets it; a failing group does not stop
// the others, and is the only one that gets the event again.
func bus[T any](b *env[T]) {
	one, two := b.in.MustGroup("one", eager), b.in.MustGroup("two", eager)
	fail := true
	one.Handle("", "Happened", func(ctx context.Context, tx T, _ waybill.Event) error {
		if err := b.effect(ctx, tx, "one"); err != nil || !fail {
			return err
		}
		return errNo
	})
	two.Handle("", "Happened", b.apply("two"))
	bus := inbox.NewBus(one, two)
	ev := event(1)
	err := bus.Publish(context.Background(), ev)
	b.wantError(err, errNo, waybill.ClassDefer)
	b.wantEffects("one", 0)
	b.wantEffects("two", 1)
	fail = false
	b.await("it is due", func() bool { return bus.Publish(context.Background(), ev) == nil })
	b.wantEffects("one", 1)
	b.wantEffects("two", 1)
	other := event(2)
	other.Type = "Unheard"
	b.wantError(bus.Publish(context.Background(), other), waybill.ErrNoHandler, waybill.ClassPermanent)
}

func noHandler[T any](b *env[T]) {
	g := b.in.MustGroup("G", inbox.Options{})
	ev := event(1)
	for _, err := range g.Deliver(context.Background(), []waybill.Delivery{{Event: ev, Attempt: 1}}) {
		b.wantError(err, waybill.ErrNoHandler, waybill.ClassPermanent)
	}
	b.wantNone(g, ev)
}
