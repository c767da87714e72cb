package sim

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
)

// probe checks after the storm that the relays are as good as new: what is
// written now is delivered soon. The first round may have to wait for lanes to
// find their owners, the second may not.
func (w *world) probe() {
	c := &w.plan.relay
	soon := 2*max(c.PollInterval, 2*time.Second) + 100*w.plan.latency + 50*w.plan.sinkLatency + 10*time.Second + w.probeTime()
	for _, bound := range []time.Duration{soon + 4*c.Lease, soon} {
		var evs []*event
		for i := range w.nodes {
			evs = append(evs, w.writeProbes(w.nodes[i])...)
		}
		began := time.Now()
		for !w.over() && w.unsettled(evs) != nil {
			if time.Since(began) > bound {
				w.lock(func(w *world) {
					if ev := w.undelivered(evs); ev != nil {
						w.fail("progress", ev, "was written after the storm and is not delivered within %v", bound)
					}
				})
				return
			}
			_ = w.sleep(context.Background(), 100*time.Millisecond)
		}
		_ = w.sleep(context.Background(), 4*c.Lease)
	}
}

// stopInHaste checks after the storm that a process that is stopped during an
// acquisition releases the lanes that it gets.
func (w *world) stopInHaste() {
	n := w.nodes[0]
	var p *process
	w.lock(func(*world) {
		n.hasty = true
		if n.proc != nil {
			n.proc.cancel()
		}
	})
	for range 100 {
		if w.over() || w.sleep(context.Background(), w.plan.relay.Lease/10) != nil {
			return
		}
		w.lock(func(*world) {
			if p == nil && n.proc != nil && n.proc.hasty != nil {
				p = n.proc
			}
		})
		if p == nil {
			continue
		}
		select {
		case <-p.ended:
			w.lock(func(*world) { w.checkHaste(p) })
			return
		default:
		}
	}
	w.lock(func(*world) { n.hasty = false }) // another node has all lanes
}

// checkHaste checks the lanes that a process acquired while it was stopped. Mu
// is held.
func (w *world) checkHaste(p *process) {
	for _, lease := range p.hasty {
		if l := &w.lanes[lease.Lane]; l.epoch == lease.Epoch && (l.proc == p || l.dirty && !lease.Unclean) {
			w.fail("stop", nil, "%v was stopped during an acquisition, and lane %d is not released in good order", p, lease.Lane)
			return
		}
	}
}

// maxProbes is the number of aggregates that a node probes.
const maxProbes = 8

// writeProbes writes an event of some aggregates, and an unordered one.
func (w *world) writeProbes(n *node) []*event {
	w.mu.Lock()
	p := n.proc
	w.mu.Unlock()
	var evs []waybill.Event
	var models []*event
	s := w.stream("probe", n.no)
	for i := range min(len(w.groups), maxProbes) + 1 {
		var agg *aggregate
		if i > 0 {
			agg = w.groups[(i*7+n.no)%len(w.groups)]
		}
		ev := w.event(s, agg)
		evs, models = append(evs, ev), append(models, w.model(ev.ID))
	}
	err := p.box.InTx(p.ctx, func(ctx context.Context, tx Tx) error { return p.box.Write(ctx, tx, evs...) })
	if err != nil {
		return nil // the process ends at this moment
	}
	return models
}

func (w *world) model(id waybill.ID) *event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.byID[id]
}

// unsettled returns an event that is not delivered, or nil.
func (w *world) unsettled(evs []*event) *event {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.undelivered(evs)
}

// undelivered is unsettled for callers that hold the mutex.
func (w *world) undelivered(evs []*event) *event {
	for _, ev := range evs {
		if ev.state != delivered {
			return ev
		}
		for _, at := range ev.at {
			if at.state == pending {
				return at
			}
		}
	}
	return nil
}
