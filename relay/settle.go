package relay

import (
	"context"
	"log/slog"
	"slices"
	"time"

	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store/driver"
)

// outcome is the outcome of an item, to be settled.
type outcome struct {
	it    *item
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
	kindCount // the attempt of a suspect, before the delivery
)

// pending are the outcomes that wait for the next settlement.
type pending struct {
	list     []outcome
	since    time.Time
	urgent   bool
	failures int
	notUntil time.Time
}

// outcome queues the outcome of an item that is not with a worker.
func (e *engine) outcome(o outcome) {
	o.it.state = finished
	o.it.lane.busy++
	if o.kind != kindCount {
		// An event that is dead without a delivery has no result: another event
		// probes its destination.
		e.unprobe(o.it)
	}
	if len(e.pending.list) == 0 {
		e.pending.since = time.Now()
	}
	// A dead letter keeps its aggregate waiting, and a suspect all other
	// suspects.
	e.pending.urgent = e.pending.urgent || o.kind == kindDead || o.kind == kindCount || o.it.suspect
	e.pending.list = append(e.pending.list, o)
}

// flushAt returns when the next settlement is to be sent; the zero time if
// there is nothing to settle.
func (p *pending) flushAt(e *engine) time.Time {
	if len(p.list) == 0 {
		return time.Time{}
	}
	at := p.since
	if !p.urgent && len(p.list) < e.cfg.BatchSize && !e.stopping {
		at = at.Add(e.batchDelay(e.cfg.Linger))
	}
	if at.Before(p.notUntil) {
		return p.notUntil
	}
	return at
}

// settleJob is a settlement, with the outcomes and lanes that it covers.
type settleJob struct {
	settlement driver.Settlement
	outcomes   []outcome
	lanes      []*lane
	until      time.Time
}

type settleReply struct {
	settleJob
	settled driver.Settled
	took    time.Duration
	err     error
}

// settle sends a settlement if one is due and none is under way.
func (e *engine) settle(now time.Time) {
	if e.settling || len(e.pending.list) == 0 || e.pending.flushAt(e).After(now) {
		return
	}
	p := &e.pending
	n := min(len(p.list), e.cfg.BatchSize)
	j := settleJob{outcomes: make([]outcome, 0, n)}
	j.settlement.History, j.settlement.Done = e.history, make([]driver.Result, 0, n)
	rest := p.list[:0] // nothing is written to it before the rest is known
	e.settleNo++
	for i, o := range p.list {
		if len(j.outcomes) == e.cfg.BatchSize {
			rest = append(rest, p.list[i:]...)
			break
		}
		l := o.it.lane
		if l.gone {
			l.busy--
			e.unprobe(o.it)
			e.suspects.settled(o.it)
			continue
		}
		if l.settling != e.settleNo {
			l.settling = e.settleNo
			j.lanes = append(j.lanes, l)
			j.settlement.Leases = append(j.settlement.Leases, l.lease)
		}
		j.add(o)
	}
	clear(p.list[len(rest):])
	p.list, p.since, p.urgent = rest, now, slices.ContainsFunc(rest, func(o outcome) bool { return o.kind >= kindDead || o.it.suspect })
	if len(j.outcomes) == 0 {
		return
	}
	// The settlement is detached from cancellation; one that takes longer than
	// the lease will be rejected anyway.
	j.until = now.Add(e.cfg.Lease)
	e.settling = true
	e.settles <- j
}

func (j *settleJob) add(o outcome) {
	r := o.it.result()
	s := &j.settlement
	switch o.kind {
	case kindDone:
		s.Done = append(s.Done, r)
	case kindRetry, kindCount:
		r.Delay, r.Holds, r.Error = o.delay, o.holds, o.text
		s.Retry = append(s.Retry, r)
		s.Durable = s.Durable || o.kind == kindCount
	case kindDead:
		r.Holds, r.Error = o.holds, o.text
		s.Dead = append(s.Dead, r)
	}
	j.outcomes = append(j.outcomes, o)
}

