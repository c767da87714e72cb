package relaytest

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// suspectChecks cover events that may have crashed their owner.
func suspectChecks[T any]() []check[T] {
	return []check[T]{
		{name: "suspects", run: suspects[T]},
		{name: "suspects_counted_together", run: suspectsCountedTogether[T]},
		{name: "suspects_handed_on", run: suspectsHandedOn[T]},
		{name: "suspects_behind_an_outage", run: suspectsBehindOutage[T]},
		{name: "suspects_behind_a_backlog", run: suspectsBehindBacklog[T]},
		{name: "suspects_ahead_of_a_backlog", run: suspectsAhead[T]},
		{name: "suspects_ahead_behind_an_outage", run: suspectsAheadBehindOutage[T]},
	}
}

// suspects: after an owner crashed, the attempts of events that may have been
// in flight are counted before the delivery. An event whose attempts are used
// up by then is dead.
func suspects[T any](b *env[T]) {
	r := &recorder{}
	r.answer = func(d waybill.Delivery) error {
		if d.AggregateID == "a1" {
			return nil // behind the killer, which held them: they cannot have been in flight
		}
		return b.counted(d)
	}
	var evs []waybill.Event
	for i := range 20 {
		name := fmt.Sprint("a", i%4)
		if i%5 == 0 {
			name = ""
		}
		evs = append(evs, event(name, i))
	}
	b.write(evs...)
	killer := evs[1]
	cfg := b.quick()
	cfg.MaxAttempts = 2
	// The killer's attempts have been used up by processes that crashed.
	b.abandonLanes()
	b.spend(killer.ID, 2)
	b.abandonLanes()
	b.start(r.sink(), cfg)
	b.awaitEmpty()
	for _, d := range r.all() {
		if d.Attempt != 1 {
			b.Errorf("event %s was delivered as attempt %d", d.Payload, d.Attempt)
		}
	}
	if row := b.find(killer.ID); row.State != store.Dead || row.Attempts != 2 {
		b.Errorf("the killer is %s with %d attempts", row.State, row.Attempts)
	}
	for _, ev := range evs {
		if ev.ID == killer.ID {
			continue
		}
		if row := b.find(ev.ID); row.State != store.Delivered {
			b.Errorf("event %s is %s: %s", ev.Payload, row.State, row.LastError)
		}
	}
	b.wantOrder(r.all())
	// Events that are written from now on are not suspect.
	fresh := event("a0", 100)
	r.tell(func(d waybill.Delivery) error {
		if row := b.find(d.ID); row.State != store.Ready {
			return errors.New("still suspected")
		}
		return nil
	})
	b.write(fresh)
	b.await("delivered", func() bool { return b.state(fresh.ID) == "delivered" })
	if n := len(r.of(fresh.ID)); n != 1 {
		b.Errorf("%d calls", n)
	}
}

// suspectsCountedTogether: an owner crashed while it tried several suspects,
// whose attempts it had counted together. The next owner tries each of them
// alone, so that only the event that kills its process is counted again.
func suspectsCountedTogether[T any](b *env[T]) {
	var evs []waybill.Event
	for i := range 8 {
		name := ""
		if i%2 == 0 {
			name = fmt.Sprint("a", i)
		}
		evs = append(evs, event(name, i))
	}
	b.write(evs...)
	b.abandonLanes()
	for _, ev := range evs {
		b.spend(ev.ID, 1)
	}
	b.abandonLanes()
	var inFlight atomic.Int64
	r := &recorder{}
	r.answer = func(d waybill.Delivery) error {
		if n := inFlight.Add(1); n != 1 {
			b.Errorf("%d suspects are in flight", n)
		}
		defer inFlight.Add(-1)
		others := 0
		for _, ev := range evs {
			if ev.ID != d.ID && b.find(ev.ID).Attempts > 1 && b.state(ev.ID) != "delivered" {
				others++
			}
		}
		if others > 0 {
			b.Errorf("the attempts of %d other events are counted again", others)
		}
		if err := b.counted(d); err != nil {
			b.Error(err)
		}
		return nil
	}
	b.start(r.sink(), b.quick())
	b.awaitEmpty()
	for _, ev := range evs {
		if ds := r.of(ev.ID); len(ds) != 1 || ds[0].Attempt != 2 {
			b.Errorf("event %s was delivered %d times", ev.Payload, len(ds))
		}
	}
}

