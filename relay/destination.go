package relay

import (
	"cmp"
	"log/slog"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/internal/outage"
	"github.com/waybillhq/waybill/observe"
)

// destination is a destination that was found unavailable. While it is
// unavailable its events wait: a few in memory, as probes, the others in their
// table.
type destination struct {
	name   string
	paused bool
	// until is when the next probe may be sent; failures is the number of
	// failed probes.
	until    time.Time
	failures int
	since    time.Time // when the destination was found unavailable
	last     error     // the error of the last probe
	// parked are the events that serve as probes, in turn: an event that
	// reports its destination as unavailable by mistake must not keep the
	// destination paused.
	parked  []*item
	probing bool
}

// maxParked is the number of events of an unavailable destination that stay in
// memory.
const maxParked = 16

// wait returns the time until the destination is probed again.
func (d *destination) wait() time.Duration {
	return max(time.Until(d.until), 10*time.Millisecond)
}

// wantsProbe reports whether another event should stay in memory as a probe.
func (d *destination) wantsProbe() bool { return len(d.parked) < maxParked }

func (d *destination) unpark(it *item) {
	d.parked = slices.DeleteFunc(d.parked, func(p *item) bool { return p == it })
}

// destinationOf returns the name of an event's destination.
func (e *engine) destinationOf(ev *waybill.Event) string {
	if d, ok := e.sink.(DestinationSink); ok {
		return d.Destination(ev)
	}
	return ""
}

// down reports whether an event's destination is unavailable, and returns its
// name.
func (e *engine) down(ev *waybill.Event) (string, bool) {
	if len(e.dests) == 0 {
		return "", false
	}
	name := e.destinationOf(ev)
	d := e.dests[name]
	return name, d != nil && d.paused
}

// pause notes that a destination is unavailable, and parks the event whose
// delivery failed.
func (e *engine) pause(it *item, probe bool, err error) {
	e.park(it, e.noteDown(it, probe, err))
}

// noteDown notes that a destination is unavailable. Only a probe, or the first
// failure, moves the next probe: failures of deliveries that were in flight at
// the same time add no information.
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
			e.downLoggedAt = d.since
		}
		e.log.Warn("destination is down", slog.String(logkey.Destination, name), slog.String(logkey.Error, err.Error()))
		if e.observe.Paused != nil {
			e.observe.Paused(observe.PausedInfo{Destination: name, Paused: true})
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

// park lets an event wait for its destination, in memory if it can serve as a
// probe.
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
		// The event came from memory: the next reads find its row.
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

// passAll removes an aggregate whose destination is unavailable from memory.
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

// unparked lets an event be delivered that waited for its destination. The
// attempt of a suspect is counted first.
func (e *engine) unparked(it *item) {
	if it.suspect && !it.counted {
		it.state = waiting
		e.suspects.push(it)
		return
	}
	e.push(it)
}

// skip notes a row that was passed over because its destination is unavailable.
func (l *lane) skip(dest string, seq int64, unordered bool) {
	if first, ok := l.skippedFrom[dest]; !ok || seq < first {
		l.skippedFrom[dest] = seq
	}
	if unordered {
		l.skipped[seq] = struct{}{}
	}
}

// wakeDestinations sends a probe to each destination whose probe is due.
func (e *engine) wakeDestinations(now time.Time) {
	if e.stopping {
		return
	}
	e.logDown(now)
	for name, d := range e.dests {
		if !d.paused || d.probing || now.Before(d.until) {
			continue
		}
		if len(d.parked) == 0 {
			// No event is left to probe with: read the rows that were passed
			// over. If there are none, no event here waits for the destination.
			delete(e.dests, name)
			e.log.Info("destination is no longer probed: no event is waiting for it here", slog.String(logkey.Destination, name),
				slog.Duration(logkey.Duration, now.Sub(d.since)), slog.Int(logkey.Failures, d.failures))
			e.reportPaused(name, false)
			e.resume(d)
			continue
		}
		it := d.parked[0]
		d.parked = slices.Delete(d.parked, 0, 1)
		d.probing, it.probe, it.dest = true, true, name
		e.unparked(it)
	}
}

// resumed notes that a delivery has reached its destination.
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
	e.log.Info("destination is back", slog.String(logkey.Destination, name),
		slog.Duration(logkey.Duration, time.Since(d.since)), slog.Int(logkey.Failures, d.failures))
	e.reportPaused(name, false)
	e.resume(d)
}

// maxNamed is the maximum number of destinations that one log line names.
const maxNamed = 5

// logDown logs the unavailable destinations once a minute, in one line: an
// unavailable broker may have hundreds of destinations.
func (e *engine) logDown(now time.Time) {
	if len(e.dests) == 0 || now.Before(e.downLoggedAt.Add(outage.Every)) {
		return
	}
	e.downLoggedAt = now
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
	e.log.Warn("destinations are still down", slog.Int(logkey.Destinations, len(down)), slog.Any(logkey.Names, names),
		slog.String(logkey.Since, first.since.UTC().Format(time.RFC3339)), slog.Duration(logkey.Duration, now.Sub(first.since)),
		slog.Int(logkey.Failures, failures), slog.String(logkey.Error, first.last.Error()))
}

func (e *engine) reportPaused(name string, paused bool) {
	if e.observe.Paused != nil {
		e.observe.Paused(observe.PausedInfo{Destination: name, Paused: paused})
	}
}

// resume releases all events that waited for a destination: the parked ones
// and, by reading again from there, the rows that were passed over.
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
				// The fast read covers these rows again.
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
