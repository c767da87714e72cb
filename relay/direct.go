package relay

import (
	"cmp"
	"context"
	"errors"
	"log/slog"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/relay/internal/ledger"
	"github.com/waybillhq/waybill/store/driver"
)

// routing holds which destinations of an event are called, and to the backlogs
// of which the event is copied: bits of targets.
type routing struct{ direct, divert uint32 }

// plan decides for each event of a job of the outbox which destinations receive
// it. Events that need no call are finished at once, and leave the job.
func (e *engine) plan(j *job, now time.Time) {
	if e.targets == nil {
		return
	}
	kept := j.items[:0]
	for _, it := range j.items {
		r := e.route(it, now)
		if r.direct == 0 {
			d := it.Delivery()
			e.finishRouted(it, &d, r, nil, now)
			continue
		}
		kept, j.routes = append(kept, it), append(j.routes, r)
	}
	clear(j.items[len(kept):])
	j.items = kept
}

// route decides which destinations receive an event.
func (e *engine) route(it *ledger.Item, now time.Time) routing {
	var r routing
	ev := &it.Row().Event
	for _, t := range e.targets {
		if !t.takes(ev) {
			continue
		}
		l := t.laneOf(it.Place().Lease)
		if l == nil { // the lane was lost, which the ledger knows
			r.direct |= t.bit
			continue
		}
		if !l.behind && t.rate.room(1, now) == 0 {
			t.waitsForRate(now)
			t.allBehind("it receives more events than its rate allows", now)
		}
		if l.behind {
			l.divert(it.Row().Seq)
			r.divert |= t.bit
		} else {
			l.calls++
			r.direct |= t.bit
		}
	}
	if r == (routing{}) && e.observe.Unrouted != nil {
		e.observe.Unrouted(observe.UnroutedInfo{Event: ev})
	}
	return r
}

// answer is what a destination returned for its part of a job.
type answer struct {
	target  *target
	index   []int // of the events in the job
	batch   []waybill.Delivery
	results []error
	took    time.Duration
}

// deliverDirect calls the sinks of a job's destinations concurrently, and waits
// until all have returned. It does not wait for a destination that takes
// DivertAfter longer than the others. Destinations that are not called wait,
// too: for the worker, and for copies of the job's events.
func (e *engine) deliverDirect(j *job) {
	parts := e.parts(j)
	answers := make(chan answer, len(parts))
	if len(e.targets) == 1 {
		j.answers = append(j.answers, parts[0].call(j.ctx))
		return
	}
	ctx, stop := j.ctx, j.stop // the job is used again while a late call is under way
	for _, p := range parts {
		go func() { answers <- p.call(ctx) }()
	}
	var late <-chan time.Time
	if len(parts) < len(e.targets) {
		late = e.patience(parts, nil)
	}
	for range parts {
		select {
		case a := <-answers:
			j.answers = append(j.answers, a)
			late = e.patience(parts, j.answers)
		case <-late:
			j.late = true
			go e.collectLate(answers, len(parts)-len(j.answers), stop)
			return
		}
	}
}

// call calls the sink of a part's destination.
func (a answer) call(ctx context.Context) answer {
	began := time.Now()
	a.results = a.target.queue.call(ctx, a.batch)
	a.took = time.Since(began)
	return a
}

// patience returns a channel that receives when the destinations that have not
// answered have taken too long; nil if one of them has no time limit.
func (e *engine) patience(parts, answers []answer) <-chan time.Time {
	var longest time.Duration
	for i := range parts {
		t := parts[i].target
		if slices.ContainsFunc(answers, func(a answer) bool { return a.target == t }) {
			continue
		}
		if t.DivertAfter < 0 {
			return nil
		}
		longest = max(longest, t.DivertAfter)
	}
	if longest == 0 {
		return nil // all have answered
	}
	return time.After(longest)
}

// collectLate passes answers that came too late to the engine. It ends the
// context of suspects after the last one.
func (e *engine) collectLate(answers <-chan answer, n int, stop context.CancelCauseFunc) {
	if stop != nil {
		defer stop(nil)
	}
	for range n {
		select {
		case a := <-answers:
			select {
			case e.lateAnswers <- a:
			case <-e.ended:
				return
			}
		case <-e.ended:
			return
		}
	}
}

// parts splits a job by destination. The parts do not share memory with the
// job, which is used again while a late call is under way.
func (e *engine) parts(j *job) []answer {
	var parts []answer
	for _, t := range e.targets {
		p := answer{target: t}
		for i := range j.batch {
			if j.routes[i].direct&t.bit != 0 {
				d := j.batch[i]
				d.Claim = nil // a sink must not settle for the others
				p.index, p.batch = append(p.index, i), append(p.batch, d)
			}
		}
		if p.batch != nil {
			parts = append(parts, p)
		}
	}
	return parts
}

