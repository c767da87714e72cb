package relaytest

import (
	"context"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/drivertest"
)

// lateChecks are the checks of rows that appear below the read position.
func lateChecks[T any]() []check[T] {
	late := func(f drivertest.Features) bool { return f.LateCommits }
	return []check[T]{
		{name: "late_commit", run: lateCommit[T], needs: late, why: "no row can appear below one that was read"},
		{name: "many_late_commits", run: manyLateCommits[T], needs: late, why: "no row can appear below one that was read"},
		{name: "late_commit_of_a_held_aggregate", run: lateOfHeld[T], needs: late, why: "no row can appear below one that was read"},
		{name: "settled_while_reading", run: settledWhileReading[T]},
		{name: "plain_sql", run: plainSQL[T], needs: func(f drivertest.Features) bool { return f.PlainSQL }, why: "it has no SQL"},
	}
}

// lateCommit: a transaction that drew its seq early and commits late still has
// its event delivered, also when its row is far below the read position.
func lateCommit[T any](b *env[T]) {
	g := newGate()
	inner := g.answer
	g.answer = func(d waybill.Delivery) error {
		if d.AggregateID == "stuck" {
			return inner(d)
		}
		return nil
	}
	r := g.recorder
	b.start(r.sink(), b.quick())
	// One event is in flight all the time: an idle relay reads from the
	// beginning anyway.
	stuck := event("stuck", 0)
	b.write(stuck)
	b.await("it is with the sink", func() bool { return r.count() == 1 })
	foreign, err := b.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer foreign.Rollback() //nolint:errcheck // harmless after the commit
	late := []waybill.Event{event("l", 0), event("l", 1), event("", 2)}
	if err := b.box.Write(b.Context(), foreign.Tx, late...); err != nil {
		b.Fatal(err)
	}
	var evs []waybill.Event
	// Some rows in every lane move the read position past the late rows.
	for i := range 400 {
		evs = append(evs, event(fmt.Sprint("a", i), i))
	}
	b.write(evs...)
	b.await("the others", func() bool { return r.count() == 1+len(evs) })
	// Wait until no row is recent any more, so that only a sweep can find the
	// late rows.
	began := time.Now()
	b.await("two seconds have passed", func() bool { return time.Since(began) > 2200*time.Millisecond })
	more := event("a0", 1000)
	b.write(more)
	b.await("one more", func() bool { return len(r.of(more.ID)) == 1 })
	if err := foreign.Commit(); err != nil {
		b.Fatal(err)
	}
	b.await("the late ones", func() bool { return len(r.of(late[0].ID))+len(r.of(late[1].ID))+len(r.of(late[2].ID)) == 3 })
	g.let(1)
	b.awaitEmpty()
	b.wantOnce(r, append(append(evs, late...), more, stuck))
	b.wantOrder(r.all())
}

// lateOfHeld: while a dead letter holds an aggregate, a transaction that was
// open for longer than the horizon waits commits the aggregate's next event,
// and then another event is written. When the dead letter is replayed, all
// events are delivered in their order.
func lateOfHeld[T any](b *env[T]) {
	var healed atomic.Bool
	var sweeps atomic.Int64
	r := &recorder{answer: func(d waybill.Delivery) error {
		if d.AggregateID == "h" && string(d.Payload) == "0" && !healed.Load() {
			return waybill.Permanent(errBoom)
		}
		return nil
	}}
	cfg := b.quick()
	cfg.OnDead = relay.Block
	cfg.Observe = observe.Hooks{Read: func(info observe.ReadInfo) {
		// On a busy machine a slow sweep puts the next one off for long.
		b.reads.Add(1)
		if info.Kind == "sweep" {
			sweeps.Add(1)
		}
	}}
	b.start(r.sink(), cfg)
	evs := []waybill.Event{event("h", 0), event("h", 1), event("h", 2)}
	b.write(evs[0])
	b.await("it is dead", func() bool { return b.state(evs[0].ID) == "dead" })
	foreign, err := b.Begin(b.Context())
	if err != nil {
		b.Fatal(err)
	}
	defer foreign.Rollback() //nolint:errcheck // harmless after the commit
	if err := b.box.Write(b.Context(), foreign.Tx, evs[1]); err != nil {
		b.Fatal(err)
	}
	// Other events are written until the transaction is excluded and the read
	// position has passed its row in every lane.
	began, n := time.Now(), 0
	b.await("the transaction has been open for long", func() bool {
		var some []waybill.Event
		for i := range 100 {
			some = append(some, event(fmt.Sprint("a", i), n))
		}
		b.write(some...)
		n++
		b.await("the others", func() bool { return r.count() == 1+100*n })
		return time.Since(began) > 3200*time.Millisecond
	})
	if err := foreign.Commit(); err != nil {
		b.Fatal(err)
	}
	b.write(evs[2], event("a0", n))
	b.await("one more", func() bool { return r.count() == 2+100*n })
	seen := sweeps.Load() + 4
	b.await("the lanes were swept", func() bool { return sweeps.Load() >= seen })
	healed.Store(true)
	if _, err := b.ops.Replay(b.Context(), evs[0].ID); err != nil {
		b.Fatal(err)
	}
	b.awaitEmpty()
	if got := r.payloads("h"); !slices.Equal(got, []string{"0", "0", "1", "2"}) {
		b.Errorf("delivered %v", got)
	}
	b.wantOrder(r.all())
}

