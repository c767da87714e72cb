package sim

import (
	"context"
	"errors"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
)

// The checks of deliveries.

// committed notes a committed event. Mu is held.
func (w *world) committed(p *process, ev *event, lane int, early bool) {
	note := ""
	if ev.delay > 0 {
		note = "delayed " + ev.delay.String()
	}
	w.note(p, "committed", ev, int64(lane), 0, note)
	ev.state, ev.commitAt = pending, w.now()
	w.pending++
	w.awaited(ev)
	w.tally.events.Add(1)
	if ev.delay > 0 {
		from := w.start.Add(ev.commitAt)
		if early {
			from = w.start.Add(ev.wroteAt)
		}
		ev.dueAt = from.Add(ev.delay).Truncate(time.Microsecond)
		return // it takes its place when it is due
	}
	if ev.agg != nil {
		for c := range w.copies() {
			if ev.at == nil || ev.at[c].takes {
				ev.agg.waiting[c] = append(ev.agg.waiting[c], ev)
			}
		}
	}
}

// copies is the number of sinks that get each event.
func (w *world) copies() int {
	switch w.plan.sink {
	case fanSink:
		return 2
	case manySinks:
		return len(w.to)
	default:
		return 1
	}
}

// began checks a call of the sink at its beginning.
func (w *world) began(p *process, batch []waybill.Delivery) []*flight {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.checkCall(p, batch)
	flights := make([]*flight, len(batch))
	for i := range batch {
		d := &batch[i]
		ev := w.byID[d.ID]
		if ev == nil {
			w.fail("phantom", nil, "%v delivers the unknown event %v", p, d.ID)
			continue
		}
		w.tally.deliveries.Add(1)
		suspect := ev.counted == lease{p, d.Position.Epoch}
		w.note(p, "begins", ev, d.Position.Epoch, int64(d.Attempt), suspectNote(suspect))
		w.checkLease(p, d, ev)
		w.checkRow(p, d, ev, suspect)
		w.checkRepeated(p, d, ev)
		w.checkSuspect(p, d, ev, suspect)
		flights[i] = &flight{p: p, epoch: d.Position.Epoch, at: w.now()}
		ev.flights = append(ev.flights, flights[i])
		w.aloft[ev] = d.Position.Lane
		p.flying[flights[i]] = ev
	}
	return flights
}

func suspectNote(suspect bool) string {
	if suspect {
		return "suspect"
	}
	return ""
}

// checkCall checks the limits of a call. Mu is held.
func (w *world) checkCall(p *process, batch []waybill.Delivery) {
	c := &w.plan.relay
	p.calls++
	if limit := or(c.Workers, 4); p.calls > limit {
		w.fail("limits", nil, "%v has %d calls of the sink at a time, want at most %d", p, p.calls, limit)
	}
	if limit := or(c.BatchSize, 500); len(batch) > limit {
		w.fail("limits", nil, "%v has a batch of %d, want at most %d", p, len(batch), limit)
	}
	for i := range batch {
		if ev := w.byID[batch[i].ID]; ev != nil && ev.agg != nil {
			w.checkAlone(p, batch[:i], ev, batch[i].Position.Epoch)
		}
	}
}

// checkAlone: two events of an aggregate are never with the sink at a time; an
// ordered sink gets several in one batch, unless they are delayed. Mu is held.
func (w *world) checkAlone(p *process, before []waybill.Delivery, ev *event, epoch int64) {
	for f, other := range p.flying {
		if other.agg == ev.agg && f.epoch == epoch && other.table() == ev.table() {
			w.fail(concurrent(ev, other, f), ev, "%v delivers it beside %v", p, other)
		}
	}
	for j := range before {
		other := w.byID[before[j].ID]
		if other == nil || other.agg != ev.agg || w.plan.isOrdered(ev) && (ev.queued || ev.delay == 0 && other.delay == 0) {
			continue
		}
		w.fail(concurrent(ev, other, &flight{}), ev, "%v delivers it in a batch with %v", p, other)
	}
}

// concurrent names the rule that two events of an aggregate are never with the
// sink at a time, by the way in which they came together.
func concurrent(a, b *event, f *flight) string {
	switch by := (lease{f.p, f.epoch}); {
	case a.delay > 0 || b.delay > 0:
		return "concurrent-delayed"
	case f.p != nil && (a.counted == by || b.counted == by):
		return "concurrent-suspect"
	}
	return "concurrent"
}

func or(n, def int) int {
	if n == 0 {
		return def
	}
	return n
}

// checkLease: a delivery begins only under the current lease of its lane. Mu is
// held.
func (w *world) checkLease(p *process, d *waybill.Delivery, ev *event) {
	l := &w.lanes[d.Position.Lane]
	if p.dead {
		return
	}
	if l.proc != p || l.epoch != d.Position.Epoch {
		w.fail("fence", ev, "%v delivers it in lane %d under epoch %d; %v owns the lane under epoch %d",
			p, d.Position.Lane, d.Position.Epoch, l.proc, l.epoch)
		return
	}
	if end := w.expires[l.owner]; !time.Now().Before(end) {
		w.fail("fence", ev, "%v delivers it %v after its lease has ended", p, time.Since(end))
	}
}

