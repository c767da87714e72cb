package broker

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
)

// answer tells the broker what became of a batch.
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
			r.log.Debug("a message is put off", "event", v.it.delivery.ID, "class", v.class, "delay", v.delay, "attempt", v.it.in.attempt(), "error", v.err)
			r.deferMessage(v)
			continue
		}
		acks, done = append(acks, v.it.in), append(done, v.it)
	}
	if len(acks) > 0 {
		ctx, cancel := r.answering()
		if err := r.session.Ack(ctx, acks); err != nil {
			r.log.Warn("messages that are done could not be acknowledged and will come again", "messages", len(acks), "error", err)
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

// answering returns a context for an answer. It does not end with the source's: what is committed is to be acknowledged.
func (r *Receiver) answering() (context.Context, context.CancelFunc) {
	return context.WithTimeout(context.WithoutCancel(r.work), answerTimeout)
}

// signal says that a message has left. The receiver is locked.
func (r *Receiver) signal() {
	close(r.changed)
	r.changed = make(chan struct{})
}

// setAside moves a message to the dead-letter destination. It is acknowledged only when it is there.
func (r *Receiver) deadLetter(v verdict) error {
	ctx, cancel := r.answering()
	defer cancel()
	if err := r.session.DeadLetter(ctx, v.it.in, v.err); err != nil {
		r.log.Warn("a dead message could not be moved to the dead-letter destination and will be tried again", "event", v.it.delivery.ID, "error", err)
		return err
	}
	r.log.Error("a message was moved to the dead-letter destination", "event", v.it.delivery.ID, "type", v.it.delivery.Type,
		"topic", v.it.in.Topic, "attempt", v.it.in.attempt(), "reason", v.err)
	if r.cfg.Observe.DeadLettered != nil {
		r.cfg.Observe.DeadLettered(r.name, v.err)
	}
	return nil
}

// putOff keeps a message here until its delay is over, or gives it back to the broker for that long. In both cases its key waits for it.
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
	// First the line, then the broker: the message may come back before PutOff returns.
	behind := r.line.leave(v.it, due, due.Add(absenceGrace))
	r.signal()
	delay := v.delay
	if r.leaving() {
		delay = 0 // whoever comes next has to know of it before later messages of its key, and will be told that it is not due
	}
	r.mu.Unlock()
	if r.giver == nil {
		return // the session ends, and the broker delivers it again
	}
	r.giveBack(v.it, delay)
	for _, it := range behind {
		r.giveBack(it, delay)
	}
}

// givesBack reports whether a message is given back for a delay. One without a place of its own could not be put in front again, and what is away must
// have bounds, as what is here has. The receiver is locked.
func (r *Receiver) givesBack(it *item, delay time.Duration) bool {
	return r.giver != nil && delay > r.cfg.MaxHold && (it.in.Order != 0 || it.key == "") && r.line.away < r.cfg.MaxInFlight
}

// leaving reports whether the session ends, so that nothing can be kept here.
func (r *Receiver) leaving() bool {
	select {
	case <-r.stopping:
		return true
	default:
		return false
	}
}

// giveBack gives a message back to the broker.
func (r *Receiver) giveBack(it *item, delay time.Duration) {
	ctx, cancel := r.answering()
	defer cancel()
	if err := r.giver.NakWithDelay(ctx, it.in, delay); err != nil {
		r.log.Warn("a message could not be given back and will come again when the broker misses its answer", "event", it.delivery.ID, "error", err)
	}
}

// keep tells the broker, now and then, that what is here is being worked on.
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
			r.log.Warn("the broker could not be told that messages are being worked on", "messages", len(here), "error", err)
		}
		cancel()
	}
}
