package ledger

import (
	"cmp"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// lane is the state of a lane that this relay owns.
type lane struct {
	number int
	lease  driver.Lease
	claim  any       // of all deliveries
	since  time.Time // when this relay learned that it owns the lane

	// open: the holds have been read, so reading may begin.
	open bool
	scan scan

	// items are the events in memory, and those that a read under way might
	// still return.
	items map[waybill.ID]*Item
	// unsettled is the number of items that are not settled, at most the window
	// recorded in the lane's row.
	unsettled int
	// busy is the number of unsettled items that are with a worker, or finished
	// and not settled.
	busy int

	aggs map[store.Aggregate]*aggregate
	held int // aggregates with holders

	suspicion suspicion

	// announced are events that this process has committed and that have not
	// been read yet, with the number of fast reads that missed them.
	announced map[waybill.ID]int

	// skipped are unordered rows that were passed over because their
	// destination is unavailable, by seq; skippedFrom is the lowest seq of any
	// row that was passed over, by destination.
	skipped     map[int64]struct{}
	skippedFrom map[string]int64

	// settling is the number of the last settlement that includes the lane.
	settling int64

	draining bool
	drainBy  time.Time
	gone     bool // released or lost
}

func newLane(lease driver.Lease, claim any, now time.Time) *lane {
	return &lane{
		number: lease.Lane, lease: lease, claim: claim, since: now,
		items: make(map[waybill.ID]*Item), aggs: make(map[store.Aggregate]*aggregate), announced: make(map[waybill.ID]int),
		skipped: make(map[int64]struct{}), skippedFrom: make(map[string]int64),
		scan: scan{woken: true}, suspicion: newSuspicion(lease),
	}
}

// active reports whether rows of the lane may be taken.
func (l *lane) active() bool { return l.open && !l.draining }

// aggregate returns the state of an aggregate.
func (l *lane) aggregate(key store.Aggregate) *aggregate {
	a := l.aggs[key]
	if a == nil {
		a = &aggregate{key: key, lane: l}
		l.aggs[key] = a
	}
	return a
}

// passedOver returns the aggregates whose next rows would be passed over in any
// case.
func (l *lane) passedOver() map[store.Aggregate]struct{} {
	out := make(map[store.Aggregate]struct{})
	for key, a := range l.aggs {
		if a.passes(l.scan.position + 1) {
			out[key] = struct{}{}
		}
	}
	return out
}

// quiet reports whether no event of a lane is in memory or remembered.
func (l *lane) quiet() bool {
	return len(l.items) == 0 && len(l.aggs) == 0 && len(l.skipped) == 0 && l.scan.state == caughtUp
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

// owned is the set of lanes that this relay owns. The ledger iterates over the
// lanes all the time, and they change rarely: the list is replaced, never
// modified, so that a loop over it may remove lanes.
type owned struct {
	list  []*lane
	by    map[int]*lane
	first int // the first lane of the next turn
	// version counts the changes of the lanes that take events.
	version int
}

// at returns the lane with a number, or nil.
func (o *owned) at(number int) *lane { return o.by[number] }

func (o *owned) add(l *lane) {
	if o.by == nil {
		o.by = make(map[int]*lane)
	}
	if old := o.by[l.number]; old != nil {
		o.remove(old)
	}
	o.by[l.number] = l
	o.list = append(slices.Clip(o.list), l)
	o.version++
}

func (o *owned) remove(l *lane) {
	if o.by[l.number] == l {
		delete(o.by, l.number)
	}
	o.list = slices.DeleteFunc(slices.Clone(o.list), func(x *lane) bool { return x == l })
	o.version++
}

// inTurn returns every lane. It begins at the next lane at every call, so that
// all lanes are served fairly.
func (o *owned) inTurn() []*lane {
	o.first++
	return o.from(o.first)
}

// from returns every lane, beginning at the nth.
func (o *owned) from(n int) []*lane {
	if len(o.list) == 0 {
		return nil
	}
	n %= len(o.list)
	return slices.Concat(o.list[n:], o.list[:n])
}

// that returns the lanes with a property.
func (o *owned) that(ok func(*lane) bool) []*lane {
	var out []*lane
	for _, l := range o.list {
		if ok(l) {
			out = append(out, l)
		}
	}
	return out
}

// LaneAcquired adds a lane that this relay owns now. The claim becomes part of
// each of its deliveries.
func (g *Ledger) LaneAcquired(lease driver.Lease, claim any, now time.Time) {
	g.now = now
	g.lanes.add(newLane(lease, claim, now))
	if lease.Unclean {
		g.suspects.size = 0 // the groups of its suspects begin with one event
	}
}

// LaneLost drops a lane that this relay does not own any more. The results of
// its deliveries in flight are ignored.
func (g *Ledger) LaneLost(number int, now time.Time) {
	g.now = now
	if l := g.lanes.at(number); l != nil {
		g.lose(l)
	}
}

func (g *Ledger) lose(l *lane) {
	if l.gone {
		return
	}
	l.gone = true
	g.dropAll(l)
	g.lanes.remove(l)
	g.plan.forgetLane(l)
}

// DrainLane stops taking events of a lane: events with a worker are finished,
// the others stay in their table.
func (g *Ledger) DrainLane(number int, by, now time.Time) {
	g.now = now
	l := g.lanes.at(number)
	if l == nil || l.draining {
		return
	}
	l.draining, l.drainBy = true, by
	g.lanes.version++
	g.dropAll(l)
}

// ExtendDrain gives the lanes of items that are being released more time.
func (g *Ledger) ExtendDrain(items []*Item, by time.Time) {
	for _, it := range items {
		if it.lane.draining {
			it.lane.drainBy = by
		}
	}
}

// dropAll removes all events of a lane that are not in flight from memory.
func (g *Ledger) dropAll(l *lane) {
	var out []*Item
	for _, it := range l.items {
		switch it.state {
		case waiting, queued, parked:
			out = append(out, it)
		case inFlight, finished, settled, dropped:
		}
	}
	slices.SortFunc(out, func(a, b *Item) int { return cmp.Compare(a.row.Seq, b.row.Seq) })
	for _, it := range out {
		if it.agg != nil {
			it.agg.remove(it)
		}
		g.dropOrUncount(it)
	}
	g.dropAnnouncements(len(l.announced), g.away())
	clear(l.announced)
}

// away returns why an event is not delivered by this relay.
func (g *Ledger) away() observe.Drop {
	if g.stopping {
		return observe.DropStopped
	}
	return observe.DropNotOwned
}

// Lane describes a lane that this relay owns.
type Lane struct {
	Lease    driver.Lease
	Draining bool
	DrainBy  time.Time
	// Busy means that events of the lane are in flight or wait for their
	// settlement.
	Busy bool
	// Suspects means that events of the lane may have crashed an owner, and
	// have not been delivered since.
	Suspects bool
}

// Lanes returns the lanes that this relay owns.
func (g *Ledger) Lanes() []Lane {
	out := make([]Lane, len(g.lanes.list))
	for i, l := range g.lanes.list {
		out[i] = Lane{
			Lease: l.lease, Draining: l.draining, DrainBy: l.drainBy, Busy: l.busy > 0,
			Suspects: l.suspicion.left() || g.crowd.tenants && l.suspicion.others.free > 0,
		}
	}
	return out
}

// Draining returns the lanes that are being released.
func (g *Ledger) Draining() []Lane {
	if !slices.ContainsFunc(g.lanes.list, func(l *lane) bool { return l.draining }) {
		return nil
	}
	return slices.DeleteFunc(g.Lanes(), func(l Lane) bool { return !l.Draining })
}

// LaneCount returns the number of lanes that this relay owns.
func (g *Ledger) LaneCount() int { return len(g.lanes.list) }

// LaneVersion changes with the lanes that take events.
func (g *Ledger) LaneVersion() int { return g.lanes.version }
