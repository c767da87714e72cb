package ledger

import (
	"errors"
	"time"

	"github.com/waybillhq/waybill"
)

// NextBatch appends the next events to deliver, as in flight, up to limit. With
// an ordered sink, events of one aggregate follow each other.
func (g *Ledger) NextBatch(batch []*Item, limit int, now time.Time) []*Item {
	g.now = now
	for len(batch) < limit {
		it := g.pop()
		if it == nil {
			break
		}
		if g.admit(it) {
			batch = g.addToBatch(batch, it, limit)
		}
	}
	return batch
}

// admit reports whether an item may be delivered now; otherwise it parks or
// dead-letters the item.
func (g *Ledger) admit(it *Item) bool {
	g.releaseHotSlot(it)
	if err := it.hopeless(); err != nil {
		g.deadLetterUndelivered(it, err)
		return false
	}
	if name, down := g.down(&it.row.Event); down && !it.probe {
		g.move(it, waiting)
		g.park(it, g.dests[name])
		return false
	}
	return true
}

// addToBatch adds an item to a batch and, if the sink is ordered, the items of
// its aggregate that follow.
func (g *Ledger) addToBatch(batch []*Item, it *Item, limit int) []*Item {
	g.startDelivery(it)
	batch = append(batch, it)
	if !g.cfg.Ordered || it.agg == nil || it.suspect || it.probe || it.late {
		return batch
	}
	for _, next := range it.agg.queue[it.agg.inFlight:] {
		if len(batch) >= limit || next.state != waiting || next.suspect || next.late || next.hopeless() != nil {
			break
		}
		if _, down := g.down(&next.row.Event); down {
			break
		}
		g.releaseHotSlot(next)
		g.startDelivery(next)
		batch = append(batch, next)
	}
	return batch
}

func (g *Ledger) startDelivery(it *Item) {
	g.move(it, inFlight)
	it.lane.busy++
	if it.agg != nil {
		it.agg.inFlight++
	}
}

// endDelivery takes an item back from a worker. It reports false if the relay
// has lost the item's lane.
func (g *Ledger) endDelivery(it *Item) bool {
	it.lane.busy--
	if it.agg != nil {
		it.agg.inFlight--
	}
	if it.lane.gone {
		g.move(it, dropped)
		g.unprobe(it)
		g.suspects.settled(it)
		return false
	}
	return true
}

// Undelivered takes back a delivery that did not happen, or that the engine
// canceled: the event stays pending and its attempt is not counted.
func (g *Ledger) Undelivered(it *Item, now time.Time) {
	g.now = now
	if !g.endDelivery(it) {
		return
	}
	g.unprobe(it)
	if it.lane.draining {
		if it.counted {
			g.uncount(it)
		} else {
			g.abandon(it)
		}
		return
	}
	g.move(it, waiting)
	switch {
	case it.suspect: // it is delivered again in its turn
	case it.agg != nil:
		g.advance(it.agg)
	default:
		g.enqueue(it)
	}
}

// abandon removes an item whose lane is being released from memory. Its row is
// untouched.
func (g *Ledger) abandon(it *Item) {
	if it.agg != nil {
		it.agg.remove(it)
	}
	g.suspects.settled(it)
	g.drop(it)
}

// Verdict is what a result of the sink means for an event.
type Verdict struct {
	// Class is what became of the event: done, unavailable, defer, retry, or
	// permanent for a dead letter.
	Class waybill.Class
	// Ignored means that the relay has lost the event's lane, and the result
	// counts for nothing.
	Ignored bool
}

// DeliveryEnded takes the result of the sink for an event. The delivery is the
// one that the sink received.
func (g *Ledger) DeliveryEnded(it *Item, d *waybill.Delivery, err error, now time.Time) Verdict {
	g.now = now
	if !g.endDelivery(it) {
		return Verdict{Ignored: true}
	}
	probe := it.probe
	it.probe = false
	class, delay := waybill.Classify(err)
	if class != waybill.ClassUnavailable {
		g.reached(it) // any other answer proves that the destination is available
	}
	if class == waybill.ClassPermanent {
		if wait := g.grace(it, err); wait > 0 {
			class, delay = waybill.ClassDefer, wait
		}
	}
	if class == waybill.ClassRetry && g.cfg.MaxAttempts > 0 && it.Attempt() >= g.cfg.MaxAttempts {
		class = waybill.ClassPermanent
	}
	switch class {
	case waybill.ClassDone:
		g.delivered(it, errors.Is(err, waybill.ErrSettled))
	case waybill.ClassUnavailable:
		g.unreachable(it, probe, err)
	case waybill.ClassDefer:
		it.attempts = it.Attempt() - 1
		it.lane.suspicion.remember(it)
		g.retry(it, delay, err)
	case waybill.ClassPermanent:
		it.attempts = it.Attempt()
		g.deadLetter(it, d, err)
	case waybill.ClassRetry:
		it.attempts = it.Attempt()
		if delay == 0 {
			delay = g.cfg.Backoff(it.attempts)
		}
		g.retry(it, delay, err)
	}
	return Verdict{Class: class}
}