// checkRow: the delivery is due, and its attempt follows from the row. Mu is
// held.
func (w *world) checkRow(p *process, d *waybill.Delivery, ev *event, suspect bool) {
	switch ev.state {
	case written, rolledBack:
		w.fail("phantom", ev, "is delivered by %v; it is %v", p, ev.state)
		return
	case discarded:
		w.fail("phantom", ev, "is delivered by %v after an operator discarded it", p)
		return
	case pending, delivered, dead, filtered:
	}
	if p.dead || ev.state != pending || d.Replay != ev.replay {
		return
	}
	if early := time.Until(ev.dueAt); early > time.Microsecond && !ev.unsure {
		w.fail("early", ev, "is delivered by %v %v before it is due", p, early)
	}
	want := ev.attempts + 1
	if suspect {
		want = ev.attempts
	}
	if d.Attempt != want && !ev.unsure && ev.lostAt.IsZero() {
		w.fail("attempts", ev, "is delivered by %v as attempt %d, want %d (suspect %v)", p, d.Attempt, want, suspect)
	}
}

// checkRepeated: an owner delivers an event again only if its delivery failed,
// and no later owner delivers what was settled. Mu is held.
func (w *world) checkRepeated(p *process, d *waybill.Delivery, ev *event) {
	if ev.state == delivered && ev.doneReplay == d.Replay {
		w.fail("duplicate", ev, "is delivered by %v under epoch %d after it was settled under epoch %d", p, d.Position.Epoch, ev.doneEpoch)
		return
	}
	if ev.state == dead && d.Replay == ev.replay && d.Position.Epoch > ev.doneEpoch {
		w.fail("duplicate", ev, "is delivered by %v after it became a dead letter", p)
		return
	}
	o := ev.outcomeOf(p)
	if o != nil && o.class == waybill.ClassDone && o.replay == d.Replay && o.epoch == d.Position.Epoch && !o.undone && ev.lostAt.IsZero() {
		w.fail("duplicate", ev, "is delivered by %v twice under epoch %d although the first delivery succeeded", p, o.epoch)
	}
}

// checkSuspect: an event that was in flight when its lane changed its owner is
// delivered as a suspect. Mu is held.
func (w *world) checkSuspect(p *process, d *waybill.Delivery, ev *event, suspect bool) {
	if suspect || p.dead || ev.takenBack == (lease{p, d.Position.Epoch}) {
		return
	}
	for _, f := range ev.flights {
		// After a step of the database's clock, a row that was due is not due
		// any more, and a new owner may not see it among the first.
		if f.epoch < d.Position.Epoch && f.inWindow && f.at > w.steppedAt {
			rule := "suspects"
			if ev.agg != nil && ev.agg.heldAt > f.at {
				rule = "suspects-behind" // an event in front of it held the aggregate
			}
			w.fail(rule, ev, "is delivered by %v as innocent; it was in flight in %v under epoch %d", p, f.p, f.epoch)
			return
		}
	}
}

// got notes that a sink has an event, and checks the order. Mu is held.
func (w *world) got(p *process, d *waybill.Delivery, ev *event, c int) {
	if p.dead {
		return
	}
	w.note(p, "delivered", ev, d.Position.Epoch, int64(c), "")
	ev.got[c]++
	if w.plan.sink == brokerSink {
		w.publish(d.Event, ev)
	}
	if ev.got[c] > 1 {
		w.tally.duplicates.Add(1)
		return
	}
	w.gotFirst(p, ev, c)
}

// mayBeOvertaken reports whether a transaction that wrote an event was open for
// longer than a relay waits on a store that cannot report open transactions, by
// the database's clock.
func (w *world) mayBeOvertaken(ev *event) bool {
	return !w.plan.knowsWriters && (ev.commitAt-ev.wroteAt > 2*time.Second || w.steppedAt > ev.wroteAt)
}

// gotFirst checks the first delivery of an event. Mu is held.
func (w *world) gotFirst(p *process, ev *event, c int) {
	if ev.state == written || ev.state == rolledBack {
		w.fail("phantom", ev, "is delivered by %v; it is %v", p, ev.state)
	}
	if ev.agg == nil || ev.delay > 0 { // a delayed event has no place of its own
		return
	}
	list := ev.agg.waiting[c]
	for _, before := range list[:max(slices.Index(list, ev), 0)] {
		if before.commitAt < ev.wroteAt && !before.hasLeft(c) && !ev.hasLeft(c) && !w.mayBeOvertaken(before) {
			rule := "order"
			if ev.agg.together {
				rule = "order-together" // two of its events were with the sink at a time
			}
			w.fail(rule, ev, "is delivered by %v before %v, which was committed before it was written", p, before)
			return
		}
	}
	ev.agg.waiting[c] = slices.DeleteFunc(list, func(x *event) bool { return x == ev || x.hasLeft(c) })
}

// returned notes the results of a call of the sink.
func (w *world) returned(p *process, batch []waybill.Delivery, flights []*flight, results []error, ended error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	p.calls--
	failed := make(map[*aggregate]bool)
	for i := range batch {
		d, f := &batch[i], flights[i]
		ev := w.byID[d.ID]
		if ev == nil || f == nil {
			continue
		}
		err := waybill.Unavailable(errSink)
		if len(results) == len(batch) {
			err = results[i]
		}
		canceled := err != nil && errors.Is(ended, context.Canceled) && !errors.Is(err, waybill.ErrSettled)
		if err != nil && errors.Is(ended, context.DeadlineExceeded) && ev.counted == (lease{p, d.Position.Epoch}) {
			// The relay may have canceled the suspect in the same instant, and
			// then takes its attempt back.
			ev.unsure = true
		}
		o := ev.resultOf(p, d, err, canceled || ev.agg != nil && failed[ev.agg])
		if w.plan.sink == orderedSink && err != nil && ev.agg != nil {
			failed[ev.agg] = true
		}
		w.note(p, "returns", ev, int64(d.Attempt), 0, o.class.String())
		delete(p.flying, f)
		if !f.crashed && !p.dead {
			ev.landed(p, d, f, o)
		}
	}
}