// manyLateCommits: transactions overlap at random; every event is delivered
// once, and in order per aggregate.
func manyLateCommits[T any](b *env[T]) {
	r := &recorder{}
	cfg := b.quick()
	cfg.ColdQueue, cfg.BatchSize = 5, 5 // a backlog: urgent events are read ahead of it
	b.start(r.sink(), cfg)
	const writers, rounds = 6, 25
	done := make(chan []waybill.Event, writers)
	for w := range writers {
		go func() {
			var mine []waybill.Event
			for n := range rounds {
				evs := anyPriority([]waybill.Event{event(fmt.Sprint("w", w), 2*n), event("", n), event(fmt.Sprint("w", w), 2*n+1)})
				err := b.box.InTx(context.Background(), func(ctx context.Context, tx T) error {
					for _, ev := range evs {
						if err := b.box.Write(ctx, tx, ev); err != nil {
							return err
						}
					}
					return nil
				})
				if err != nil {
					b.Errorf("write: %v", err)
				}
				mine = append(mine, evs...)
			}
			done <- mine
		}()
	}
	var evs []waybill.Event
	for range writers {
		evs = append(evs, <-done...)
	}
	b.awaitEmpty()
	b.wantOnce(r, evs)
	b.wantOrder(r.all())
}

// settledWhileReading: a read does not bring back an event that was delivered
// and settled while the read was under way. The relay reads as fast as it can
// while events come and go.
func settledWhileReading[T any](b *env[T]) {
	r := &recorder{}
	cfg := b.quick()
	cfg.Linger, cfg.SweepInterval, cfg.PollInterval = -1, time.Millisecond, time.Millisecond
	cfg.Workers = 8
	reads := 0
	cfg.Observe = observe.Hooks{Read: func(observe.ReadInfo) { reads++ }}
	run := b.start(r.sink(), cfg)
	var evs []waybill.Event
	for i := range 150 {
		some := []waybill.Event{event(fmt.Sprint("a", i%5), i), event("", i)}
		evs = append(evs, some...)
		b.write(some...)
	}
	b.awaitEmpty()
	if err := run.stop(); err != nil {
		b.Fatal(err)
	}
	b.wantOnce(r, evs)
	b.wantOrder(r.all())
	b.Logf("%d reads for %d events", reads, len(evs))
}

// plainSQL: events that another language inserts are delivered, in their order
// among the events that Go writes.
func plainSQL[T any](b *env[T]) {
	r := &recorder{}
	b.start(r.sink(), b.quick())
	for n := range 10 {
		if n%2 == 0 {
			b.write(event("p", n))
			continue
		}
		p := drivertest.Plain{Type: "Tested", AggregateType: "thing", AggregateID: "p", Payload: fmt.Append(nil, n)}
		if err := b.InsertPlain(b.Context(), p); err != nil {
			b.Fatal(err)
		}
	}
	if err := b.InsertPlain(b.Context(), drivertest.Plain{Type: "Tested", Payload: []byte("1")}); err != nil {
		b.Fatal(err)
	}
	b.await("all of them", func() bool { return r.count() == 11 })
	b.wantOrder(r.all())
}
