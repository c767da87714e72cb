package sim

import (
	"context"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// The checks of leases and settlements.

// acquired checks an acquisition. Mu is held.
func (w *world) acquired(p *process, owner waybill.ID, leases []driver.Lease, window int) {
	for _, lease := range leases {
		l := &w.lanes[lease.Lane]
		w.note(p, "acquired", nil, int64(lease.Lane), lease.Epoch, "")
		if end := w.expires[l.owner]; !l.owner.IsZero() && time.Now().Before(end) {
			w.fail("fence", nil, "%v acquired lane %d, which %v owns for %v", p, lease.Lane, l.proc, time.Until(end))
		}
		if unclean := l.dirty || !l.owner.IsZero(); lease.Unclean != unclean {
			w.fail("fence", nil, "%v acquired lane %d; the last owner left it unclean: %v, says the store: %v", p, lease.Lane, unclean, lease.Unclean)
		}
		if lease.Unclean {
			w.suspect(lease)
		}
		if lease.Epoch <= l.epoch || lease.Token == l.token {
			w.fail("fence", nil, "%v acquired lane %d with epoch %d after epoch %d", p, lease.Lane, lease.Epoch, l.epoch)
		}
		*l = laneModel{owner: owner, proc: p, epoch: lease.Epoch, token: lease.Token, window: window}
	}
}

// released notes that lanes are free. Mu is held.
func (w *world) released(p *process, leases []driver.Lease, dirty bool) {
	for _, lease := range leases {
		l := &w.lanes[lease.Lane]
		if l.epoch != lease.Epoch || l.token != lease.Token {
			continue
		}
		note := ""
		if dirty {
			note = "unclean"
		}
		w.note(p, "released", nil, int64(lease.Lane), lease.Epoch, note)
		l.owner, l.proc, l.dirty = waybill.ID{}, nil, dirty
	}
}

// suspect notes which events in flight are among the first rows of a lane: a
// new owner must suspect those. Transactions that committed late, or a
// destination that has come back, may have put more rows in front of an event
// than a window has; and the new owner does not see a deferred event that is
// not due yet. Mu is held.
func (w *world) suspect(lease driver.Lease) {
	s, ctx := w.server, context.Background()
	first := make(map[waybill.ID]bool)
	rows, _ := s.base.Sweep(ctx, []driver.Cursor{{Lane: lease.Lane}}, lease.Window+s.hiddenOf(lease.Lane))
	n := 0
	for i := range rows {
		if _, hidden := s.hidden[rows[i].ID]; !hidden && n < lease.Window {
			n++
			first[rows[i].ID] = true
		}
	}
	due, _ := s.base.Due(ctx, []int{lease.Lane}, lease.Window)
	for i := range due.Rows {
		first[due.Rows[i].ID] = true
	}
	w.suspectAt(lease.Lane, -1, first)
	for k := range w.to {
		w.suspectTo(lease, k)
	}
}

// suspectAt notes which events in flight of a lane are among the first rows of
// the outbox, or of a destination's backlog. Mu is held.
func (w *world) suspectAt(lane, to int, first map[waybill.ID]bool) {
	for ev, in := range w.aloft {
		if len(ev.flights) == 0 {
			delete(w.aloft, ev)
		}
		if in != lane || ev.table() != to {
			continue
		}
		for _, f := range ev.flights {
			f.inWindow = first[ev.id]
		}
	}
}

// left notes that a node is gone. Mu is held.
func (w *world) left(p *process, owner waybill.ID) {
	delete(w.expires, owner)
	for i := range w.lanes {
		if l := &w.lanes[i]; l.owner == owner {
			w.note(p, "left", nil, int64(i), l.epoch, "")
			l.owner, l.proc, l.dirty = waybill.ID{}, nil, true
		}
	}
}

// doubt notes that a settlement is applied although its sender has given up. Mu
// is held.
func (w *world) doubt(to int, t *driver.Settlement) {
	for _, r := range slices.Concat(t.Retry, t.Dead) {
		if ev := w.modelOf(to, r.ID); ev != nil {
			ev.unsure = true
		}
	}
	for _, d := range t.Divert {
		if at := w.copyOf(&d); at != nil {
			at.unsure = true
		}
	}
}

// settled checks a settlement that was applied, and notes it: one of the
// outbox, or of the backlog of a destination. Mu is held.
func (w *world) settled(p *process, to int, t *driver.Settlement, out *driver.Settled) {
	if !w.checkHeld(p, t, out) {
		return
	}
	moved := make(map[waybill.ID]bool, len(out.Moved))
	for _, id := range out.Moved {
		moved[id] = true
	}
	for kind, results := range map[string][]driver.Result{"done": t.Done, "retry": t.Retry, "dead": t.Dead} {
		for i := range results {
			if ev := w.modelOf(to, results[i].ID); ev != nil && moved[ev.id] {
				w.settledOne(p, ev, &results[i], kind, t.Durable)
			}
		}
	}
	w.apply(p, to, t, moved)
}

// checkHeld: a settlement counts in the lanes of its current leases only. Mu is
// held.
func (w *world) checkHeld(p *process, t *driver.Settlement, out *driver.Settled) bool {
	for _, lease := range t.Leases {
		l := &w.lanes[lease.Lane]
		current := l.epoch == lease.Epoch && l.token == lease.Token && !l.owner.IsZero()
		if held := slices.Contains(out.Held, lease.Lane); held != current {
			w.fail("fence", nil, "a settlement of %v in lane %d under epoch %d is accepted: %v; %v owns the lane under epoch %d",
				p, lease.Lane, lease.Epoch, held, l.proc, l.epoch)
			return false
		}
	}
	return true
}

// settledOne checks one result of a settlement. Mu is held.
func (w *world) settledOne(p *process, ev *event, r *driver.Result, kind string, durable bool) {
	w.note(p, "settled "+kind, ev, int64(r.Attempts), int64(r.Delay), r.Error)
	w.checkMoved(p, ev, r, kind)
	o := ev.outcomeOf(p)
	if o == nil {
		o = &outcome{p: p, settled: true}
		ev.outcomes = append(ev.outcomes, o)
	}
	as := settledAs{kind: kind, attempts: r.Attempts, delay: r.Delay, text: r.Error}
	repeated := o.last != nil && *o.last == as && o.settled
	if !repeated && !ev.unsure && ev.lostAt.IsZero() {
		switch kind {
		case "done":
			w.checkDone(p, ev, o, w.lanes[r.Lane].epoch)
		case "retry":
			w.checkRetry(p, ev, o, r)
		default:
			w.checkDead(p, ev, o, r)
		}
	}
	if kind == "done" {
		// Done records no attempts. Those of a repeated result are not those of
		// a row that was copied from the history since.
		ev.counted, o.settled, o.last = lease{}, true, &as
		return
	}
	w.count(p, ev, o, r, kind == "retry" && durable)
	o.settled, o.last = true, &as
	ev.attempts = r.Attempts
	if ev.agg != nil {
		ev.agg.heldAt = w.now()
	}
}

// count notes whether a settlement counted the attempt of a suspect in advance.
// Mu is held.
func (w *world) count(p *process, ev *event, o *outcome, r *driver.Result, durable bool) {
	by := lease{p, w.lanes[r.Lane].epoch}
	more := r.Attempts > ev.attempts
	switch {
	case o.fresh(by.epoch) && (o.class != waybill.ClassDefer || !more) || r.Attempts < ev.attempts:
		if ev.unsure {
			ev.takenBack = ev.counted
		}
		ev.counted = lease{}
	case more:
		ev.counted, ev.takenBack = by, lease{}
		if !durable {
			w.fail("attempts", ev, "is counted by %v before its delivery, and the count is not durable", p)
		}
	}
}

// apply changes the model like the tables. Mu is held.
func (w *world) apply(p *process, to int, t *driver.Settlement, moved map[waybill.ID]bool) {
	epoch := func(r *driver.Result) int64 { return w.lanes[r.Lane].epoch }
	for i := range t.Done {
		if ev := w.modelOf(to, t.Done[i].ID); ev != nil && moved[ev.id] {
			w.settleEvent(ev, delivered, epoch(&t.Done[i]))
			w.leaves(p, ev, &t.Done[i], t.Divert)
		}
	}
	for i := range t.Retry {
		if ev := w.modelOf(to, t.Retry[i].ID); ev != nil && moved[ev.id] {
			ev.dueAt = time.Now().Add(t.Retry[i].Delay).Truncate(time.Microsecond)
		}
	}
	for i := range t.Dead {
		if ev := w.modelOf(to, t.Dead[i].ID); ev != nil && moved[ev.id] {
			ev.everDead = true
			// A replay of a dead letter is a new life.
			ev.flights = slices.DeleteFunc(ev.flights, func(f *flight) bool {
				return f.epoch < epoch(&t.Dead[i]) || f.epoch == epoch(&t.Dead[i]) && f.crashed
			})
			w.settleEvent(ev, dead, epoch(&t.Dead[i]))
		}
	}
}

// settleEvent notes the final state of an event. Mu is held.
func (w *world) settleEvent(ev *event, to state, epoch int64) {
	if ev.state == pending {
		w.pending--
	}
	ev.state, ev.doneEpoch, ev.doneReplay = to, epoch, ev.replay
}

// checkMoved: only a pending event is settled, and no result of a delivery in
// front of a replay is. Mu is held.
func (w *world) checkMoved(p *process, ev *event, r *driver.Result, kind string) {
	if ev.state != pending {
		w.fail("settlement", ev, "is settled by %v; it is %v", p, ev.state)
	}
	if kind != "done" && r.Replay != ev.replay {
		w.fail("settlement", ev, "is settled by %v as %s with replay %d; it was replayed %d times", p, kind, r.Replay, ev.replay)
	}
}

// checkDone: only a delivered event is done. Mu is held.
func (w *world) checkDone(p *process, ev *event, o *outcome, epoch int64) {
	if ev.at != nil {
		return // leaves checks each destination
	}
	if ev.parent != nil && !ev.takes {
		return // an operator copied it from the history
	}
	if ev.parent != nil && o.direct && o.class == waybill.ClassDone && o.replay == ev.replay && !o.undone {
		return // its direct call ended after it was copied
	}
	if o.class != waybill.ClassDone || o.undone || o.attempt == 0 || o.epoch != epoch {
		w.fail("settlement", ev, "is settled as done by %v; its last delivery was: %v", p, o.class)
	}
}

// checkRetry: the attempt and the delay follow from the failure. Mu is held.
func (w *world) checkRetry(p *process, ev *event, o *outcome, r *driver.Result) {
	if !o.fresh(w.lanes[r.Lane].epoch) {
		// A suspect is counted or taken back, or the event waits for another.
		if d := r.Attempts - ev.attempts; d < -1 || d > 1 {
			w.fail("attempts", ev, "has %d attempts after %d, without a delivery by %v", r.Attempts, ev.attempts, p)
		}
		if limit := w.plan.policyOf(ev).maxAttempts; limit > 0 && r.Attempts > limit {
			w.fail("attempts", ev, "has %d attempts, more than %d", r.Attempts, limit)
		}
		return
	}
	want := o.attempt
	if o.class != waybill.ClassRetry {
		want--
	}
	switch {
	case o.class == waybill.ClassDone:
		w.fail("settlement", ev, "is deferred by %v although it was delivered", p)
	case o.class == waybill.ClassPermanent:
		w.fail("settlement", ev, "is deferred by %v although it failed for good", p)
	case r.Attempts != want:
		w.fail("attempts", ev, "has %d attempts after %v, want %d (class %v)", r.Attempts, p, want, o.class)
	default:
		if lo, hi := w.delays(ev, o); r.Delay < lo || r.Delay > hi {
			w.fail("delay", ev, "waits %v after failure %d, want %v to %v", r.Delay, o.attempt, lo, hi)
		}
	}
}

// delays returns the bounds of the delay after a failure.
func (w *world) delays(ev *event, o *outcome) (lo, hi time.Duration) {
	c := w.plan.policyOf(ev)
	if o.delay > 0 || o.class == waybill.ClassDefer {
		return o.delay, o.delay
	}
	if n := len(c.series); n > 0 {
		d := c.series[min(o.attempt, n)-1]
		return d, d
	}
	d := c.base
	for n := 1; n < o.attempt && d < c.max; n++ {
		d *= 2
	}
	d = min(d, c.max)
	return d/2 - 1, min(d+d/2, c.max) + 1
}

// checkDead: a dead letter failed for good, or has used up its attempts. Mu is
// held.
func (w *world) checkDead(p *process, ev *event, o *outcome, r *driver.Result) {
	limit := w.plan.policyOf(ev).maxAttempts
	switch {
	case ev.final:
		if r.Attempts != ev.attempts {
			w.fail("attempts", ev, "is dead with %d attempts, and was copied with %d", r.Attempts, ev.attempts)
		}
	case !o.fresh(w.lanes[r.Lane].epoch):
		if limit < 0 || ev.attempts < limit || r.Attempts != ev.attempts {
			w.fail("attempts", ev, "is dead after %d of %d attempts, without a delivery by %v", ev.attempts, limit, p)
		}
		if ev.counted == (lease{p, w.lanes[r.Lane].epoch}) && !ev.unsure {
			w.fail("attempts", ev, "is dead after an attempt that %v has counted and not delivered", p)
		}
	case o.class != waybill.ClassPermanent && o.class != waybill.ClassRetry:
		w.fail("settlement", ev, "is dead after %v: %v", p, o.class)
	case r.Attempts != o.attempt:
		w.fail("attempts", ev, "is dead with %d attempts, want %d", r.Attempts, o.attempt)
	case o.class == waybill.ClassRetry && o.attempt != limit:
		w.fail("attempts", ev, "is dead after attempt %d of %d", o.attempt, limit)
	}
}

// finished notes a delivery that its consumer has settled. Mu is held.
func (w *world) finished(p *process, d *waybill.Delivery) {
	ev := w.byID[d.ID]
	l := &w.lanes[d.Position.Lane]
	if l.epoch != d.Position.Epoch || l.owner.IsZero() {
		w.fail("fence", ev, "is settled by its consumer in %v under epoch %d; %v owns the lane under epoch %d", p, d.Position.Epoch, l.proc, l.epoch)
		return
	}
	w.note(p, "finished", ev, d.Position.Epoch, 0, "")
	if ev.state == pending && ev.replay == d.Replay {
		w.settleEvent(ev, delivered, d.Position.Epoch)
	}
}
