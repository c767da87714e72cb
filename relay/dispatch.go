package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
)

// job is one call of the sink.
type job struct {
	ctx   context.Context
	items []*item
	batch []waybill.Delivery

	results []error
	took    time.Duration
	lapsed  bool // the lease had run out before the call
	ended   bool // the context ended during the call
}

// dispatch hands work to workers that have none.
func (e *engine) dispatch(now time.Time) {
	if e.stopping || !e.member.holdsLease(now) {
		return
	}
	e.nextSuspect()
	for e.idle > 0 && e.depth() > 0 {
		j := e.newJob()
		for n := e.batchSize(); len(j.items) < n; {
			it := e.pop()
			if it == nil {
				break
			}
			if e.admit(it) {
				e.addToJob(j, it, n)
			}
		}
		if len(j.items) == 0 {
			e.free = append(e.free, j)
			return
		}
		e.send(j)
	}
}

// admit reports whether an item may be delivered now, and sees to it otherwise.
func (e *engine) admit(it *item) bool {
	e.releaseHotSlot(it)
	if it.row.Err != nil {
		e.deadLetterUndelivered(it, fmt.Errorf("the row cannot be decoded: %w", it.row.Err))
		return false
	}
	if name, down := e.down(&it.row.Event); down && !it.probe {
		it.state = waiting
		e.park(it, e.dests[name])
		return false
	}
	return true
}

// fly puts an item into a job; for a sink that keeps the order itself, also those of its aggregate that follow.
func (e *engine) addToJob(j *job, it *item, limit int) {
	e.startDelivery(j, it)
	if !e.ordered || it.agg == nil || it.suspect || it.probe || it.late {
		return
	}
	for _, next := range it.agg.queue[it.agg.inFlight:] {
		if len(j.items) >= limit || next.state != waiting || next.suspect || next.late || next.row.Err != nil {
			return
		}
		if _, down := e.down(&next.row.Event); down {
			return
		}
		e.releaseHotSlot(next)
		e.startDelivery(j, next)
	}
}

func (e *engine) startDelivery(j *job, it *item) {
	it.state = inFlight
	it.lane.busy++
	if it.agg != nil {
		it.agg.inFlight++
	}
	j.items = append(j.items, it)
	j.batch = append(j.batch, it.delivery(e.history, e.source))
}

func (e *engine) newJob() *job {
	if n := len(e.free); n > 0 {
		j := e.free[n-1]
		e.free = e.free[:n-1]
		return j
	}
	return &job{}
}

func (e *engine) send(j *job) {
	if j.ctx == nil {
		j.ctx = e.lease
	}
	e.idle--
	e.calls++
	e.jobs <- j // there is room for every worker
}

// work delivers jobs until there are no more.
func (e *engine) work() {
	for j := range e.jobs {
		e.deliver(j)
		e.results <- j // there is room for every worker
	}
}

// deliver calls the sink. It starts nothing after the lease has run out, however long ago the engine sent the job.
func (e *engine) deliver(j *job) {
	if !e.member.holdsLease(time.Now()) {
		j.lapsed = true
		return
	}
	ctx := j.ctx
	if e.cfg.DeliverTimeout > 0 {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, e.cfg.DeliverTimeout)
		defer cancel()
	}
	var after func([]error)
	if e.observe.Deliver != nil {
		ctx, after = e.observe.Deliver(ctx, j.batch)
	}
	began := time.Now()
	j.results = safely(ctx, e.sink, j.batch)
	j.took = time.Since(began)
	j.ended = j.ctx.Err() != nil
	if after != nil {
		after(j.results)
	}
}

// finishJob judges the results of a call.
func (e *engine) finishJob(j *job) {
	e.idle++
	e.calls--
	e.chunk.add(len(j.items), j.took)
	short := !j.lapsed && len(j.results) != len(j.items)
	if short {
		e.log.Error("waybill: the sink's answer settles nothing", slog.String("error", errResults(len(j.results), len(j.items)).Error()))
	}
	var failed map[*aggregate]bool
	for i, it := range j.items {
		var err error
		switch {
		case short:
			err = waybill.Unavailable(errResults(len(j.results), len(j.items)))
		case !j.lapsed:
			err = j.results[i]
		}
		behind := e.ordered && it.agg != nil && failed[it.agg]
		if err != nil && e.ordered && it.agg != nil && !errors.Is(err, waybill.ErrSettled) {
			if failed == nil {
				failed = make(map[*aggregate]bool)
			}
			failed[it.agg] = true
		}
		if behind || j.lapsed || err != nil && j.ended && !errors.Is(err, waybill.ErrSettled) {
			e.undo(it)
			continue
		}
		e.judge(it, &j.batch[i], err, j.took)
	}
	clear(j.items)
	clear(j.batch)
	*j = job{items: j.items[:0], batch: j.batch[:0]}
	e.free = append(e.free, j)
}