// settler runs settlements until the channel is closed.
func (e *engine) settler() {
	for j := range e.settles {
		ctx, cancel := context.WithDeadline(context.Background(), j.until)
		began := time.Now()
		settled, err := e.db.Settle(ctx, j.settlement)
		cancel()
		took := time.Since(began)
		// The hook is called here, because the answer of the last settlement is
		// not handled when Run ends.
		if e.observe.Settled != nil {
			e.observe.Settled(observe.SettledInfo{Events: len(j.outcomes), Took: took, Err: err})
		}
		e.answers <- settleReply{settleJob: j, settled: settled, took: took, err: err}
	}
}

const (
	settleRetry    = 50 * time.Millisecond
	settleRetryMax = 2 * time.Second
)

// finishSettle handles the answer to a settlement.
func (e *engine) finishSettle(r settleReply) {
	e.settling = false
	p := &e.pending
	if r.err != nil {
		// Delivered events stay delivered: only the settlement is retried, for
		// as long as the relay owns the lanes. If the settlement succeeded and
		// only the answer was lost, the rows are gone, which is not an error.
		p.list = append(r.outcomes, p.list...)
		p.failures++
		p.notUntil = time.Now().Add(min(settleRetry<<min(p.failures, 10), settleRetryMax))
		e.database.Failed("settle", r.err)
		e.distrust()
		return
	}
	e.database.Succeeded("settle")
	p.failures, p.notUntil = 0, time.Time{}
	e.plan.writes.add(r.took)
	for _, l := range r.lanes {
		if !slices.Contains(r.settled.Held, l.number) && !l.gone {
			e.log.Warn("lane was lost: another node owns it", slog.Int(logkey.Lane, l.number), slog.Int64(logkey.Epoch, l.lease.Epoch))
			e.lose(l)
		}
	}
	for _, o := range r.outcomes {
		if o.kind == kindCount && !o.it.lane.gone && !slices.Contains(r.settled.Moved, o.it.id()) {
			// An operator has discarded the event: it must not be delivered.
			e.forgetDiscarded(o.it)
			continue
		}
		e.settledOutcome(o)
	}
	e.chainSettle()
}

// forgetDiscarded forgets a suspect whose row is gone.
func (e *engine) forgetDiscarded(it *item) {
	a := it.agg
	if a != nil {
		a.remove(it)
	}
	e.unprobe(it)
	e.settledItem(it)
	e.suspects.settled(it)
	if a != nil {
		e.advance(a)
	}
}

// chainSettle is called when a settlement has been answered: if many outcomes
// are pending by then, they are settled at once.
func (e *engine) chainSettle() {
	if len(e.pending.list) >= e.cfg.BatchSize/4 {
		e.pending.since = time.Time{}
	}
}

func (e *engine) settledOutcome(o outcome) {
	it := o.it
	if it.lane.gone {
		it.lane.busy--
		e.unprobe(it)
		e.suspects.settled(it)
		return
	}
	if o.kind == kindCount {
		it.lane.busy--
		e.countedSuspect(it)
		switch a := it.agg; {
		case it.lane.draining:
			e.uncount(it)
		case a != nil && a.heldBefore(it.row.Seq):
			a.lateWaiting = true // another event now comes first: this one is read again after it
			e.uncount(it)
			e.advance(a)
		}
		return
	}
	e.settledItem(it)
	e.suspects.settled(it)
	switch o.kind {
	case kindRetry:
		e.dueTimes.at(time.Now().Add(o.delay))
		if it.behind != nil {
			e.advance(it.behind)
		}
	case kindDead:
		if it.agg != nil {
			it.agg.stuck--
			e.advance(it.agg)
		}
	case kindDone, kindCount:
	}
}

// settledItem releases an item as soon as no read can return its row.
func (e *engine) settledItem(it *item) {
	it.state = settled
	it.lane.cleared(it)
	it.lane.busy--
	it.lane.unsettled--
	if it.agg == nil && !it.announced && !e.selfPolling && it.row.Seq > 0 {
		e.past.add(it.id())
	}
	if e.reading {
		e.settledDuringRead = append(e.settledDuringRead, it)
		return
	}
	e.forgetSettled(it)
}

// forgetSettled forgets a settled item.
func (e *engine) forgetSettled(it *item) {
	if it.lane.items[it.id()] == it {
		delete(it.lane.items, it.id())
	}
}
