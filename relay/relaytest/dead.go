package relaytest

import (
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/admin"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
)

// deadChecks are the checks of dead letters, blocked aggregates and purges.
func deadChecks[T any]() []check[T] {
	return []check[T]{
		{name: "purge", run: purge[T]},
		{name: "dead_letters", run: deadLetters[T]},
		{name: "replay_in_order", run: replayInOrder[T]},
		{name: "replay_behind_an_event_in_flight", run: replayBehind[T]},
		{name: "replay_more_than_a_page", run: replayMany[T]},
		{name: "replay_by_filter", run: replayByFilter[T]},
		{name: "block_replay", run: func(b *env[T]) { blocked(b, replayIt) }},
		{name: "block_discard", run: func(b *env[T]) { blocked(b, discardIt) }},
		{name: "block_unblock", run: func(b *env[T]) { blocked(b, unblockIt) }},
		{name: "many_successors", run: manySuccessors[T]},
		{name: "many_of_one_aggregate", run: manyOfOne[T]},
	}
}

// purge: a purge never deletes pending events, and works in bounded batches.
func purge[T any](b *env[T]) {
	r := &recorder{answer: func(d waybill.Delivery) error {
		switch d.AggregateID {
		case "dead":
			return waybill.Permanent(errBoom)
		case "failing":
			return errBoom
		}
		return nil
	}}
	cfg := b.quick()
	cfg.BackoffBase, cfg.BackoffMax = time.Hour, time.Hour
	var done []waybill.Event
	for i := range 25 {
		done = append(done, event(fmt.Sprint("a", i), i))
	}
	dead := event("dead", 0)
	pending := []waybill.Event{event("failing", 0), event("failing", 1), event("later", 0)}
	pending[2].Delay = time.Hour
	run := b.start(r.sink(), cfg)
	b.write(slices.Concat(done, pending, []waybill.Event{dead})...)
	b.await("settled", func() bool {
		s := b.stats()
		return s.Dead == 1 && s.Failed == 1 && s.Ready == 1 && r.count() == len(done)+2
	})
	if err := run.stop(); err != nil {
		b.Fatal(err)
	}
	p, err := b.ops.Purger(admin.Retention{History: time.Microsecond, Dead: time.Microsecond, PurgeBatchSize: 10})
	if err != nil {
		b.Fatal(err)
	}
	var calls []admin.Purged
	got, err := p.Once(b.Context(), func(p admin.Purged) { calls = append(calls, p) })
	if err != nil {
		b.Fatal(err)
	}
	if got.Delivered != len(done) || got.Dead != 1 {
		b.Errorf("purged %+v, want %d delivered and 1 dead", got, len(done))
	}
	if len(calls) < 3 || calls[0].Delivered != 10 {
		b.Errorf("batches %+v, want 10 at a time", calls)
	}
	for _, ev := range pending {
		if s := b.state(ev.ID); s != "delayed" && s != "ready" {
			b.Errorf("a pending event is %s after the purge", s)
		}
	}
	if again, err := p.Once(b.Context(), nil); err != nil || again != (admin.Purged{}) {
		b.Errorf("a second purge: %+v, %v", again, err)
	}
}

