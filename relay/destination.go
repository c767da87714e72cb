package relay

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/outage"
)

// destination is somewhere that events go and that has been down. While it is, its events wait: a few in memory, to probe
// it with, the others in their table.
type destination struct {
	name   string
	paused bool
	// until is when the next probe may be sent; failures how many have failed.
	until    time.Time
	failures int
	since    time.Time // when it was found to be down
	last     error     // of the last probe
	// parked are the events that probes are made of, in turn: an event that calls its destination down by mistake must
	// not keep it down.
	parked  []*item
	probing bool
}

// maxParked is how many events of a destination that is down stay in memory.
const maxParked = 16

// wait returns how long it will be before the destination is probed again.
func (d *destination) wait() time.Duration {
	return max(time.Until(d.until), 10*time.Millisecond)
}

// wantsProbe reports whether another event should be kept in memory to probe with.
func (d *destination) wantsProbe() bool { return len(d.parked) < maxParked }

func (d *destination) unpark(it *item) {
	d.parked = slices.DeleteFunc(d.parked, func(p *item) bool { return p == it })
}

// destinationOf names an event's destination.
func (e *engine) destinationOf(ev *waybill.Event) string {
	if d, ok := e.sink.(DestinationSink); ok {
		return d.Destination(ev)
	}
	return ""
}

// down reports whether an event's destination is, and names it.
func (e *engine) down(ev *waybill.Event) (string, bool) {
	if len(e.dests) == 0 {
		return "", false
	}
	name := e.destinationOf(ev)
	d := e.dests[name]
	return name, d != nil && d.paused
}

// pause notes that a destination is down, and puts the event that met it back.
func (e *engine) pause(it *item, probe bool, err error) {
	e.park(it, e.noteDown(it, probe, err))
}

// noteDown notes that a destination is down. Only a probe, or the first to notice, moves the next probe on: what was under
// way at the same time says nothing new.
func (e *engine) noteDown(it *item, probe bool, err error) *destination {
	name := e.destinationOf(&it.row.Event)
	d := e.dests[name]
	if d == nil {
		d = &destination{name: name}
		e.dests[name] = d
	}
	if !d.paused {
		d.paused, d.failures, d.since = true, 0, time.Now()
		if len(e.dests) == 1 {
			e.downTold = d.since
		}
		e.log.Warn("waybill: destination is down", slog.String("destination", name), slog.String("error", err.Error()))
		if e.observe.Paused != nil {
			e.observe.Paused(name, true)
		}
	}
	if probe || d.failures == 0 {
		d.failures++
		d.last = err
		d.until = time.Now().Add(e.backoff.after(d.failures))
		d.probing = false
	}
	return d
}

// park lets an event wait for its destination, in memory if it can be of use there.
func (e *engine) park(it *item, d *destination) {
	it.dest = d.name
	if it.lane.gone || it.lane.draining {
		e.abandon(it)
		return
	}
	it.lane.giveBack(it)
	if len(d.parked) < maxParked {
		it.state = parked
		d.parked = append(d.parked, it)
		return
	}
	switch {
	case it.late:
		e.deferEvent(it, d.wait(), it.agg != nil, it.row.LastError)
	case it.agg != nil:
		it.state = waiting
		it.lane.skip(d.name, it.row.Seq, false)
		it.agg.waitsFor = d.name
		e.passAll(it.agg)
	case it.row.Seq == 0:
		// It came from memory: its row is found by the next reads.
		l := it.lane
		e.drop(it)
		l.wake = true
	default:
		it.state = waiting
		l, seq := it.lane, it.row.Seq
		e.drop(it)
		l.skip(d.name, seq, true)
	}
}

// passAll takes an aggregate out of memory whose destination is down.
func (e *engine) passAll(a *aggregate) {
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
		e.drop(it)
	}
}

// unparked lets an event be delivered that waited for its destination. The attempt of a suspect is counted first.
func (e *engine) unparked(it *item) {
	if it.suspect && !it.counted {
		it.state = waiting
		e.suspects.push(it)
		return
	}
	e.push(it)
}

