package ledger

import (
	"cmp"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/driver"
)

// hold notes a row that holds an aggregate.
func (g *Ledger) hold(a *aggregate, h holder) {
	if !g.holding() && g.plan.lastHolds.Add(g.cfg.SweepInterval).Before(g.now) {
		// While nothing is held, the holds are not read. The next read of them
		// comes after the usual interval.
		g.plan.lastHolds = g.now
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
func (g *Ledger) finishHolds(lanes []*lane, holds []driver.Hold) {
	found := make(map[waybill.ID]bool, len(holds))
	for _, h := range holds {
		found[h.ID] = true
		l := g.lanes.at(h.Lane)
		if l == nil || h.Aggregate.IsZero() || l.items[h.ID] != nil {
			continue
		}
		a := l.aggregate(h.Aggregate)
		if !a.holds(h.ID) {
			g.hold(a, holder{seq: h.Seq, id: h.ID, dead: h.Dead, read: g.readNo})
			g.evict(a)
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
