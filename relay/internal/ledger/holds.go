package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// holdReads is the search for holds that an operator has removed. A round reads
// the holds of every lane. Many holds take long to read, and everything else
// waits meanwhile, so that a round has many reads then, of a few lanes each,
// with pauses between them.
type holdReads struct {
	began time.Time // when the last round began
	left  []*lane   // lanes that the round has not read
	// width is the number of lanes of a read; 0 means all.
	width int
	after time.Time // the earliest time of the next read
}

// Reads of holds take one part in holdShare of the time, and one part in
// quickShare if they are quick. An outbox has not more than maxLanes lanes.
const (
	holdShare  = 200
	quickShare = 20
	maxLanes   = 1 << 12
)

// wishHolds returns when the next read of holds is wanted. The holds of a lane
// that was acquired are read at once.
func (g *Ledger) wishHolds() wish {
	h := &g.plan.holds
	if g.isUnopened() {
		return at(g.plan.holdsAfter)
	}
	next := h.began.Add(g.cfg.SweepInterval)
	if len(h.left) > 0 || h.after.After(next) {
		next = h.after
	}
	return wish{wanted: g.holding(), at: next}
}

// newHoldsRead makes a read of the holds of lanes that were acquired, or of the
// next lanes of a round.
func (g *Ledger) newHoldsRead() (Read, bool) {
	h := &g.plan.holds
	lanes := g.lanes.that(func(l *lane) bool { return !l.open && !l.draining })
	round := len(lanes) == 0
	if round {
		h.left = slices.DeleteFunc(h.left, func(l *lane) bool { return l.gone || l.draining })
		if len(h.left) == 0 {
			h.began, h.left = g.now, g.lanes.that(func(l *lane) bool { return !l.draining })
		}
		lanes = h.left
	}
	n := len(lanes)
	if h.width > 0 {
		n = min(n, h.width)
	}
	if round {
		h.left = h.left[n:]
	}
	return Read{lanes: lanes[:n:n]}, n > 0
}

// took notes the duration of a read of some lanes. fast is the usual duration
// of a fast read.
func (h *holdReads) took(d, fast time.Duration, lanes int, now time.Time) {
	share := time.Duration(holdShare)
	switch slow := slowSweep + 4*fast; {
	case d > slow:
		h.width = max(int(time.Duration(lanes)*slow/d), 1)
	case d < quickSweep+2*fast:
		share = quickShare
		h.width = min(4*h.width, maxLanes)
	}
	h.after = now.Add(share * d)
}

// hold notes a row that holds an aggregate.
func (g *Ledger) hold(a *aggregate, h holder) {
	if began := &g.plan.holds.began; !g.holding() && began.Add(g.cfg.SweepInterval).Before(g.now) {
		// While nothing is held, the holds are not read. The next read of them
		// comes after the usual interval.
		*began = g.now
	}
	a.hold(h)
}

// holding reports whether any aggregate is held.
func (g *Ledger) holding() bool {
	return slices.ContainsFunc(g.lanes.list, func(l *lane) bool { return l.held > 0 })
}

// finishHolds replaces the aggregates' holds with those in the tables. Changes
// made while the read was under way take precedence: an event in memory is not
// held by its own row, and a hold that was added meanwhile stays.
func (g *Ledger) finishHolds(lanes []*lane, a *Answer) {
	g.plan.holds.took(a.Took, time.Duration(g.plan.reads), len(lanes), g.now)
	holds := a.Holds
	found := make(map[waybill.ID]bool, len(holds))
	for _, h := range holds {
		found[h.ID] = true
		l := g.lanes.at(h.Lane)
		if l == nil || h.Aggregate.IsZero() || l.items[h.ID] != nil {
			continue
		}
		if agg := l.aggregate(h.Aggregate); !agg.holds(h.ID) {
			g.hold(agg, holder{seq: h.Seq, id: h.ID, dead: h.Dead, read: g.readNo})
			g.evict(agg)
		}
	}
	for _, l := range lanes {
		if !l.gone {
			l.open = true
			g.releaseHolds(l, found)
		}
	}
}

// releaseHolds removes the holds of a lane that are not in the tables.
func (g *Ledger) releaseHolds(l *lane, found map[waybill.ID]bool) {
	var released []*aggregate
	for _, a := range l.aggs {
		if a.keepHolders(func(h *holder) bool {
			if found[h.id] || h.read == g.readNo || l.items[h.id] != nil {
				return true
			}
			// An operator has acted on the event; or the server has crashed and
			// lost the deferral, and the event is ready again. So the following
			// rows are read from the event's own seq on.
			a.pass(h.seq)
			return false
		}) {
			released = append(released, a)
		}
	}
	g.advanceAll(released)
}

// advanceAll advances aggregates in an order that depends on nothing else, so
// that the same inputs have the same effects.
func (g *Ledger) advanceAll(all []*aggregate) {
	slices.SortFunc(all, byKey)
	for _, a := range all {
		g.advance(a)
	}
}

func byKey(x, y *aggregate) int {
	return cmp.Or(cmp.Compare(x.key.ID, y.key.ID), cmp.Compare(x.key.Type, y.key.Type), cmp.Compare(x.key.Tenant, y.key.Tenant))
}

// deferBehind defers a due row that waits for another row of its aggregate: it
// would fill every page of due rows.
func (g *Ledger) deferBehind(l *lane, it *Item) {
	row := it.row
	if a := l.aggs[driver.AggregateOf(&row.Event)]; a != nil && row.Holds {
		a.deferBehind(row)
		it.behind = a
	}
	g.deferEvent(it, behindDelay, row.Holds, row.LastError)
}
