package ledger

import (
	"iter"
	"slices"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// outcome is the outcome of an item, to be settled.
type outcome struct {
	it    *Item
	kind  kind
	delay time.Duration
	holds bool
	text  string
}

type kind uint8

const (
	kindDone kind = iota
	kindRetry
	kindDead
	kindCount // a suspect, before the delivery
)

// isUrgent reports whether the settlement should not wait for more outcomes: a
// dead letter keeps its aggregate waiting, and a suspect all other suspects.
func (o *outcome) isUrgent() bool {
	return o.kind == kindDead || o.kind == kindCount || o.it.suspect
}

// pending are the outcomes that wait for the next settlement.
type pending struct {
	list     []outcome
	since    time.Time
	urgent   bool
	failures int
	notUntil time.Time
}

// outcome queues the outcome of an item that is not with a worker.
func (g *Ledger) outcome(o outcome) {
	g.move(o.it, finished)
	o.it.lane.busy++
	if o.kind != kindCount {
		// An event that is dead without a delivery has no result: another event
		// probes its destination.
		g.unprobe(o.it)
	}
	p := &g.pending
	if len(p.list) == 0 {
		p.since = g.now
	}
	p.urgent = p.urgent || o.isUrgent()
	p.list = append(p.list, o)
}

// flushAt returns when the next settlement is to be sent; false if there is
// nothing to settle.
func (g *Ledger) flushAt() (time.Time, bool) {
	p := &g.pending
	if len(p.list) == 0 {
		return time.Time{}, false
	}
	at := p.since
	if !p.urgent && len(p.list) < g.cfg.BatchSize && !g.stopping {
		at = at.Add(g.batchDelay(g.cfg.Linger))
	}
	if at.Before(p.notUntil) {
		return p.notUntil, true
	}
	return at, true
}

// Settlement is a settlement that the engine sends to the store.
type Settlement struct {
	driver.Settlement
	outcomes []outcome
	lanes    []*lane
}

// Diverted returns the place of every event that the settlement copies to
// backlogs, and the number of each backlog's destination.
func (s *Settlement) Diverted() iter.Seq2[Place, int] {
	return func(yield func(Place, int) bool) {
		for _, o := range s.outcomes {
			for _, d := range o.it.diverts {
				if !yield(o.it.Place(), d.Destination) {
					return
				}
			}
		}
	}
}

// Place is a seq in a lane, under the lease of the lane's owner. The seq is 0
// if it is not known.
type Place struct {
	Lease driver.Lease
	Seq   int64
}

// Events is the number of events that are settled.
func (s *Settlement) Events() int { return len(s.outcomes) }

// NextSettlement returns the next settlement; false if none is due or one is
// under way.
func (g *Ledger) NextSettlement(now time.Time) (Settlement, bool) {
	g.now = now
	if at, ok := g.flushAt(); !ok || g.settling || at.After(now) {
		return Settlement{}, false
	}
	p := &g.pending
	n := min(len(p.list), g.cfg.BatchSize)
	s := Settlement{outcomes: make([]outcome, 0, n)}
	s.History, s.Done = g.cfg.History, make([]driver.Result, 0, n)
	rest := p.list[:0] // nothing is written to it before the rest is known
	g.settleNo++
	for i, o := range p.list {
		if len(s.outcomes) == g.cfg.BatchSize {
			rest = append(rest, p.list[i:]...)
			break
		}
		l := o.it.lane
		if l.gone {
			g.discardOutcome(o)
			continue
		}
		if l.settling != g.settleNo {
			l.settling = g.settleNo
			s.lanes = append(s.lanes, l)
			s.Leases = append(s.Leases, l.lease)
		}
		s.add(o)
	}
	clear(p.list[len(rest):])
	p.list, p.since, p.urgent = rest, now, slices.ContainsFunc(rest, func(o outcome) bool { return o.isUrgent() })
	if len(s.outcomes) == 0 {
		return Settlement{}, false
	}
	g.settling = true
	return s, true
}

// discardOutcome forgets an outcome whose lane the relay has lost.
func (g *Ledger) discardOutcome(o outcome) {
	g.move(o.it, settled)
	o.it.lane.busy--
	g.unprobe(o.it)
	g.suspects.settled(o.it)
}

func (s *Settlement) add(o outcome) {
	r := o.it.result()
	switch o.kind {
	case kindDone:
		s.Done = append(s.Done, r)
		s.Divert = append(s.Divert, o.it.diverts...)
		s.Durable = s.Durable || len(o.it.diverts) > 0 // later copies must not outlive it
	case kindRetry, kindCount:
		r.Delay, r.Holds, r.Error = o.delay, o.holds, o.text
		s.Retry = append(s.Retry, r)
		s.Durable = s.Durable || o.kind == kindCount
	case kindDead:
		r.Holds, r.Error = o.holds, o.text
		s.Dead = append(s.Dead, r)
	}
	s.outcomes = append(s.outcomes, o)
}

const (
	settleRetry    = 50 * time.Millisecond
	settleRetryMax = 2 * time.Second
)

// SettlementFailed notes that a settlement has failed. Delivered events stay
// delivered: only the settlement is retried, for as long as the relay owns the
// lanes. If the settlement succeeded and only the answer was lost, the rows are
// gone, which is not an error.
func (g *Ledger) SettlementFailed(s Settlement, now time.Time) {
	g.now, g.settling = now, false
	p := &g.pending
	p.list = append(s.outcomes, p.list...)
	p.failures++
	p.notUntil = now.Add(min(settleRetry<<min(p.failures, 10), settleRetryMax))
	g.distrust()
}

// Settled takes the store's answer to a settlement.
func (g *Ledger) Settled(s Settlement, answer driver.Settled, took time.Duration, now time.Time) {
	g.now, g.settling = now, false
	p := &g.pending
	p.failures, p.notUntil = 0, time.Time{}
	g.plan.writes.add(took)
	for _, l := range s.lanes {
		if !slices.Contains(answer.Held, l.number) && !l.gone {
			g.facts = append(g.facts, Lost{Lane: l.number, Epoch: l.lease.Epoch})
			g.lose(l)
		}
	}
	for _, o := range s.outcomes {
		switch {
		case o.it.lane.gone:
			g.discardOutcome(o)
		case o.kind == kindCount && !slices.Contains(answer.Moved, o.it.id()):
			// An operator has discarded the event: it must not be delivered.
			g.forgetDiscarded(o.it)
		case o.kind == kindCount:
			g.settledCount(o.it)
		default:
			g.settledOutcome(o)
		}
	}
	if len(p.list) >= g.cfg.BatchSize/4 {
		p.since = time.Time{} // many outcomes are pending by now: they are settled at once
	}
}

// forgetDiscarded forgets a suspect whose row is gone.
func (g *Ledger) forgetDiscarded(it *Item) {
	a := it.agg
	if a != nil {
		a.remove(it)
	}
	g.unprobe(it)
	g.settledItem(it)
	g.suspects.settled(it)
	if a != nil {
		g.advance(a)
	}
}

// settledCount lets a suspect be delivered whose attempt is counted.
func (g *Ledger) settledCount(it *Item) {
	it.lane.busy--
	g.countedSuspect(it)
	switch a := it.agg; {
	case it.lane.draining:
		g.uncount(it)
	case a != nil && (a.heldBefore(it.row.Seq) || !it.isNext()):
		g.uncountBehind(it) // another event now comes first
	}
}

// settledOutcome lets the events continue that waited for a settlement.
func (g *Ledger) settledOutcome(o outcome) {
	it := o.it
	g.settledItem(it)
	g.suspects.settled(it)
	switch o.kind {
	case kindRetry:
		g.dueTimes.at(g.now.Add(o.delay))
		if it.behind != nil {
			g.advance(it.behind)
		}
	case kindDead:
		if it.agg != nil {
			it.agg.stuck--
			g.advance(it.agg)
		}
	case kindDone, kindCount:
	}
}

// settledItem releases an item as soon as no read can return its row.
func (g *Ledger) settledItem(it *Item) {
	g.move(it, settled)
	it.lane.suspicion.cleared(it)
	it.lane.busy--
	it.lane.unsettled--
	if it.agg == nil && !it.announced && !g.selfPolling && it.row.Seq > 0 {
		g.past.add(it.id(), g.now)
	}
	if g.reading {
		g.settledDuringRead = append(g.settledDuringRead, it)
		return
	}
	it.forget()
}

// forget forgets a settled item.
func (it *Item) forget() {
	if it.lane.items[it.id()] == it {
		delete(it.lane.items, it.id())
	}
}
