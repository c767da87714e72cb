package ledger

import (
	"fmt"
	"slices"
)

// violations returns which invariants of a ledger do not hold.
func violations(g *Ledger) []string {
	var out []string
	wrong := func(format string, args ...any) { out = append(out, fmt.Sprintf(format, args...)) }
	hot, cold, waits, others, bytes := 0, 0, 0, 0, 0
	for _, l := range g.lanes.list {
		checkLane(l, wrong)
		for _, it := range l.items {
			switch {
			case it.state == queued && it.hot:
				hot++
			case it.state == queued:
				cold++
			}
			if !it.hot && (it.state == waiting || it.state == queued) {
				waits++
				if it.other {
					others++
				}
			}
			if it.state != parked && it.state != settled {
				bytes += len(it.row.Event.Payload)
			}
			checkItem(g, it, wrong)
		}
		for _, a := range l.aggs {
			checkAggregate(g, a, wrong)
		}
	}
	if hot != g.hot.depth || cold != g.cold.depth {
		wrong("%d hot and %d cold events are queued, and the depths are %d and %d", hot, cold, g.hot.depth, g.cold.depth)
	}
	// Events of lost lanes may be in flight.
	if waits != g.memory.waiting || bytes > g.memory.bytes {
		wrong("%d events of %d bytes wait, counted are %d of %d bytes", waits, bytes, g.memory.waiting, g.memory.bytes)
	}
	if others != g.memory.others {
		wrong("%d events of others wait, and %d are counted", others, g.memory.others)
	}
	for _, it := range g.suspects.group {
		if !it.suspect || it.state == settled || it.state == dropped {
			wrong("an event has its turn as a suspect and is %v, suspect: %v", it.state, it.suspect)
		}
	}
	return out
}

// checkLane compares the counters of a lane with its items.
func checkLane(l *lane, wrong func(string, ...any)) {
	unsettled, busy, placed, held := 0, 0, 0, 0
	for _, it := range l.items {
		if it.state != settled {
			unsettled++
		}
		if it.state == inFlight || it.state == finished {
			busy++
		}
		if it.place != nil {
			placed++
		}
	}
	for _, a := range l.aggs {
		if len(a.holders) > 0 {
			held++
		}
	}
	if unsettled != l.unsettled || busy != l.busy || placed != l.suspicion.placed || held != l.held {
		wrong("lane %d: %d unsettled, %d busy, %d with a place, %d held; counted are %d, %d, %d, %d",
			l.number, unsettled, busy, placed, held, l.unsettled, l.busy, l.suspicion.placed, l.held)
	}
	for _, p := range []places{l.suspicion.ready, l.suspicion.late, l.suspicion.urgent} {
		if p.free < 0 || p.free > l.suspicion.window {
			wrong("lane %d: %d rows are suspect, with a window of %d", l.number, p.free, l.suspicion.window)
		}
	}
}

// checkItem compares an item with what refers to it.
func checkItem(g *Ledger, it *Item, wrong func(string, ...any)) {
	id := it.row.ID
	switch {
	case it.state == dropped:
		wrong("%s: dropped, and in memory", id)
	case it.state == parked && (g.dests[it.dest] == nil || !slices.Contains(g.dests[it.dest].parked, it)):
		wrong("%s: parked, and not among the parked of %q", id, it.dest)
	case it.probe && (it.state == parked || it.state == queued && !it.isNext()):
		wrong("%s: probes its destination, and is %s", id, it.state)
	case it.state == queued && it.agg != nil && it.agg.heldBefore(it.row.Seq):
		wrong("%s: queued, and behind a hold", id)
	case it.state == queued && it.suspect && !it.counted:
		wrong("%s: a suspect that is not counted is queued", id)
	case it.state != inFlight && it.state != finished && it.state != settled && it.agg != nil && !slices.Contains(it.agg.queue, it):
		wrong("%s: %s, and not in the queue of its aggregate", id, it.state)
	}
}

// checkAggregate checks the queue of an aggregate.
func checkAggregate(g *Ledger, a *aggregate, wrong func(string, ...any)) {
	delivering, deliverable := 0, 0
	for _, it := range a.queue {
		switch it.state {
		case inFlight:
			delivering++
		case queued, parked:
			deliverable++
		case waiting, finished:
		case settled, dropped:
			wrong("aggregate %s: its queue has an event that is %s", a.key.ID, it.state)
		}
	}
	if delivering != int(a.inFlight) {
		wrong("aggregate %s: %d events are in flight, and %d are counted", a.key.ID, delivering, a.inFlight)
	}
	if delivering > 1 && !g.cfg.Ordered || delivering > 0 && deliverable > 0 || deliverable > 1 {
		wrong("aggregate %s: %d events are in flight and %d can be delivered", a.key.ID, delivering, deliverable)
	}
	for i := range a.holders {
		if i > 0 && a.holders[i].seq < a.holders[i-1].seq {
			wrong("aggregate %s: its holders are out of order", a.key.ID)
		}
	}
	if a.passed < 0 || a.passed > a.passedTo {
		wrong("aggregate %s: passed over from %d to %d", a.key.ID, a.passed, a.passedTo)
	}
	if len(a.queue) > maxQueued+1 { // and the event that holds the others
		wrong("aggregate %s: %d events are in memory", a.key.ID, len(a.queue))
	}
}