// deadLetters: list and count with filters, oldest first; a replay keeps the
// id, resets the attempts, and does nothing the second time.
func deadLetters[T any](b *env[T]) {
	var healed atomic.Bool
	r := &recorder{answer: func(d waybill.Delivery) error {
		if healed.Load() {
			return nil
		}
		return waybill.Permanent(fmt.Errorf("bad %s", d.Payload))
	}}
	b.start(r.sink(), b.quick())
	evs := []waybill.Event{event("a", 0), event("b", 1), event("a", 2), event("", 3)}
	evs[1].Type = "Other"
	b.write(evs...)
	b.await("all are dead", func() bool { return b.stats().Dead == 4 })
	page, err := b.ops.List(b.Context(), store.Dead, store.Filter{Type: "Tested"}, 0, 2)
	if err != nil {
		b.Fatal(err)
	}
	if len(page.Records) != 2 || page.Records[0].ID != evs[0].ID || page.Records[1].ID != evs[2].ID || page.Next == 0 {
		b.Errorf("the first page is wrong: %+v", page)
	}
	if page.Records[0].LastError != "bad 0" {
		b.Errorf("its error is %q", page.Records[0].LastError)
	}
	page, err = b.ops.List(b.Context(), store.Dead, store.Filter{Type: "Tested"}, page.Next, 2)
	if err != nil || len(page.Records) != 1 || page.Records[0].ID != evs[3].ID || page.Next != 0 {
		b.Errorf("the second page is wrong: %+v, %v", page, err)
	}
	n, err := b.ops.Count(b.Context(), store.Dead, store.Filter{AggregateType: "thing", AggregateID: "a"})
	if err != nil || n != 2 {
		b.Errorf("%d dead of aggregate a (%v), want 2", n, err)
	}
	healed.Store(true)
	got, err := b.ops.Replay(b.Context(), evs[0].ID)
	if err != nil || len(got.IDs) != 1 {
		b.Fatalf("replay: %+v, %v", got, err)
	}
	if again, err := b.ops.Replay(b.Context(), evs[0].ID); err != nil || len(again.IDs) != 0 {
		b.Errorf("replaying twice: %+v, %v", again, err)
	}
	b.await("it is delivered", func() bool { return b.state(evs[0].ID) == "delivered" })
	ds := r.of(evs[0].ID)
	if len(ds) != 2 || ds[1].Attempt != 1 || ds[1].Replay != 1 {
		b.Errorf("deliveries %d; the last has attempt %d and replay %d", len(ds), ds[len(ds)-1].Attempt, ds[len(ds)-1].Replay)
	}
	gone, err := b.ops.Discard(b.Context(), evs[1].ID, evs[1].ID, waybill.NewID())
	if err != nil || len(gone) != 1 {
		b.Errorf("discard: %v, %v", gone, err)
	}
	if s := b.state(evs[1].ID); s != "nowhere" {
		b.Errorf("what was discarded is %s", s)
	}
	j, err := b.ops.Journey(b.Context(), evs[0].ID)
	if err != nil || len(j.Steps) < 3 || j.Steps[len(j.Steps)-1].What != "delivered" {
		b.Errorf("its journey: %+v, %v", j.Steps, err)
	}
}

// replayInOrder: replayed events of one aggregate are delivered one at a time,
// in their order, and hold the others back.
func replayInOrder[T any](b *env[T]) {
	var healed atomic.Bool
	r := &recorder{answer: func(waybill.Delivery) error {
		if healed.Load() {
			return nil
		}
		return waybill.Permanent(errBoom)
	}}
	run := b.start(r.sink(), b.quick())
	var evs []waybill.Event
	for i := range 30 {
		evs = append(evs, event("a", i))
	}
	b.write(evs...)
	b.await("all are dead", func() bool { return b.stats().Dead == 30 })
	if err := run.stop(); err != nil {
		b.Fatal(err)
	}
	healed.Store(true)
	// The later half is replayed first.
	for _, half := range [][]waybill.Event{evs[15:], evs[:15]} {
		var ids []waybill.ID
		for _, ev := range half {
			ids = append(ids, ev.ID)
		}
		if got, err := b.ops.Replay(b.Context(), ids...); err != nil || len(got.IDs) != 15 {
			b.Fatalf("replay: %+v, %v", got, err)
		}
	}
	b.write(event("a", 30))
	r2 := &recorder{}
	b.start(r2.sink(), b.quick())
	b.awaitEmpty()
	if got := r2.payloads("a"); !slices.Equal(got, numbers(31)) {
		b.Errorf("delivered %v", got)
	}
}

// replayBehind: a dead letter is replayed while the next event of its aggregate
// is with the sink, which then rejects that event. The replayed event is
// delivered, and then the other.
func replayBehind[T any](b *env[T]) {
	g := newGate()
	inner := g.answer
	evs := []waybill.Event{event("a", 0), event("a", 1)}
	g.answer = func(d waybill.Delivery) error {
		switch {
		case d.ID == evs[0].ID && d.Replay == 0:
			return waybill.Permanent(errBoom)
		case d.ID == evs[1].ID && d.Attempt == 1:
			_ = inner(d)
			return errBoom
		}
		return nil
	}
	var due atomic.Int64
	cfg := b.quick()
	cfg.BackoffBase, cfg.BackoffMax = 200*time.Millisecond, 200*time.Millisecond
	cfg.Observe.Read = func(info observe.ReadInfo) {
		if info.Kind == "due" && info.Rows > 0 {
			due.Add(1)
		}
	}
	b.start(g.sink(), cfg)
	b.write(evs[0])
	b.await("it is dead", func() bool { return b.state(evs[0].ID) == "dead" })
	b.write(evs[1])
	b.await("the next is with the sink", func() bool { return len(g.of(evs[1].ID)) == 1 })
	if _, err := b.ops.Replay(b.Context(), evs[0].ID); err != nil {
		b.Fatal(err)
	}
	b.await("the relay has read what was replayed, and has dealt with it", func() bool { return due.Load() >= 2 })
	g.let(1)
	b.awaitEmpty()
	if got := g.payloads("a"); !slices.Equal(got, []string{"0", "1", "0", "1"}) {
		b.Errorf("delivered %v", got)
	}
}