// suspectsHandedOn: an owner that releases its lanes before all suspects of a
// crashed owner are settled hands them on as suspects. Otherwise an event that
// kills its process would kill one process after the other, uncounted.
func suspectsHandedOn[T any](b *env[T]) {
	var evs []waybill.Event
	for i := range 6 {
		name := ""
		if i%2 == 0 {
			name = fmt.Sprint("a", i)
		}
		evs = append(evs, event(name, i))
	}
	b.write(evs...)
	b.abandonLanes()
	cfg := b.quick()
	cfg.DrainTimeout = time.Minute
	g := newGate()
	run := b.start(g.sink(), cfg)
	b.await("one is with the sink", func() bool { return g.count() == 1 })
	b.stopWith(run, g, 1)
	r := &recorder{}
	r.answer = b.counted
	b.start(r.sink(), cfg)
	b.awaitEmpty()
	if n := g.count() + len(r.all()); n != len(evs) {
		b.Errorf("%d deliveries of %d events", n, len(evs))
	}
	for _, d := range r.all() {
		if d.Attempt != 1 {
			b.Errorf("event %s was delivered as attempt %d: %s", d.Payload, d.Attempt, b.find(d.ID).LastError)
		}
	}
}

// suspectsBehindOutage: after an owner crashed, suspects are counted before
// their delivery even if the first deliveries met an unavailable destination,
// or a sink that deferred them: otherwise an event that then kills its process
// is never counted.
func suspectsBehindOutage[T any](b *env[T]) {
	var evs []waybill.Event
	for i := range 40 {
		name := ""
		if i%2 == 0 {
			name = fmt.Sprint("a", i)
		}
		evs = append(evs, event(name, i))
	}
	b.write(evs...)
	b.abandonLanes()
	var calls atomic.Int64
	r := &recorder{}
	r.answer = func(d waybill.Delivery) error {
		if err := b.counted(d); err != nil {
			b.Error(err)
		}
		switch n := calls.Add(1); {
		case n < 6:
			return waybill.Unavailable(errBoom)
		case n < 9:
			return waybill.Later(time.Millisecond, errBoom)
		}
		return nil
	}
	b.start(r.sink(), b.quick())
	b.awaitEmpty()
	for _, ev := range evs {
		if row := b.find(ev.ID); row.State != store.Delivered {
			b.Errorf("event %s is %s: %s", ev.Payload, row.State, row.LastError)
		}
	}
}

// suspectsBehindBacklog: a suspect is counted before its delivery even if more
// events than the crashed owner's window are in front of it, for an unavailable
// destination: the owner passed them over.
func suspectsBehindBacklog[T any](b *env[T]) {
	lane := -1
	var evs []waybill.Event
	for i := range 300 {
		ev := event("a", i) // all in one lane
		ev.Type = "down"
		evs = append(evs, ev)
	}
	b.write(evs...)
	lane = b.find(evs[0].ID).Lane
	var killer waybill.Event
	b.await("an event in the same lane", func() bool {
		killer = event("k"+waybill.NewID().String(), 0)
		b.write(killer)
		return b.find(killer.ID).Lane == lane
	})
	b.abandonLanes()
	var healed atomic.Bool
	r := &recorder{}
	sink := &destined{recorder: r}
	r.answer = func(d waybill.Delivery) error {
		switch {
		case d.Type == "down" && !healed.Load():
			return waybill.Unavailable(errBoom)
		case d.ID == killer.ID:
			if err := b.counted(d); err != nil {
				b.Error(err)
			}
		}
		return nil
	}
	b.start(sink, b.quick())
	b.await("it is delivered", func() bool { return b.state(killer.ID) == "delivered" })
	healed.Store(true)
	b.awaitEmpty()
	b.wantOrder(r.all())
	for _, ev := range evs {
		if row := b.find(ev.ID); row.State != store.Delivered {
			b.Fatalf("event %s is %s with %d attempts", ev.Payload, row.State, row.Attempts)
		}
	}
}

// destined is a sink with a destination per event type.
type destined struct{ *recorder }

func (s *destined) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	out := make([]error, len(batch))
	for i, d := range batch {
		out[i] = s.take(d)
	}
	return out
}

func (*destined) Destination(ev *waybill.Event) string { return ev.Type }