// skip notes a row that was passed over because its destination is down.
func (l *lane) skip(dest string, seq int64, unordered bool) {
	if first, ok := l.skippedFrom[dest]; !ok || seq < first {
		l.skippedFrom[dest] = seq
	}
	if unordered {
		l.skipped[seq] = struct{}{}
	}
}

// wakeDestinations sends a probe to each destination whose time has come.
func (e *engine) wakeDestinations(now time.Time) {
	if e.stopping {
		return
	}
	e.tellDown(now)
	for name, d := range e.dests {
		if !d.paused || d.probing || now.Before(d.until) {
			continue
		}
		if len(d.parked) == 0 {
			// Nothing is left to probe with: read what was passed over, and see. If there is nothing, nobody here waits for it any more.
			delete(e.dests, name)
			e.log.Info("waybill: destination is not probed any more: no event waits for it here", slog.String("destination", name),
				slog.Duration("lasted", now.Sub(d.since)), slog.Int("failures", d.failures))
			e.tellPaused(name, false)
			e.resume(d)
			continue
		}
		it := d.parked[0]
		d.parked = slices.Delete(d.parked, 0, 1)
		d.probing, it.probe, it.dest = true, true, name
		e.unparked(it)
	}
}

// resumed notes that a delivery has got through to a destination.
func (e *engine) resumed(it *item) {
	if len(e.dests) == 0 {
		return
	}
	name := e.destinationOf(&it.row.Event)
	d := e.dests[name]
	if d == nil || !d.paused {
		return
	}
	delete(e.dests, name)
	e.log.Info("waybill: destination is back", slog.String("destination", name),
		slog.Duration("lasted", time.Since(d.since)), slog.Int("failures", d.failures))
	e.tellPaused(name, false)
	e.resume(d)
}

// maxNamed is how many destinations one line of the log names.
const maxNamed = 5

// tellDown says once a minute what is down, in one line: a broker that is away may have hundreds of destinations.
func (e *engine) tellDown(now time.Time) {
	if len(e.dests) == 0 || now.Before(e.downTold.Add(outage.Every)) {
		return
	}
	e.downTold = now
	down := make([]*destination, 0, len(e.dests))
	failures := 0
	for _, d := range e.dests {
		down = append(down, d)
		failures += d.failures
	}
	slices.SortFunc(down, func(a, b *destination) int {
		return cmp.Or(a.since.Compare(b.since), cmp.Compare(a.name, b.name))
	})
	names := make([]string, 0, maxNamed)
	for _, d := range down[:min(len(down), maxNamed)] {
		names = append(names, d.name)
	}
	first := down[0]
	e.log.Warn("waybill: destinations are still down", slog.Int("destinations", len(down)), slog.Any("names", names),
		slog.String("since", first.since.UTC().Format(time.RFC3339)), slog.Duration("lasting", now.Sub(first.since)),
		slog.Int("failures", failures), slog.String("error", first.last.Error()))
}

func (e *engine) tellPaused(name string, paused bool) {
	if e.observe.Paused != nil {
		e.observe.Paused(name, paused)
	}
}

// resume lets everything go that waited for a destination: what is parked, and, by reading again from there, what was
// passed over.
func (e *engine) resume(d *destination) {
	d.paused, d.probing = false, false
	for _, it := range d.parked {
		e.unparked(it)
	}
	d.parked = nil
	for _, l := range e.lanes.list {
		from, ok := l.skippedFrom[d.name]
		if !ok {
			continue
		}
		delete(l.skippedFrom, d.name)
		clear(l.skipped)
		for _, a := range l.aggs {
			if a.waitsFor == d.name && a.passed != 0 && len(a.holders) == 0 {
				// The main read comes by again.
				from = min(from, a.passed)
				a.passed, a.passedTo = 0, 0
			}
			if a.waitsFor == d.name {
				a.waitsFor = ""
				e.advance(a)
			}
		}
		l.read, l.rewound = min(l.read, from-1), e.readNo
		l.floor, l.whole = min(l.floor, l.read), 0
		l.backlog, l.wake, l.clogged = true, true, true
	}
	e.plan.busy()
}