// land takes an item back from a worker. It reports false if the item is nobody's concern any more.
func (e *engine) endDelivery(it *item) bool {
	it.lane.busy--
	if it.agg != nil {
		it.agg.inFlight--
	}
	if it.lane.gone {
		it.state = dropped
		e.unprobe(it)
		e.suspects.settled(it)
		return false
	}
	return true
}

// unprobe notes that a probe had no result.
func (e *engine) unprobe(it *item) {
	if it.probe {
		it.probe = false
		if d := e.dests[it.dest]; d != nil {
			d.probing = false
		}
	}
}

// undo takes back a delivery that did not happen, or whose failure is our own doing: it stays pending and uncounted.
func (e *engine) undo(it *item) {
	if !e.endDelivery(it) {
		return
	}
	e.unprobe(it)
	if it.lane.draining {
		if it.counted {
			e.uncount(it)
		} else {
			e.abandon(it)
		}
		return
	}
	it.state = waiting
	if it.suspect {
		e.suspects.again(it)
		return
	}
	if it.agg != nil {
		e.advance(it.agg)
		return
	}
	e.push(it)
}

// abandon forgets an item whose lane is being given up. Its row is untouched.
func (e *engine) abandon(it *item) {
	it.state = waiting
	if it.agg != nil {
		it.agg.remove(it)
	}
	e.suspects.settled(it)
	e.drop(it)
}

// judge decides what a result means for an event.
func (e *engine) judge(it *item, d *waybill.Delivery, err error, took time.Duration) {
	if !e.endDelivery(it) {
		return
	}
	probe := it.probe
	it.probe = false
	class, delay := waybill.Classify(err)
	if class != waybill.ClassUnavailable {
		e.resumed(it) // whatever it said, it was there
	}
	if stack := panicStack(err); stack != "" {
		e.event(slog.LevelError, "waybill: the sink panicked", it, err, slog.String("stack", stack))
	}
	switch class {
	case waybill.ClassDone:
		if e.observe.Delivered != nil {
			e.observe.Delivered(d, took, e.age(it))
		}
		e.delivered(it, errors.Is(err, waybill.ErrSettled))
	case waybill.ClassUnavailable:
		e.failed(d, class, err, took)
		e.unreachable(it, probe, err)
	case waybill.ClassDefer:
		e.failed(d, class, err, took)
		it.attempts = it.attempt() - 1
		it.lane.remember(it)
		e.retry(it, delay, err)
	case waybill.ClassPermanent:
		if wait := e.grace(it, err); wait > 0 {
			e.failed(d, waybill.ClassDefer, err, took)
			it.attempts = it.attempt() - 1
			it.lane.remember(it)
			e.retry(it, wait, err)
			return
		}
		it.attempts = it.attempt()
		e.deadLetter(it, d, err)
	default:
		it.attempts = it.attempt()
		if e.cfg.MaxAttempts > 0 && it.attempts >= e.cfg.MaxAttempts {
			e.deadLetter(it, d, err)
			return
		}
		e.failed(d, waybill.ClassRetry, err, took)
		if delay == 0 {
			delay = e.backoff.after(it.attempts)
		}
		e.retry(it, delay, err)
	}
}

func (e *engine) failed(d *waybill.Delivery, class waybill.Class, err error, took time.Duration) {
	if e.observe.Failed != nil {
		e.observe.Failed(d, class, err, took)
	}
}

// panicStack returns the stack of a panic, or "".
func panicStack(err error) string {
	var p interface{ Stack() string }
	if err != nil && errors.As(err, &p) {
		return p.Stack()
	}
	return ""
}

// graceStep is how often an event without a handler is tried while there is still hope.
const graceStep = 5 * time.Second

// grace returns how long to wait for a handler that a deploy may bring; 0 if the event has waited long enough.
func (e *engine) grace(it *item, err error) time.Duration {
	if e.cfg.UnknownGrace <= 0 || !errors.Is(err, waybill.ErrNoHandler) {
		return 0
	}
	left := e.cfg.UnknownGrace - e.age(it)
	return max(min(left, graceStep), 0)
}

