package sim

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
)

// sink is the receiver of a process's deliveries. What happens to the nth try
// of an event depends on the seed, the event and n.
type sink struct {
	w    *world
	p    *process
	copy int // 0, or the number of the sink in a fan-out, or of the destination
	to   *destinationPlan
	// inOrder stops an aggregate at its first failure in a batch.
	inOrder bool
}

var errSink = errors.New("sim: the sink failed")

// newSink returns the sink of a process.
func (p *process) newSink() waybill.Sink {
	return p.sinkOf(p.w.plan.sink, &sink{w: p.w, p: p})
}

// sinkOf returns a sink of a kind.
func (p *process) sinkOf(kind sinkKind, one *sink) waybill.Sink {
	switch kind {
	case destinationSink:
		return destined{one}
	case orderedSink:
		one.inOrder = true
		return ordered{destined{one}}
	case serialSink:
		return relay.SinkFunc(func(ctx context.Context, d waybill.Delivery) error {
			return one.Deliver(ctx, []waybill.Delivery{d})[0]
		})
	case fanSink:
		return relay.FanOut(destined{one}, destined{&sink{w: p.w, p: p, copy: 1}})
	case routeSink:
		sinks := []waybill.Sink{one, destined{&sink{w: p.w, p: p}}}
		return relay.Route(func(ev waybill.Event) waybill.Sink { return sinks[len(ev.Topic)%2] })
	case groupSink:
		return p.group
	default:
		return one
	}
}

// destined is a sink with several destinations.
type destined struct{ *sink }

// Destination implements [relay.DestinationSink].
func (destined) Destination(ev *waybill.Event) string { return ev.Topic }

// ordered is a sink that accepts several events of an aggregate in a batch.
type ordered struct{ destined }

// StopsAtFailure implements [relay.OrderedSink].
func (ordered) StopsAtFailure() {}

// Deliver implements [waybill.Sink].
func (s *sink) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	if len(batch) == 0 {
		return nil
	}
	first := s.w.tried(s, &batch[0])
	latency := s.latency()
	_ = s.p.sleep(context.Background(), latency/4+time.Duration(s.w.roll("sink latency", first.no, first.n)*float64(latency)))
	results := make([]error, len(batch), len(batch)+1)
	failed := make(map[*aggregate]bool)
	for i := range batch {
		at := first
		if i > 0 {
			at = s.w.tried(s, &batch[i])
		}
		if s.inOrder && at.ev != nil && at.ev.agg != nil && failed[at.ev.agg] {
			results[i] = fmt.Errorf("%w: an earlier one failed", errSink)
			continue
		}
		results[i] = s.one(ctx, &batch[i], at)
		if results[i] != nil && at.ev != nil && at.ev.agg != nil {
			failed[at.ev.agg] = true
		}
	}
	if s.happens(sinkShort, first) {
		return append(results, nil)
	}
	return results
}

// try is the nth delivery of an event to a sink.
type try struct {
	ev    *event
	no, n int
}

// tried counts a delivery.
func (w *world) tried(s *sink, d *waybill.Delivery) try {
	w.mu.Lock()
	defer w.mu.Unlock()
	ev := w.byID[d.ID]
	if ev == nil {
		w.fail("phantom", nil, "%v delivers the unknown event %v", s.p, d.ID)
		return try{}
	}
	ev.tries[s.copy]++
	return try{ev: ev, no: ev.no, n: ev.tries[s.copy]}
}

// one delivers one event, or has bad luck.
func (s *sink) one(ctx context.Context, d *waybill.Delivery, t try) error {
	if t.ev == nil {
		return errSink
	}
	if err := s.p.gate(ctx); err != nil {
		return err
	}
	if err := s.before(ctx, t); err != nil {
		return err
	}
	err := s.deliver(d, t)
	switch {
	case err != nil:
		return err
	case s.happens(sinkLies, t):
		return fmt.Errorf("%w after the delivery", errSink)
	case s.happens(sinkKills, t):
		s.w.lock(func(*world) { t.ev.kills++ })
		s.p.crash("after a delivery")
		return errCrashed
	}
	return nil
}

// before is what happens instead of a delivery, or in front of it.
func (s *sink) before(ctx context.Context, t try) error {
	w := s.w
	is := func(f fault) bool { return s.happens(f, t) }
	asked := time.Duration(w.roll("asked", t.no, t.n) * float64(w.plan.maxPut))
	switch {
	case s.p.isDead():
		return errCrashed
	case t.ev.poison && w.stormy.Load() && (s.to == nil || s.copy == t.no%w.copies() && w.plan.policyOf(t.ev.at[s.copy]).maxAttempts >= 0):
		w.tally.fault(sinkPoison)
		w.lock(func(*world) { t.ev.kills++ })
		s.p.crash("by poison")
		return errCrashed
	case s.down(t.ev):
		s.stall(t)
		return waybill.Unavailable(errSink)
	case is(sinkUnavailable):
		return waybill.Unavailable(errSink)
	case is(sinkRetry):
		return errSink
	case is(sinkRetryAfter):
		return waybill.RetryAfter(asked+1, errSink)
	case is(sinkPermanent):
		return waybill.Permanent(errSink)
	case is(sinkDefer):
		return waybill.Later(asked+1, errSink)
	case is(sinkPanic):
		panic("sim: the sink panics")
	case is(sinkHang):
		_ = s.p.sleep(ctx, time.Duration(w.roll("hang", t.no, t.n)*float64(time.Minute)))
		return errSink
	case s.hangs():
		_ = s.p.sleep(ctx, time.Minute)
		return errSink
	case is(sinkSlow):
		_ = s.p.sleep(ctx, time.Duration(w.roll("slow", t.no, t.n)*4*float64(max(s.to.divertAfter(), 50*time.Millisecond))))
	case is(sinkLate):
		_ = s.p.sleep(context.Background(), time.Duration(w.roll("late", t.no, t.n)*3*float64(w.plan.relay.Lease)))
	}
	return nil
}

// stalls is the share of deliveries to a destination that is down that do not
// get their answer while lanes move.
const stalls = 0.05

// stall delays the answer of a destination that is down, and restarts another
// node, so that the lane of the delivery may move meanwhile.
func (s *sink) stall(t try) {
	w := s.w
	if !w.stormy.Load() || len(w.nodes) < 2 || slices.Contains(w.plan.off, processStop) || w.roll("stall", t.no, t.n) >= stalls {
		return
	}
	w.tally.fault(processStop)
	w.lock(func(*world) {
		if other := w.nodes[(s.p.node.no+1)%len(w.nodes)].proc; other != nil {
			w.note(other, "stops", nil, 0, 0, "stall")
			other.cancel()
		}
	})
	_ = s.p.sleep(context.Background(), time.Duration(w.roll("stalled", t.no, t.n)*6*float64(w.plan.relay.Lease)))
}

// down reports whether the destination of an event is down.
func (s *sink) down(ev *event) bool {
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	if s.to != nil && (time.Now().Before(s.w.downTill[s.to.Name]) || time.Now().Before(s.w.downTill[s.to.Name+" "+ev.dest])) {
		return true
	}
	return s.to == nil && time.Now().Before(s.w.downTill[ev.dest])
}

// deliver hands the event over.
func (s *sink) deliver(d *waybill.Delivery, t try) error {
	if s.p.isDead() {
		return errCrashed
	}
	s.w.mu.Lock()
	defer s.w.mu.Unlock()
	s.w.got(s.p, d, t.ev, s.copy)
	return nil
}
