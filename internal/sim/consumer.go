package sim

import (
	"container/heap"
	"context"
	"errors"
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/store/driver"
)

// groupName is the name of the consumer group.
const groupName = "group"

// newGroup returns the consumer group of a process, with real records.
func (p *process) newGroup(roles driver.Roles[Tx]) (*inbox.Group[Tx], error) {
	in, err := inbox.New(roles, inbox.Config{Logger: slog.New(slog.DiscardHandler)})
	if err != nil {
		return nil, err
	}
	g, err := in.Group(groupName, inbox.Options{
		Lease: p.w.plan.relay.Lease, MaxAttempts: 4, BackoffBase: time.Second, BackoffMax: 10 * time.Second,
	})
	if err != nil {
		return nil, err
	}
	for _, kind := range []string{"thing", ""} {
		g.Handle(kind, "Happened", p.handle)
	}
	return g, nil
}

// handle is the handler of the group: its effect commits with its transaction.
func (p *process) handle(ctx context.Context, tx Tx, ev waybill.Event) error {
	w := p.w
	var t try
	w.lock(func(*world) {
		if m := w.byID[ev.ID]; m != nil {
			m.handled++
			t = try{ev: m, no: m.no, n: m.handled}
		}
	})
	if t.ev == nil {
		return errSink
	}
	latency := float64(w.plan.sinkLatency)
	if err := p.sleep(ctx, time.Duration(w.roll("handler", t.no, t.n)*latency)+1); err != nil {
		return err
	}
	// A repeated event is slow more often: that is when a claim is overtaken.
	if w.happens(handlerSlow, t.no, t.n) || t.n > 1 && w.happens(handlerSlow, t.no, -t.n) {
		_ = p.sleep(context.Background(), time.Duration(w.roll("slow", t.no, t.n)*3*float64(w.plan.relay.Lease)))
	}
	if w.happens(handlerFails, t.no, t.n) {
		return errSink
	}
	x := w.server.sessionOf(tx)
	if x == nil {
		return errLost
	}
	w.lock(func(*world) { x.effects = append(x.effects, func() { w.effect(p, t.ev) }) })
	if w.happens(handlerKills, t.no, t.n) {
		p.crash("in a handler")
		return errCrashed
	}
	return nil
}

// effect notes a committed effect. Mu is held.
func (w *world) effect(p *process, ev *event) {
	w.note(p, "effect", ev, int64(ev.effects), 0, "")
	w.tally.effects.Add(1)
	ev.effects++
	if ev.effects > 1 {
		w.fail("effects", ev, "has %d effects", ev.effects)
	}
	if ev.state == written || ev.state == rolledBack {
		w.fail("phantom", ev, "has an effect; it is %v", ev.state)
	}
	if w.plan.sink == groupSink {
		w.gotFirst(p, ev, 0)
	}
}

// broker is a queue between the sink and the consumers. It delivers at least
// once, in any order.
type broker struct {
	due   []*message
	later messages // not due when they were added
	busy  int      // messages with consumers
}

// message is an event in the broker.
type message struct {
	ev    waybill.Event
	after time.Time
	tries int
}

func (b *broker) add(m *message) { heap.Push(&b.later, m) }

// empty reports whether no message waits.
func (b *broker) empty() bool { return len(b.due)+len(b.later) == 0 }

// next removes and returns a message that is due, in no particular order; nil
// if there is none.
func (b *broker) next(now time.Time) *message {
	for len(b.later) > 0 && !b.later[0].after.After(now) {
		b.due = append(b.due, heap.Pop(&b.later).(*message))
	}
	if len(b.due) == 0 {
		return nil
	}
	m, last := b.due[0], len(b.due)-1
	b.due[0] = b.due[last]
	b.due = b.due[:last]
	return m
}

// messages is a heap: the earliest first.
type messages []*message

func (q messages) Len() int           { return len(q) }
func (q messages) Less(i, j int) bool { return q[i].after.Before(q[j].after) }
func (q messages) Swap(i, j int)      { q[i], q[j] = q[j], q[i] }

// Push implements [heap.Interface].
func (q *messages) Push(x any) { *q = append(*q, x.(*message)) }

// Pop implements [heap.Interface].
func (q *messages) Pop() any {
	last := len(*q) - 1
	m := (*q)[last]
	*q = (*q)[:last]
	return m
}

// publish is the sink of a broker. Mu is held.
func (w *world) publish(ev waybill.Event, m *event) {
	after := time.Now()
	if w.happens(messageReordered, m.no, m.got[0]) {
		after = after.Add(time.Duration(w.roll("reordered", m.no) * float64(w.plan.maxPut)))
	}
	w.broker.add(&message{ev: ev, after: after})
	if w.happens(messageTwice, m.no, m.got[0]) {
		// At once, or when the first consumer has had it for too long.
		after = after.Add(time.Duration(max(w.roll("twice", m.no)*3-1, 0) * float64(w.plan.relay.Lease)))
		w.broker.add(&message{ev: ev, after: after})
	}
}

// take returns a message that is due.
func (w *world) take() *message {
	w.mu.Lock()
	defer w.mu.Unlock()
	m := w.broker.next(time.Now())
	if m != nil {
		w.broker.busy++
		w.repeat(m)
	}
	return m
}

// maxRepeats limits the copies of a message. A copy may be repeated too: in a
// long storm their number would grow without bound.
const maxRepeats = 4

// repeat lets a message that was delivered before come again while its consumer
// has it. Mu is held.
func (w *world) repeat(m *message) {
	ev := w.byID[m.ev.ID]
	if m.tries == 0 || ev == nil || ev.repeats == maxRepeats || !w.happens(messageTwice, ev.no, -m.tries) {
		return
	}
	ev.repeats++
	after := time.Now().Add(time.Duration(w.roll("again", ev.no, m.tries) * 2 * float64(w.plan.relay.Lease)))
	w.broker.add(&message{ev: m.ev, after: after, tries: m.tries})
}

// consume takes messages until the process ends.
func (p *process) consume(g *inbox.Group[Tx]) {
	w := p.w
	for p.sleep(p.ctx, 20*time.Millisecond) == nil {
		for !p.isDead() {
			m := w.take()
			if m == nil {
				break
			}
			d := waybill.Delivery{Event: m.ev, Attempt: 1, Uncounted: true, Suspect: m.tries > 0}
			err := g.Deliver(p.ctx, []waybill.Delivery{d})[0]
			w.acknowledge(p, m, err)
		}
	}
}

// acknowledge removes a message that is done, and delivers any other one again.
func (w *world) acknowledge(p *process, m *message, err error) {
	class, delay := waybill.Classify(err)
	w.lock(func(*world) {
		w.broker.busy--
		if ev := w.byID[m.ev.ID]; ev != nil {
			w.note(p, "consumed", ev, int64(m.tries), 0, class.String())
		}
		if class == waybill.ClassDone && !p.dead {
			if ev := w.byID[m.ev.ID]; ev != nil && ev.effects == 0 && !errors.Is(err, errCrashed) {
				w.fail("effects", ev, "is acknowledged by %v without its effect", p)
			}
			return
		}
		if class == waybill.ClassPermanent && w.stormy.Load() {
			delay = time.Second // the message waits for an operator
		}
		m.tries++
		m.after = time.Now().Add(max(delay, 50*time.Millisecond))
		w.broker.add(m)
	})
}
