package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
)

// destination is a destination that was found unavailable. While it is
// unavailable its events wait: a few in memory, as probes, the others in their
// table.
type destination struct {
	name string
	// until is when the next probe may be sent; failures is the number of
	// failed probes.
	until    time.Time
	failures int
	since    time.Time // when the destination was found unavailable
	last     error     // the error of the last probe
	// parked are the events that serve as probes, in turn: an event that
	// reports its destination as unavailable by mistake must not keep the
	// destination paused.
	parked  []*Item
	probing bool
}

// maxParked is the number of events of an unavailable destination that stay in
// memory.
const maxParked = 16

// parkedShare: the size of the events of an unavailable destination that stay
// in memory is at most about one part in parkedShare of MaxBytes.
const parkedShare = 8

// minProbeDelay is the minimum delay of an event that waits for a probe.
const minProbeDelay = 10 * time.Millisecond

// wait returns the time until the destination is probed again.
func (d *destination) wait(now time.Time) time.Duration {
	return max(d.until.Sub(now), minProbeDelay)
}

// wantsProbe reports whether another event should stay in memory as a probe.
func (g *Ledger) wantsProbe(d *destination) bool {
	bytes := 0
	for _, it := range d.parked {
		bytes += it.size
	}
	return len(d.parked) == 0 || len(d.parked) < maxParked && (g.cfg.MaxBytes <= 0 || bytes < g.cfg.MaxBytes/parkedShare)
}

func (d *destination) unpark(it *Item) {
	d.parked = slices.DeleteFunc(d.parked, func(p *Item) bool { return p == it })
}

// destinationOf returns the name of an event's destination.
func (g *Ledger) destinationOf(ev *waybill.Event) string {
	if g.cfg.Destination == nil {
		return ""
	}
	return g.cfg.Destination(ev)
}

// down reports whether an event's destination is unavailable, and returns its
// name.
func (g *Ledger) down(ev *waybill.Event) (string, bool) {
	if len(g.dests) == 0 {
		return "", false
	}
	name := g.destinationOf(ev)
	return name, g.dests[name] != nil
}

// noteDown notes that a destination is unavailable. Only a probe, or the first
// failure, moves the next probe: failures of deliveries that were in flight at
// the same time add no information.
func (g *Ledger) noteDown(it *Item, probe bool, err error) *destination {
	name := g.destinationOf(&it.row.Event)
	d := g.dests[name]
	if d == nil {
		d = &destination{name: name, since: g.now}
		g.dests[name] = d
		g.facts = append(g.facts, Down{Destination: name, Err: err, First: len(g.dests) == 1})
	}
	if probe || d.failures == 0 {
		d.failures++
		d.last = err
		d.until = g.now.Add(g.cfg.Backoff(d.failures))
		d.probing = false
	}
	return d
}

// park lets an event wait for its destination, in memory if it can serve as a
// probe.
func (g *Ledger) park(it *Item, d *destination) {
	it.dest = d.name
	if it.lane.gone || it.lane.draining {
		g.abandon(it)
		return
	}
	it.lane.suspicion.giveBack(it)
	if g.wantsProbe(d) {
		g.move(it, parked)
		d.parked = append(d.parked, it)
		if it.agg != nil {
			g.passRest(it.agg, d)
		}
		return
	}
	switch {
	case it.late:
		g.deferEvent(it, d.wait(g.now), it.agg != nil, it.row.LastError)
	case it.agg != nil:
		g.move(it, waiting)
		it.lane.skip(d.name, it.row.Seq, false)
		it.agg.waits, it.agg.waitsFor = true, d.name
		g.passAll(it.agg)
	case it.row.Seq == 0:
		// The event came from memory: the next reads find its row.
		g.drop(it)
		it.lane.scan.woken = true
	default:
		g.drop(it)
		it.lane.skip(d.name, it.row.Seq, true)
	}
}

// passAll removes an aggregate whose destination is unavailable from memory.
func (g *Ledger) passAll(a *aggregate) {
	for _, it := range slices.Clone(a.queue) {
		if it.state == inFlight || it.state == finished {
			continue
		}
		a.remove(it)
		if it.late {
			a.lateWaiting = true
		} else {
			a.pass(it.row.Seq)
		}
		g.dropOrUncount(it)
	}
}