// finishDirect evaluates the answers of the destinations of a job.
func (e *engine) finishDirect(j *job, now time.Time) {
	refused := make([][]driver.Diversion, len(j.items))
	has := make([]uint32, len(j.items))
	diverts := make([]uint32, len(j.items))
	canceled := make([]bool, len(j.items))
	for i := range j.answers {
		e.evaluate(j, &j.answers[i], func(at int, d *driver.Diversion, stop bool) {
			has[at] |= j.answers[i].target.bit
			canceled[at] = canceled[at] || stop
			if d != nil {
				refused[at] = append(refused[at], *d)
				diverts[at] |= j.answers[i].target.bit
			}
		}, now)
	}
	for i, it := range j.items {
		r := j.routes[i]
		ended := has[i]
		if j.lapsed { // nothing was called
			ended = r.direct
		}
		e.callsEnded(&j.batch[i], ended, now)
		if j.lapsed || canceled[i] {
			e.undiverted(it, r.divert|diverts[i], now)
			e.main.ledger.Undelivered(it, now)
			continue
		}
		for _, t := range e.targets {
			if late := r.direct &^ has[i]; late&t.bit != 0 {
				t.lateDelivery(it, now)
				refused[i] = append(refused[i], driver.Diversion{Destination: t.number, ID: it.Row().ID})
			}
		}
		e.finishRouted(it, &j.batch[i], r, refused[i], now)
	}
}

// lateDelivery notes that an event is diverted while the destination's call is
// under way.
func (t *target) lateDelivery(it *ledger.Item, now time.Time) {
	if l := t.laneOf(it.Place().Lease); l != nil {
		l.divert(it.Row().Seq)
	}
	t.allBehind("it is slow", now)
}

// callsEnded notes that the direct calls of destinations with an event have
// ended.
func (e *engine) callsEnded(d *waybill.Delivery, direct uint32, now time.Time) {
	for _, t := range e.targets {
		if direct&t.bit != 0 {
			t.callEnded(d, now)
		}
	}
}

// callEnded notes that a direct call with an event has ended. The lane may have
// been lost, and acquired again, since the call began.
func (t *target) callEnded(d *waybill.Delivery, now time.Time) {
	l := t.lanes[d.Position.Lane]
	if l == nil || l.lease.Epoch != d.Position.Epoch {
		return
	}
	l.calls--
	t.start(l, now)
}

// evaluate passes on what became of each event of a destination's part: nothing
// if the destination has it, a diversion otherwise. stop means that this relay
// canceled the delivery.
func (e *engine) evaluate(j *job, a *answer, note func(at int, d *driver.Diversion, stop bool), now time.Time) {
	t := a.target
	wrong := len(a.results) != len(a.batch)
	if wrong {
		e.log.Error("the sink returned a wrong number of results", slog.String(logkey.Destination, t.Name),
			slog.String(logkey.Error, errResults(len(a.results), len(a.batch)).Error()))
	}
	var failed failures
	for i, at := range a.index {
		var err error
		if wrong {
			err = waybill.Unavailable(errResults(len(a.results), len(a.batch)))
		} else {
			err = a.results[i]
		}
		it := j.items[at]
		behind := t.queue.ordered && failed.note(&it.Row().Event, err)
		switch {
		case refuses(err) && j.ended:
			note(at, nil, true)
		case isNotCalled(err):
			t.divertLane(it, err.Error(), now)
			note(at, &driver.Diversion{Destination: t.number, ID: it.Row().ID}, false)
		case behind:
			t.divertLane(it, "an earlier event of the aggregate failed", now)
			note(at, &driver.Diversion{Destination: t.number, ID: it.Row().ID}, false)
		default:
			note(at, t.judge(it, &a.batch[i], err, a.took, now), false)
		}
	}
}

