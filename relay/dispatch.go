package relay

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/observe"
)

// job is one call of the sink.
type job struct {
	ctx   context.Context
	items []*item
	batch []waybill.Delivery

	results []error
	took    time.Duration
	lapsed  bool // the lease had lapsed before the call
	ended   bool // the context ended during the call
}

// dispatch gives jobs to idle workers.
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

// admit reports whether an item may be delivered now; otherwise it parks or
// dead-letters the item.
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

// addToJob adds an item to a job and, if the sink is an OrderedSink, the items
// of its aggregate that follow.
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
	e.jobs <- j // the channel has room for every worker
}

// work delivers jobs until the channel is closed.
func (e *engine) work() {
	for j := range e.jobs {
		e.deliver(j)
		e.results <- j // the channel has room for every worker
	}
}

// deliver calls the sink. It starts no delivery after the lease has lapsed, no
// matter when the engine sent the job.
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
	var after func(observe.DeliverDoneInfo)
	if e.observe.Deliver != nil {
		ctx, after = e.observe.Deliver(ctx, observe.DeliverInfo{Batch: j.batch})
	}
	began := time.Now()
	j.results = safely(ctx, e.sink, j.batch)
	j.took = time.Since(began)
	j.ended = j.ctx.Err() != nil
	if after != nil {
		after(observe.DeliverDoneInfo{Results: j.results})
	}
}

// finishJob evaluates the results of a call.
func (e *engine) finishJob(j *job) {
	e.idle++
	e.calls--
	e.chunk.add(len(j.items), j.took)
	short := !j.lapsed && len(j.results) != len(j.items)
	if short {
		e.log.Error("the sink returned a wrong number of results; nothing is settled", slog.String(logkey.Error, errResults(len(j.results), len(j.items)).Error()))
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

// endDelivery takes an item back from a worker. It reports false if the relay
// has lost the item's lane.
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

// undo takes back a delivery that did not happen, or that this relay canceled:
// the event stays pending and its attempt is not counted.
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

// abandon removes an item whose lane is being released from memory. Its row is
// untouched.
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
		e.resumed(it) // any other answer proves that the destination is available
	}
	if stack := panicStack(err); stack != "" {
		e.event(slog.LevelError, "the sink panicked", it, err, slog.String(logkey.Stack, stack))
	}
	switch class {
	case waybill.ClassDone:
		if e.observe.Delivered != nil {
			e.observe.Delivered(observe.DeliveredInfo{Delivery: d, Took: took, Age: e.age(it)})
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
		e.observe.Failed(observe.FailedInfo{Delivery: d, Class: class, Err: err, Took: took})
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

// graceStep is the interval between attempts of an event without a handler
// during its grace period.
const graceStep = 5 * time.Second

// grace returns how long to wait for a handler that a deploy may add; 0 if the
// event has waited long enough.
func (e *engine) grace(it *item, err error) time.Duration {
	if e.cfg.UnknownGrace <= 0 || !errors.Is(err, waybill.ErrNoHandler) {
		return 0
	}
	left := e.cfg.UnknownGrace - e.age(it)
	return max(min(left, graceStep), 0)
}

// delivered lets the aggregate continue and queues the settlement of the event.
func (e *engine) delivered(it *item, settledBySink bool) {
	a := it.agg
	if a != nil {
		a.remove(it)
		a.unhold(it.id())
	}
	if settledBySink {
		it.lane.busy++ // settledItem decrements it
		e.settledItem(it)
		e.suspects.settled(it)
	} else {
		e.outcome(outcome{it: it, kind: kindDone})
	}
	if a != nil {
		e.advance(a)
	}
}

// unreachable parks or defers an event whose destination is unavailable.
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
	// The attempt was counted before the delivery: deferring the event takes
	// that back. The event stays suspect, because it was not delivered.
	d := e.noteDown(it, probe, err)
	it.attempts = it.attempt() - 1
	it.lane.remember(it)
	it.lane.giveBack(it)
	e.retry(it, d.wait(), err)
}

// retry defers an event after a failed delivery.
func (e *engine) retry(it *item, delay time.Duration, err error) {
	e.event(slog.LevelDebug, "event will be retried", it, err, slog.Duration(logkey.Delay, delay))
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

// deferEvent moves an event that is not in flight to delayed, without an
// attempt.
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

// deadLetterUndelivered dead-letters an event that was not delivered.
func (e *engine) deadLetterUndelivered(it *item, err error) {
	it.attempts = it.row.Attempts
	d := it.delivery(e.history, e.source)
	e.deadLetter(it, &d, err)
}

// deadLetter makes an event a dead letter. The aggregate continues only when
// the dead letter is on disk, or not at all under Block.
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
	e.event(slog.LevelError, "event is dead", it, err)
	if e.observe.Died != nil {
		e.observe.Died(observe.DiedInfo{Delivery: d, Err: err})
	}
	e.outcome(outcome{it: it, kind: kindDead, holds: block, text: err.Error()})
}

// chunker sizes the batches of a serial sink.
type chunker struct {
	each float64 // approximate time per event, in nanoseconds
}

const (
	// chunkTime is the target duration of one call of a serial sink: long
	// enough that the cost of handing over work is negligible, short enough
	// that other events do not wait.
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

// worthwhile is the minimum batch of a batching sink, if that many events are
// ready.
const worthwhile = 64

// batchSize returns the maximum number of events of the next call of the sink.
func (e *engine) batchSize() int {
	ready := e.depth()
	share := (ready + e.cfg.Workers - 1) / e.cfg.Workers
	if e.serial {
		return min(max(share, 1), e.chunk.size(), e.cfg.BatchSize)
	}
	return min(max(share, worthwhile), e.cfg.BatchSize)
}