// counted returns an error unless the current attempt was counted before the
// delivery.
func (b *env[T]) counted(d waybill.Delivery) error {
	if row := b.find(d.ID); row.Attempts != d.Attempt || row.State != store.Delayed {
		return fmt.Errorf("event %s is delivered with %d attempts in its row, want %d", d.Payload, row.Attempts, d.Attempt)
	}
	return nil
}

// spend counts attempts of an event whose deliveries did not end.
func (b *env[T]) spend(id waybill.ID, attempts int) {
	b.Helper()
	row := b.find(id)
	node := store.Node{ID: waybill.NewID(), Relay: "relay"}
	if _, err := b.DB.Relay.Heartbeat(b.Context(), node, time.Minute); err != nil {
		b.Fatal(err)
	}
	leases, err := b.DB.Relay.Acquire(b.Context(), node, []int{row.Lane}, 64)
	if err != nil {
		b.Fatal(err)
	}
	_, err = b.DB.Relay.Settle(b.Context(), driver.Settlement{
		Leases: leases, Durable: true,
		Retry: []driver.Result{{Lane: row.Lane, ID: id, Attempts: attempts, Holds: true}},
	})
	if err != nil {
		b.Fatal(err)
	}
	if err := b.DB.Relay.Leave(b.Context(), node); err != nil {
		b.Fatal(err)
	}
}

// suspectsAhead: an urgent event of an aggregate that the crashed owner may
// have taken from far behind its window is counted before its delivery,
// although it is taken from there again.
func suspectsAhead[T any](b *env[T]) {
	lanes := len(b.stats().Lanes)
	var evs []waybill.Event
	for i := 0; len(evs) < 600; i++ {
		if ev := event(fmt.Sprint("a", i), 0); driver.LaneOf("", ev.AggregateType, ev.AggregateID, lanes) == 0 {
			evs = append(evs, ev)
		}
	}
	killer := &evs[len(evs)-1]
	killer.Priority = 5
	b.write(evs...)
	b.abandonLanes()
	r := &recorder{}
	r.answer = func(d waybill.Delivery) error {
		if d.ID == killer.ID {
			return b.counted(d)
		}
		return nil
	}
	cfg := b.quick()
	cfg.Workers, cfg.ColdQueue, cfg.BatchSize = 1, 20, 20
	b.start(r.sink(), cfg)
	b.awaitEmpty()
	if n := len(r.of(killer.ID)); n != 1 {
		b.Errorf("the urgent event was delivered %d times: its attempt was not counted before", n)
	}
	place := slices.IndexFunc(r.all(), func(d waybill.Delivery) bool { return d.ID == killer.ID })
	if place > len(evs)/2 {
		b.Errorf("the urgent event came after %d others", place)
	}
}

// suspectsAheadBehindOutage: the same if more urgent events than the window of
// the crashed owner are in front of it, for an unavailable destination.
func suspectsAheadBehindOutage[T any](b *env[T]) {
	lanes := len(b.stats().Lanes)
	var evs []waybill.Event
	for i := 0; len(evs) < 400; i++ {
		ev := event(fmt.Sprint("a", i), 0)
		if driver.LaneOf("", ev.AggregateType, ev.AggregateID, lanes) != 0 {
			continue
		}
		if len(evs) >= 250 {
			ev.Priority, ev.Type = 5, "down"
		}
		evs = append(evs, ev)
	}
	killer := &evs[len(evs)-1]
	killer.Type = evs[0].Type
	b.write(evs...)
	b.abandonLanes()
	var healed atomic.Bool
	r := &recorder{}
	r.answer = func(d waybill.Delivery) error {
		switch {
		case d.Type == "down" && !healed.Load():
			return waybill.Unavailable(errBoom)
		case d.ID == killer.ID:
			if err := b.counted(d); err != nil {
				b.Error(err)
			}
		}
		return nil
	}
	cfg := b.quick()
	// The destination stays unavailable for longer than it takes to pass over
	// its events.
	cfg.BackoffBase, cfg.BackoffMax = 300*time.Millisecond, 300*time.Millisecond
	cfg.Workers, cfg.ColdQueue, cfg.BatchSize = 1, 20, 20
	b.start(&destined{recorder: r}, cfg)
	b.await("it is delivered", func() bool { return b.state(killer.ID) == "delivered" })
	healed.Store(true)
	b.awaitEmpty()
}