// delivered lets the aggregate go on and has the event settled.
func (e *engine) delivered(it *item, settledBySink bool) {
	a := it.agg
	if a != nil {
		a.remove(it)
		a.unhold(it.id())
	}
	if settledBySink {
		it.lane.busy++ // settled counts it down
		e.settledItem(it)
		e.suspects.settled(it)
	} else {
		e.outcome(outcome{it: it, kind: kindDone})
	}
	if a != nil {
		e.advance(a)
	}
}

// unreachable puts an event back whose destination is down.
func (e *engine) unreachable(it *item, probe bool, err error) {
	if a := it.agg; a != nil && !it.suspect && a.heldBefore(it.row.Seq) {
		e.noteDown(it, probe, err)
		it.state = waiting
		e.advance(a) // an event that was replayed meanwhile comes first
		return
	}
	if !it.suspect {
		e.pause(it, probe, err)
		return
	}
	// Its attempt was counted beforehand: take that back, by putting it off. It stays suspect: it was not delivered.
	d := e.noteDown(it, probe, err)
	it.attempts = it.attempt() - 1
	it.lane.remember(it)
	it.lane.giveBack(it)
	e.retry(it, d.wait(), err)
}

// retry puts an event off after a delivery.
func (e *engine) retry(it *item, delay time.Duration, err error) {
	e.event(slog.LevelDebug, "waybill: event will be tried again", it, err, slog.Duration("in", delay))
	e.deferAfterFailure(it, delay, err.Error())
}

// deferAfterFailure moves an event to delayed, where it holds its aggregate.
func (e *engine) deferAfterFailure(it *item, delay time.Duration, text string) {
	a := it.agg
	if a != nil {
		a.remove(it)
		a.hold(holder{seq: it.row.Seq, id: it.id(), read: e.readNo})
	}
	e.outcome(outcome{it: it, kind: kindRetry, delay: delay, holds: a != nil, text: text})
	if a != nil {
		e.evict(a)
		e.advance(a) // a replayed event that waited for this one stays, and is the next one
	}
}

// putOff moves an event that is not with a worker to delayed, without an attempt.
func (e *engine) deferEvent(it *item, delay time.Duration, holds bool, text string) {
	it.attempts = it.row.Attempts
	it.lane.remember(it)
	if it.agg != nil {
		it.agg.remove(it)
		if holds {
			it.agg.hold(holder{seq: it.row.Seq, id: it.id(), read: e.readNo})
			e.evict(it.agg)
		}
	}
	e.outcome(outcome{it: it, kind: kindRetry, delay: delay, holds: holds, text: text})
}

// verdict gives an event up that was not delivered.
func (e *engine) deadLetterUndelivered(it *item, err error) {
	it.attempts = it.row.Attempts
	d := it.delivery(e.history, e.source)
	e.deadLetter(it, &d, err)
}

// die makes an event a dead letter. Its aggregate goes on only when that is on disk, or not at all.
func (e *engine) deadLetter(it *item, d *waybill.Delivery, err error) {
	a, block := it.agg, false
	if a != nil {
		a.remove(it)
		a.unhold(it.id())
		block = e.cfg.OnDead == Block
		if block {
			a.hold(holder{seq: it.row.Seq, id: it.id(), dead: true, read: e.readNo})
			e.evict(a)
		}
		a.stuck++
	}
	e.event(slog.LevelError, "waybill: event is dead", it, err)
	if e.observe.Died != nil {
		e.observe.Died(d, err)
	}
	e.outcome(outcome{it: it, kind: kindDead, holds: block, text: err.Error()})
}

// chunker sizes the batches of a serial sink.
type chunker struct {
	each float64 // about how long one event takes, in nanoseconds
}

const (
	// chunkTime is about how long one call of a serial sink should take: long enough that handing over work costs
	// nothing beside it, short enough that the others do not wait.
	chunkTime = 200 * time.Microsecond
	maxChunk  = 128
)

func (c *chunker) add(n int, took time.Duration) {
	if n == 0 || took == 0 {
		return
	}
	each := float64(took) / float64(n)
	if c.each == 0 {
		c.each = each
	}
	c.each += (each - c.each) / 4
}

// size returns how many events a call should hold.
func (c *chunker) size() int {
	if c.each == 0 {
		return 1
	}
	return max(1, min(maxChunk, int(float64(chunkTime)/c.each)))
}

// worthwhile is how many events a batching sink gets at least, if there are so many.
const worthwhile = 64

// batchSize returns how many events the next call of the sink gets at most.
func (e *engine) batchSize() int {
	ready := e.depth()
	share := (ready + e.cfg.Workers - 1) / e.cfg.Workers
	if e.serial {
		return min(max(share, 1), e.chunk.size(), e.cfg.BatchSize)
	}
	return min(max(share, worthwhile), e.cfg.BatchSize)
}