// graceStep is the interval between attempts of an event without a handler
// during its grace period.
const graceStep = 5 * time.Second

// grace returns how long to wait for a handler that a deploy may add; 0 if the
// event has waited long enough.
func (g *Ledger) grace(it *Item, err error) time.Duration {
	if g.cfg.UnknownGrace <= 0 || !errors.Is(err, waybill.ErrNoHandler) {
		return 0
	}
	left := g.cfg.UnknownGrace - g.Age(it, g.now)
	return max(min(left, graceStep), 0)
}

// delivered lets the aggregate continue and queues the settlement of the event.
func (g *Ledger) delivered(it *Item, settledBySink bool) {
	a := it.agg
	if a != nil {
		a.remove(it)
		a.unhold(it.id())
	}
	if settledBySink {
		it.lane.busy++ // settledItem decrements it
		g.settledItem(it)
		g.suspects.settled(it)
	} else {
		g.outcome(outcome{it: it, kind: kindDone})
	}
	if a != nil {
		g.advance(a)
	}
}

// unreachable parks or defers an event whose destination is unavailable.
func (g *Ledger) unreachable(it *Item, probe bool, err error) {
	d := g.noteDown(it, probe, err)
	if a := it.agg; a != nil && !it.suspect && a.heldBefore(it.row.Seq) {
		g.move(it, waiting)
		g.advance(a) // an event that was replayed meanwhile comes first
		return
	}
	if !it.suspect {
		g.park(it, d)
		return
	}
	// The attempt was counted before the delivery: deferring the event takes
	// that back. The event stays suspect, because it was not delivered.
	it.attempts = it.Attempt() - 1
	it.lane.suspicion.remember(it)
	it.lane.suspicion.giveBack(it)
	g.retry(it, d.wait(g.now), err)
}

// retry defers an event after a failed delivery.
func (g *Ledger) retry(it *Item, delay time.Duration, err error) {
	g.facts = append(g.facts, Retried{Item: it, Delay: delay, Err: err})
	a := it.agg
	if a != nil {
		a.remove(it)
		g.hold(a, holder{seq: it.row.Seq, id: it.id(), read: g.readNo})
	}
	g.outcome(outcome{it: it, kind: kindRetry, delay: delay, holds: a != nil, text: err.Error()})
	if a != nil {
		g.evict(a)
		g.advance(a) // a replayed event that waited for this one stays, and is the next one
	}
}

// deferEvent moves an event that is not in flight to delayed, without an
// attempt.
func (g *Ledger) deferEvent(it *Item, delay time.Duration, holds bool, text string) {
	it.attempts = it.row.Attempts
	it.lane.suspicion.remember(it)
	if it.agg != nil {
		it.agg.remove(it)
		if holds {
			g.hold(it.agg, holder{seq: it.row.Seq, id: it.id(), read: g.readNo})
			g.evict(it.agg)
		}
	}
	g.outcome(outcome{it: it, kind: kindRetry, delay: delay, holds: holds, text: text})
}

// deadLetterUndelivered dead-letters an event that was not delivered.
func (g *Ledger) deadLetterUndelivered(it *Item, err error) {
	it.attempts = it.row.Attempts
	d := it.Delivery()
	g.deadLetter(it, &d, err)
}

// deadLetter makes an event a dead letter. The aggregate continues only when
// the dead letter is on disk, or not at all if dead letters block it.
func (g *Ledger) deadLetter(it *Item, d *waybill.Delivery, err error) {
	a, block := it.agg, false
	if a != nil {
		a.remove(it)
		a.unhold(it.id())
		block = g.cfg.Block
		if block {
			g.hold(a, holder{seq: it.row.Seq, id: it.id(), dead: true, read: g.readNo})
			g.evict(a)
		}
		a.stuck++
	}
	g.facts = append(g.facts, Dead{Item: it, Delivery: d, Err: err})
	g.outcome(outcome{it: it, kind: kindDead, holds: block, text: err.Error()})
}