// passRest removes the events of an aggregate from memory that wait behind an
// event whose destination is unavailable: they would take the room of events of
// other destinations.
func (g *Ledger) passRest(a *aggregate, d *destination) {
	for _, it := range slices.Clone(a.queue[1:]) {
		if it.state != waiting || g.suspects.has(it) {
			continue
		}
		a.remove(it)
		if it.late {
			a.lateWaiting = true
		} else {
			a.pass(it.row.Seq)
			a.waits, a.waitsFor = true, d.name
			a.lane.skip(d.name, it.row.Seq, false)
		}
		g.drop(it)
	}
}

// unparked lets an event be delivered that waited for its destination. The
// attempt of a suspect is counted first.
func (g *Ledger) unparked(it *Item) {
	if !it.isNext() {
		g.unprobe(it)
		g.move(it, waiting) // another event of its aggregate comes first
		return
	}
	if it.suspect && !it.counted {
		g.move(it, waiting)
		g.suspects.push(it)
		return
	}
	g.enqueue(it)
}

// unprobe notes that a probe had no result.
func (g *Ledger) unprobe(it *Item) {
	if it.probe {
		it.probe = false
		if d := g.dests[it.dest]; d != nil {
			d.probing = false
		}
	}
}

// Probe lets each destination be probed whose time has come.
func (g *Ledger) Probe(now time.Time) {
	g.now = now
	if g.stopping || len(g.dests) == 0 {
		return
	}
	var due []*destination
	for _, d := range g.dests {
		if !d.probing && !now.Before(d.until) {
			due = append(due, d)
		}
	}
	slices.SortFunc(due, func(a, b *destination) int { return cmp.Compare(a.name, b.name) })
	for _, d := range due {
		if len(d.parked) == 0 {
			// No event is left to probe with: read the rows that were passed
			// over. If there are none, no event here waits for the destination.
			g.resume(d, true)
			continue
		}
		it := d.parked[0]
		d.parked = slices.Delete(d.parked, 0, 1)
		d.probing, it.probe, it.dest = true, true, d.name
		g.unparked(it)
	}
}

// ProbeNow lets every unavailable destination be probed at once.
func (g *Ledger) ProbeNow(now time.Time) {
	g.now = now
	for _, d := range g.dests {
		if d.until.After(now) {
			d.until = now
		}
	}
}

// reached notes that a delivery has reached its destination.
func (g *Ledger) reached(it *Item) {
	if len(g.dests) == 0 {
		return
	}
	if d := g.dests[g.destinationOf(&it.row.Event)]; d != nil {
		g.resume(d, false)
	}
}

// resume releases all events that waited for a destination: the parked ones
// and, by reading again from there, the rows that were passed over.
func (g *Ledger) resume(d *destination, abandoned bool) {
	delete(g.dests, d.name)
	g.facts = append(g.facts, Back{Destination: d.name, For: g.now.Sub(d.since), Failures: d.failures, Abandoned: abandoned})
	for _, it := range d.parked {
		g.unparked(it)
	}
	d.parked = nil
	for _, l := range g.lanes.list {
		if from, ok := l.skippedFrom[d.name]; ok {
			g.resumeLane(l, d.name, from)
		}
	}
	g.plan.busy()
}

// resumeLane lets the rows of a lane be read that were passed over because of a
// destination, from the first of them on.
func (g *Ledger) resumeLane(l *lane, dest string, from int64) {
	delete(l.skippedFrom, dest)
	clear(l.skipped)
	var waited []*aggregate
	for _, a := range l.aggs {
		if a.waits && a.waitsFor == dest {
			waited = append(waited, a)
		}
	}
	slices.SortFunc(waited, byKey)
	for _, a := range waited {
		if a.passed != 0 && len(a.holders) == 0 {
			// The fast read covers these rows again.
			from = min(from, a.passed)
			a.passed, a.passedTo = 0, 0
		}
		a.waits, a.waitsFor = false, ""
		g.advance(a)
	}
	l.scan.moveBack(from-1, g.readNo)
}

// DownState describes an unavailable destination.
type DownState struct {
	Destination string
	Since       time.Time
	NextProbe   time.Time
	Failures    int
	Err         error
}

// Unavailable returns the unavailable destinations, the longest unavailable
// first.
func (g *Ledger) Unavailable() []DownState {
	out := make([]DownState, 0, len(g.dests))
	for _, d := range g.dests {
		out = append(out, DownState{Destination: d.name, Since: d.since, NextProbe: d.until, Failures: d.failures, Err: d.last})
	}
	slices.SortFunc(out, func(a, b DownState) int {
		return cmp.Or(a.Since.Compare(b.Since), cmp.Compare(a.Destination, b.Destination))
	})
	return out
}

// AnyUnavailable reports whether a destination is unavailable.
func (g *Ledger) AnyUnavailable() bool { return len(g.dests) > 0 }