// replayMany: more dead letters of one aggregate are replayed than a read
// returns; they are delivered in their order, each after the one before it.
func replayMany[T any](b *env[T]) {
	const many = 240
	var healed atomic.Bool
	r := &recorder{answer: func(waybill.Delivery) error {
		if healed.Load() {
			return nil
		}
		return waybill.Permanent(errBoom)
	}}
	cfg := b.quick()
	cfg.BatchSize = 20
	b.start(r.sink(), cfg)
	var evs []waybill.Event
	var ids []waybill.ID
	for i := range many {
		evs = append(evs, event("a", i))
		ids = append(ids, evs[i].ID)
	}
	b.write(evs...)
	b.await("all are dead", func() bool { return b.stats().Dead == many })
	healed.Store(true)
	if got, err := b.ops.Replay(b.Context(), ids...); err != nil || len(got.IDs) != many {
		b.Fatalf("%d were replayed, %v", len(got.IDs), err)
	}
	b.awaitEmpty()
	if got := r.payloads("a"); !slices.Equal(got[many:], numbers(many)) {
		b.Errorf("delivered %v", got[many:])
	}
}

// replayByFilter: a replay by filter works in batches and reports progress.
func replayByFilter[T any](b *env[T]) {
	var healed atomic.Bool
	r := &recorder{answer: func(waybill.Delivery) error {
		if healed.Load() {
			return nil
		}
		return waybill.Permanent(errBoom)
	}}
	b.start(r.sink(), b.quick())
	var evs []waybill.Event
	for i := range 45 {
		ev := event(fmt.Sprint("a", i), i)
		if i >= 35 {
			ev.Type = "Other"
		}
		evs = append(evs, ev)
	}
	b.write(evs...)
	b.await("all are dead", func() bool { return b.stats().Dead == 45 })
	healed.Store(true)
	ops, err := admin.NewOutbox(b.DB, admin.Config{BatchSize: 10})
	if err != nil {
		b.Fatal(err)
	}
	var progress []admin.Progress
	got, err := ops.ReplayAll(b.Context(), store.Filter{Type: "Tested"}, admin.DeadLetterOptions{Progress: func(p admin.Progress) { progress = append(progress, p) }})
	if err != nil || len(got.IDs) != 35 {
		b.Fatalf("%d were replayed (%v), want 35", len(got.IDs), err)
	}
	if len(progress) != 4 || progress[0] != (admin.Progress{Done: 10, Total: 35}) || progress[3].Done != 35 {
		b.Errorf("progress: %+v", progress)
	}
	b.awaitEmpty()
	if s := b.stats(); s.Dead != 10 {
		b.Errorf("%d are dead, want 10", s.Dead)
	}
	if gone, err := ops.DiscardAll(b.Context(), store.Filter{}, admin.DeadLetterOptions{}); err != nil || len(gone) != 10 {
		b.Errorf("%d were discarded (%v), want 10", len(gone), err)
	}
}

// action is how an operator resolves a blocked aggregate.
type action int

const (
	replayIt action = iota
	discardIt
	unblockIt
)

