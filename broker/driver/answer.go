package driver

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
)

// answer reports the results of a batch to the broker.
func (r *Receiver) answer(verdicts []verdict) {
	var acks []*Incoming
	var done []*item
	for _, v := range verdicts {
		switch v.class {
		case waybill.ClassDone:
		case waybill.ClassPermanent:
			if err := r.deadLetter(v); err != nil {
				r.deferMessage(v)
				continue
			}
		case waybill.ClassUnavailable, waybill.ClassDefer, waybill.ClassRetry:
			r.log.Debug("message deferred", "event_id", v.it.delivery.ID, "class", v.class, "delay", v.delay, "attempt", v.it.in.attempt(), "error", v.err)
			r.deferMessage(v)
			continue
		}
		acks, done = append(acks, v.it.in), append(done, v.it)
	}
	if len(acks) > 0 {
		ctx, cancel := r.answering()
		if err := r.session.Ack(ctx, acks); err != nil {
			r.log.Warn("acknowledging messages failed; the broker will redeliver them", "messages", len(acks), "error", err)
		}
		cancel()
	}
	r.mu.Lock()
	for _, it := range done {
		r.line.done(it)
	}
	r.signal()
	r.mu.Unlock()
}

// answering returns a context for an answer. The context outlives the source's
// context, because committed messages must still be acknowledged.
func (r *Receiver) answering() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(r.work), answerTimeout)
}

// signal wakes the goroutines that wait for a message to leave. The caller
// holds r.mu.
func (r *Receiver) signal() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// deadLetter moves a message to the dead-letter destination. The caller
// acknowledges the message only if that succeeded.
func (r *Receiver) deadLetter(v verdict) error {
	ctx, cancel := r.answering()
	defer cancel()
	if err := r.session.DeadLetter(ctx, v.it.in, v.err); err != nil {
		r.log.Warn("moving a message to the dead-letter destination failed; it will be retried", "event_id", v.it.delivery.ID, "error", err)
		return err
	}
	r.log.Error("message moved to the dead-letter destination", "event_id", v.it.delivery.ID, "event_type", v.it.delivery.Type,
		"topic", v.it.in.Topic, "attempt", v.it.in.attempt(), "error", v.err)
	if r.cfg.Observe.DeadLettered != nil {
		r.cfg.Observe.DeadLettered(observe.DeadLetteredInfo{Source: r.name, Err: v.err})
	}
	return nil
}

// deferMessage holds a message in memory until its delay is over, or returns it
// to the broker for that long. In both cases, later messages of the same key
// wait for it.
func (r *Receiver) deferMessage(v verdict) {
	due := time.Now().Add(v.delay)
	r.mu.Lock()
	if !r.givesBack(v.it, v.delay) && !r.leaving() {
		v.it.in.held++
		r.line.hold(v.it, due)
		r.signal()
		r.mu.Unlock()
		notify(r.wake)
		return
	}
	// The line is updated before the broker is called: the message may come
	// back before NakWithDelay returns.
	behind := r.line.leave(v.it, due, due.Add(absenceGrace))
	r.signal()
	delay := v.delay
	if r.leaving() {
		// The next owner must receive this message before later messages of its
		// key. The delay is not lost: the consumer reports that the message is
		// not due.
		delay = 0
	}
	r.mu.Unlock()
	if r.giver == nil {
		return // the session ends, and the broker redelivers the message
	}
	r.giveBack(v.it, delay)
	for _, it := range behind {
		r.giveBack(it, delay)
	}
}

// givesBack reports whether a message is returned to the broker for a delay. A
// message without a place of its own could not be put in front of later
// messages again, and the number of returned messages is bounded like the
// number of messages in memory. The caller holds r.mu.
func (r *Receiver) givesBack(it *item, delay time.Duration) bool {
	return r.giver != nil && delay > r.cfg.MaxHold && (it.in.Order != 0 || it.key == "") && r.line.away < r.cfg.MaxInFlight
}

// leaving reports whether the session is ending, so that no message can be held
// in memory.
func (r *Receiver) leaving() bool {
	select {
	case <-r.stopping:
		return true
	default:
		return false
	}
}

// giveBack returns a message to the broker.
func (r *Receiver) giveBack(it *item, delay time.Duration) {
	ctx, cancel := r.answering()
	defer cancel()
	if err := r.giver.NakWithDelay(ctx, it.in, delay); err != nil {
		r.log.Warn("returning a message to the broker failed; the broker will redeliver it after its deadline", "event_id", it.delivery.ID, "error", err)
	}
}

// keep periodically extends the acknowledgment deadline of all messages in
// flight.
func (r *Receiver) keep(k AckExtender) {
	tick := time.NewTicker(k.ExtendInterval())
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
		case <-r.kept:
			return
		}
		var here []*Incoming
		r.mu.Lock()
		r.line.each(func(it *item) { here = append(here, it.in) })
		r.mu.Unlock()
		if len(here) == 0 {
			continue
		}
		ctx, cancel := r.answering()
		if err := k.ExtendAck(ctx, here); err != nil {
			r.log.Warn("extending the deadline of messages failed", "messages", len(here), "error", err)
		}
		cancel()
	}
}
