package sim

import (
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// The model of events at destinations. An event of a world with several
// destinations has a model of its row in the outbox, and one for each
// destination: until the row has left the outbox, the deliveries to the
// destination are those of the row; after that, they are those of the row in
// the destination's backlog.

// outboxTable is the number of the outbox beside those of the destinations.
const outboxTable = -1

// place is what the model of an event at a destination has in addition.
type place struct {
	to     int
	takes  bool // the destination's filter takes the event
	queued bool // there is a row in the backlog
	final  bool // the row becomes a dead letter in its turn
	// readBy is the process that has read the row last.
	readBy *process
}

// destinationModel is a destination as the answers of the store named it.
type destinationModel struct {
	number   int       // 0 until it is registered
	pausedAt time.Time // zero if it is not paused
	hanging  bool      // its sink does not answer
}

// destinationView is the state of a destination as a process sees it.
type destinationView struct {
	calls int // of the sink, at this moment
	// pausedAt is when the process learned that the destination is paused; zero
	// if it has not.
	pausedAt time.Time
}

// table returns the table that the model belongs to.
func (ev *event) table() int {
	if ev.parent == nil {
		return outboxTable
	}
	return ev.to
}

// hasLeft reports whether an event need not be delivered to a sink in its
// order: it was a dead letter, or was discarded.
func (ev *event) hasLeft(c int) bool {
	if ev.everDead || ev.state == discarded {
		return true
	}
	return ev.at != nil && (ev.at[c].everDead || ev.at[c].state == discarded)
}

// newPlaces adds the models of an event at the destinations. Mu is held.
func (w *world) newPlaces(ev *event) {
	for k := range w.to {
		ev.at = append(ev.at, &event{no: ev.no, id: ev.id, agg: ev.agg, parent: ev, place: place{to: k}})
	}
}

// route decides which destinations take an event.
func (w *world) route(m *event, ev *waybill.Event) {
	for k, at := range m.at {
		at.takes = w.plan.to[k].takes(ev)
	}
}

// modelOf returns the model of a row of the outbox, or of the backlog of a
// destination. Mu is held.
func (w *world) modelOf(to int, id waybill.ID) *event {
	ev := w.byID[id]
	if to == outboxTable || ev == nil {
		return ev
	}
	return ev.at[to]
}

// destinationOf returns the destination with a number, or -1. Mu is held.
func (w *world) destinationOf(number int) int {
	return slices.IndexFunc(w.to, func(d destinationModel) bool { return d.number == number })
}

// copyOf returns the model of the row that a diversion writes. Mu is held.
func (w *world) copyOf(d *driver.Diversion) *event {
	k := w.destinationOf(d.Destination)
	if k < 0 {
		return nil
	}
	return w.modelOf(k, d.ID)
}

// awaited notes that an event is to be delivered to the destinations that take
// it. Mu is held.
func (w *world) awaited(ev *event) {
	for _, at := range ev.at {
		at.delay, at.commitAt, at.wroteAt = ev.delay, ev.commitAt, ev.wroteAt
		if !at.takes {
			at.state = filtered
			continue
		}
		at.state = pending
		w.pending++
	}
}

// discardedAll notes that an operator has discarded an event in the outbox, or
// at a destination. Mu is held.
func (w *world) discardedAll(ev *event) {
	for _, at := range ev.at {
		if at.state == pending && !at.queued {
			at.state = discarded
			w.pending--
		}
	}
}

// leaves notes that the row of an event has left the outbox: the destinations
// that have not received it have copies. Mu is held.
func (w *world) leaves(p *process, ev *event, r *driver.Result, copies []driver.Diversion) {
	if ev.parent != nil {
		ev.queued = false
		return
	}
	if ev.at == nil {
		return
	}
	epoch := w.lanes[r.Lane].epoch
	left := slices.Clone(ev.at)
	for i := range copies {
		if d := &copies[i]; d.ID == ev.id {
			if at := w.copyOf(d); at != nil {
				w.copied(p, at, d, epoch)
				left[at.to] = nil
			}
		}
	}
	for _, at := range left {
		if at == nil || !at.takes || at.state != pending || at.queued {
			continue
		}
		o := at.outcomeOf(p)
		if got := o != nil && o.class == waybill.ClassDone && !o.undone && o.epoch == epoch; !got && ev.lostAt.IsZero() && !ev.unsure {
			w.fail("lost", at, "has left the outbox by a settlement of %v, without a delivery and without a copy", p)
		}
		if o != nil {
			o.settled = true
		}
		w.settleEvent(at, delivered, epoch)
	}
}

// copied checks a copy in the backlog of a destination, and notes it. Mu is
// held.
func (w *world) copied(p *process, at *event, d *driver.Diversion, epoch int64) {
	w.note(p, "copied", at, int64(d.Attempts), int64(d.Delay), d.Error)
	if !at.takes {
		w.fail("filter", at, "is copied by %v, and the destination does not take it", p)
	}
	o := at.outcomeOf(p)
	if at.parent.lostAt.IsZero() && !at.unsure {
		w.checkCopy(p, at, o, d, epoch)
	}
	if o != nil {
		o.settled = true
	}
	at.queued, at.final, at.readBy, at.attempts, at.counted = true, d.Final, nil, d.Attempts, lease{}
	at.replay = at.parent.replay
	at.dueAt = time.Time{}
	if d.Delay > 0 {
		at.dueAt = time.Now().Add(d.Delay).Truncate(time.Microsecond)
		if at.agg != nil {
			at.agg.heldAt = w.now()
		}
	}
	// A call of the destination that is under way makes the copy a suspect.
	for _, f := range at.parent.flights {
		if f.to == at.to && f.epoch == epoch {
			at.flights = append(at.flights, f)
		}
	}
	if len(at.flights) > 0 {
		w.aloft[at] = w.aloft[at.parent]
	}
}

// checkCopy: the attempts of a copy follow from the failure at its destination.
// Mu is held.
func (w *world) checkCopy(p *process, at *event, o *outcome, d *driver.Diversion, epoch int64) {
	if d.Attempts == 0 && d.Error == "" && !d.Final && d.Delay == 0 {
		return // not tried, or not answered in time
	}
	if o == nil || !o.fresh(epoch) && o.class != waybill.ClassUnavailable || o.epoch != epoch || !o.direct {
		w.fail("attempts", at, "is copied by %v with %d attempts, without a delivery", p, d.Attempts)
		return
	}
	c := w.plan.policyOf(at)
	want, final := o.attempt, o.class == waybill.ClassPermanent
	lo, hi := w.delays(at, o)
	switch o.class {
	case waybill.ClassDone:
		w.fail("settlement", at, "is copied by %v with an error although it was delivered", p)
		return
	case waybill.ClassUnavailable:
		want, lo, hi = want-1, 0, 0
	case waybill.ClassDefer:
		want--
	case waybill.ClassRetry:
		final = c.maxAttempts > 0 && want >= c.maxAttempts
	case waybill.ClassPermanent:
	}
	if final {
		lo, hi = 0, 0
	}
	switch {
	case d.Attempts != want || d.Final != final:
		w.fail("attempts", at, "is copied by %v with %d attempts, final %v; want %d, %v (class %v)", p, d.Attempts, d.Final, want, final, o.class)
	case d.Delay < lo || d.Delay > hi:
		w.fail("delay", at, "is copied with a delay of %v after failure %d, want %v to %v", d.Delay, o.attempt, lo, hi)
	}
}