// blocked: under Block, successors wait, also after a take-over, until the dead
// letter is replayed, discarded or unblocked.
func blocked[T any](b *env[T], how action) {
	var healed atomic.Bool
	r := &recorder{answer: func(d waybill.Delivery) error {
		if string(d.Payload) == "0" && !healed.Load() {
			return waybill.Permanent(errBoom)
		}
		return nil
	}}
	cfg := b.quick()
	cfg.OnDead = relay.Block
	evs := []waybill.Event{event("a", 0), event("a", 1), event("a", 2)}
	other := event("b", 9)
	run := b.start(r.sink(), cfg)
	b.write(append(evs, other)...)
	b.await("the dead one and the other are settled", func() bool { return b.state(evs[0].ID) == "dead" && b.state(other.ID) == "delivered" })
	if err := run.stop(); err != nil {
		b.Fatal(err)
	}
	// Another node takes over.
	b.startOn(b.second().Relay, r.sink(), cfg)
	other = event("b", 10)
	late := event("a", 3)
	b.write(other, late)
	b.await("others continue", func() bool { return b.state(other.ID) == "delivered" })
	if n := len(r.payloads("a")); n != 1 {
		b.Errorf("%d deliveries of the blocked aggregate, want 1", n)
	}
	list, err := b.ops.Blocked(b.Context(), 10)
	if err != nil || len(list) != 1 || list[0].By.ID != evs[0].ID || list[0].Waiting != 3 {
		b.Errorf("blocked: %+v, %v", list, err)
	}
	j, err := b.ops.Journey(b.Context(), evs[1].ID)
	if err != nil || j.Behind == nil || j.Behind.ID != evs[0].ID {
		b.Errorf("the journey of a successor does not name what it waits for: %+v, %v", j.Behind, err)
	}
	healed.Store(true)
	want := "[0 1 2 3]"
	switch how {
	case replayIt:
		_, err = b.ops.Replay(b.Context(), evs[0].ID)
		want = "[0 0 1 2 3]"
	case discardIt:
		_, err = b.ops.Discard(b.Context(), evs[0].ID)
	case unblockIt:
		_, err = b.ops.Unblock(b.Context(), evs[0].ID)
	}
	if err != nil {
		b.Fatal(err)
	}
	b.awaitEmpty()
	if got := fmt.Sprint(r.payloads("a")); got != want {
		b.Errorf("aggregate a: %s, want %s", got, want)
	}
}

// manySuccessors: one aggregate fails with many successors behind it; all other
// events are delivered meanwhile, and afterwards the successors are, in order.
// (The benchmark measures how fast.)
func manySuccessors[T any](b *env[T]) {
	successors, others := 3000, 600
	var healed atomic.Bool
	r := &recorder{answer: func(d waybill.Delivery) error {
		if d.AggregateID == "bad" && !healed.Load() {
			return errBoom
		}
		return nil
	}}
	cfg := b.quick()
	cfg.MaxAttempts = -1
	var all []waybill.Event
	for i := range successors {
		all = append(all, event("bad", i))
		if i%(successors/others) == 0 {
			all = append(all, event(fmt.Sprint("a", i%40), i))
		}
	}
	b.write(all[:len(all)/2]...)
	b.start(r.sink(), cfg)
	b.write(all[len(all)/2:]...)
	b.await("the others", func() bool { return r.count()-len(r.payloads("bad")) == others })
	for _, d := range r.all() {
		if d.AggregateID == "bad" && string(d.Payload) != "0" {
			b.Fatalf("event %s of the held aggregate was delivered", d.Payload)
		}
	}
	healed.Store(true)
	b.awaitEmpty()
	b.wantOrder(r.all())
	first := make(map[waybill.ID]bool)
	for _, d := range r.all() {
		first[d.ID] = true
	}
	if len(first) != len(all) {
		b.Errorf("%d events were delivered, want %d", len(first), len(all))
	}
}

// manyOfOne: many events of one slow aggregate leave room for the other events
// of its lane.
func manyOfOne[T any](b *env[T]) {
	g := newGate()
	inner := g.answer
	g.answer = func(d waybill.Delivery) error {
		if d.AggregateID == "slow" {
			return inner(d)
		}
		return nil
	}
	var evs []waybill.Event
	for i := range 2000 {
		evs = append(evs, event("slow", i))
	}
	for i := range 200 {
		evs = append(evs, event(fmt.Sprint("a", i%50), i))
	}
	b.write(evs...)
	b.start(g.sink(), b.quick())
	b.await("the others", func() bool { return g.count()-len(g.payloads("slow")) == 200 })
	g.let(2000)
	b.awaitEmpty()
	b.wantOnce(g.recorder, evs)
	b.wantOrder(g.all())
}