// judge decides what becomes of an event after a direct delivery: nil if the
// destination has it.
func (t *target) judge(it *ledger.Item, d *waybill.Delivery, err error, took time.Duration, now time.Time) *driver.Diversion {
	e := t.e
	class, delay := waybill.Classify(err)
	t.adapt(err, now)
	if class == waybill.ClassDone {
		t.queue.delivered(it, took)
		e.counts.delivered(t.Name, d.Type, now)
		t.breaker.passed()
		if e.observe.Delivered != nil {
			e.observe.Delivered(observe.DeliveredInfo{Delivery: d, Took: took, Age: e.main.ledger.Age(it, now), Destination: t.Name})
		}
		return nil
	}
	out := driver.Diversion{Destination: t.number, ID: it.Row().ID, Attempts: it.Attempt() - 1, Error: err.Error()}
	if class == waybill.ClassPermanent && errors.Is(err, waybill.ErrNoHandler) && t.UnknownGrace > 0 {
		class, delay = waybill.ClassDefer, 0 // the ledger of the backlog waits for a handler
	}
	why := "an event failed"
	switch class {
	case waybill.ClassUnavailable:
		out.Error, why = "", "it is unavailable"
	case waybill.ClassDefer:
		out.Delay = delay
	case waybill.ClassRetry:
		out.Attempts++
		out.Final = t.MaxAttempts > 0 && out.Attempts >= t.MaxAttempts
		if !out.Final { // a copy that waits would be delivered again when it is due
			out.Delay = cmp.Or(delay, t.retry(out.Attempts))
		}
	case waybill.ClassPermanent:
		out.Attempts++
		out.Final = true
	case waybill.ClassDone:
	}
	if stack := panicStack(err); stack != "" {
		t.queue.event(slog.LevelError, "the sink panicked", it, err, slog.String(logkey.Stack, stack))
	}
	if !out.Final { // else the ledger of the backlog reports the dead letter
		e.counts.failed(t.Name, d.Type, now)
		if e.observe.Failed != nil {
			e.observe.Failed(observe.FailedInfo{Delivery: d, Class: class, Err: err, Took: took, Destination: t.Name})
		}
	}
	if class == waybill.ClassUnavailable {
		t.allBehind(why, now)
	}
	t.divertLane(it, why, now)
	return &out
}

// divertLane makes the lane of an event behind, and counts the event as one
// that will be copied.
func (t *target) divertLane(it *ledger.Item, why string, now time.Time) {
	if l := t.laneOf(it.Place().Lease); l != nil {
		l.divert(it.Row().Seq)
		t.fallBehind(l, why, now)
	}
}

// finishRouted hands the result of an event to the ledger of the outbox: the
// event is done, and its row is copied to the backlogs of the destinations that
// have not received it.
func (e *engine) finishRouted(it *ledger.Item, d *waybill.Delivery, r routing, refused []driver.Diversion, now time.Time) {
	for _, t := range e.targets {
		if r.divert&t.bit != 0 {
			refused = append(refused, driver.Diversion{Destination: t.number, ID: it.Row().ID})
		}
	}
	it.Divert(refused)
	e.main.ledger.DeliveryEnded(it, d, nil, now)
}

// undiverted takes back that an event will be copied to backlogs.
func (e *engine) undiverted(it *ledger.Item, divert uint32, now time.Time) {
	for _, t := range e.targets {
		if divert&t.bit == 0 {
			continue
		}
		if l := t.laneOf(it.Place().Lease); l != nil {
			l.diverted(it.Row().Seq)
			t.queue.ledger.Appended(it.Lane(), 0, now)
		}
	}
}

// diverted notes that the copies of a settlement are committed.
func (e *engine) diverted(s *ledger.Settlement, now time.Time) {
	if e.targets == nil {
		return
	}
	for place, number := range s.Diverted() {
		for _, t := range e.targets {
			l := t.laneOf(place.Lease)
			if t.number != number || l == nil {
				continue
			}
			l.diverted(place.Seq)
			l.copied = now
			t.queue.ledger.Appended(place.Lease.Lane, place.Seq, now)
		}
	}
}

// finishLate takes the answer of a call whose events were diverted meanwhile.
func (e *engine) finishLate(a answer, now time.Time) {
	t := a.target
	for i := range a.batch {
		d := &a.batch[i]
		if len(a.results) == len(a.batch) {
			t.endedLate(d, a.results[i], a.took, now)
		}
		t.callEnded(d, now)
	}
}

// endedLate takes the result of an event that was diverted during the call. A
// failure counts no attempt: the event is delivered from the backlog.
func (t *target) endedLate(d *waybill.Delivery, err error, took time.Duration, now time.Time) {
	hooks := &t.e.observe
	if !refuses(err) {
		t.received(d.ID)
		t.e.counts.delivered(t.Name, d.Type, now)
		if hooks.Delivered != nil {
			hooks.Delivered(observe.DeliveredInfo{Delivery: d, Took: took, Destination: t.Name})
		}
		return
	}
	if isNotCalled(err) {
		return
	}
	t.e.counts.failed(t.Name, d.Type, now)
	if class, _ := waybill.Classify(err); hooks.Failed != nil {
		hooks.Failed(observe.FailedInfo{Delivery: d, Class: class, Err: err, Took: took, Destination: t.Name})
	}
}
