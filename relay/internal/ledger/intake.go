package ledger

import (
	"time"

	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// take takes a row that a read of the outbox returned, unless the row is known,
// has to wait, or is not due. It reports false if there was no room for the
// row, and true if the row needs no further handling.
func (g *Ledger) take(l *lane, row *store.Row, now time.Time) bool {
	if known := l.items[row.ID]; known != nil {
		known.mergeSeq(row)
		return true
	}
	if l.unsettled >= g.window || g.isFull() || l.suspicion.undecided(row.ID, &l.suspicion.ready) {
		return false
	}
	return g.takeRow(l, row, now, l.suspicion.of(row))
}

// takeRow takes a row that is not known and for which there is room, as one of
// the places. It reports false if the row has to wait.
func (g *Ledger) takeRow(l *lane, row *store.Row, now time.Time, p *places) bool {
	hot := l.takeAnnounced(row.ID)
	later := row.Err == nil && row.DueAt.After(now)
	if later && !g.cfg.Backlog {
		// A producer inserted the row with plain SQL and a due time in the
		// future: the row belongs in delayed.
		g.dropAnnounced(hot, observe.DropNotDue)
		g.deferEvent(g.add(l, row, false), row.DueAt.Sub(now), false, "")
		return true
	}
	agg := driver.AggregateOf(&row.Event)
	if agg.IsZero() {
		if later {
			g.deferEvent(g.add(l, row, hot), row.DueAt.Sub(now), false, row.LastError)
			return true
		}
		return g.takeUnordered(l, row, hot, p)
	}
	a := l.aggregate(agg)
	if a.passes(row.Seq) {
		l.suspicion.passBehind(a, row.ID, p)
		a.pass(row.Seq)
		g.dropAnnounced(hot, observe.DropBlocked)
		return true
	}
	if later {
		// The destination has deferred the event before it was diverted: it
		// holds its aggregate, as any deferred event.
		it := g.add(l, row, hot)
		it.agg = a
		g.deferEvent(it, row.DueAt.Sub(now), true, row.LastError)
		return true
	}
	if dest, down := g.down(&row.Event); down && (len(a.queue) > 0 || !g.wantsProbe(g.dests[dest])) {
		g.dropAnnounced(hot, observe.DropBlocked)
		a.pass(row.Seq)
		a.waits, a.waitsFor = true, dest
		l.skip(dest, row.Seq, false)
		l.suspicion.pass(dest, row.ID, p)
		return true
	}
	it := g.add(l, row, hot)
	it.agg = a
	l.suspicion.mark(it, p)
	g.insert(a, it)
	g.advance(a)
	return true
}

// takeUnordered takes a row without an aggregate, as one of the places.
func (g *Ledger) takeUnordered(l *lane, row *store.Row, hot bool, p *places) bool {
	if dest, down := g.down(&row.Event); down && !g.wantsProbe(g.dests[dest]) {
		g.dropAnnounced(hot, observe.DropBlocked)
		if len(l.skipped) >= maxSkipped {
			return false
		}
		l.skip(dest, row.Seq, true)
		l.suspicion.pass(dest, row.ID, p)
		return true
	}
	it := g.add(l, row, hot)
	l.suspicion.mark(it, p)
	g.ready(it)
	return true
}

// takeAhead takes a row with a priority of an aggregate, ahead of the fast
// read. All rows of its aggregate between the position of the fast read and
// this row have been taken. takeAhead reports false for a row that has to wait;
// the fast read will return it.
func (g *Ledger) takeAhead(l *lane, row *store.Row) bool {
	a := l.aggregate(driver.AggregateOf(&row.Event))
	defer a.tidy()
	if a.passes(row.Seq) {
		return false
	}
	if dest, down := g.down(&row.Event); down {
		l.suspicion.pass(dest, row.ID, &l.suspicion.urgent)
		return false
	}
	it := g.add(l, row, l.takeAnnounced(row.ID))
	it.agg = a
	l.suspicion.mark(it, &l.suspicion.urgent)
	g.insert(a, it)
	g.advance(a)
	return true
}

// maxSkipped limits how many unordered rows that wait for a destination a lane
// remembers; at the limit, reading waits too.
const maxSkipped = 100_000

// maxHeld limits how many aggregates that are held or passed over a lane
// remembers; at the limit, reading waits too.
const maxHeld = 100_000

// mergeSeq completes an event in memory with the row that a read returned: an
// event from the hot path has no seq.
func (it *Item) mergeSeq(row *store.Row) {
	if it.row.Seq == 0 && it.state < settled {
		it.row.Seq = row.Seq
		if it.row.CreatedAt.IsZero() {
			it.row.CreatedAt = row.CreatedAt
		}
	}
}

// add puts a row into memory. hot reports that a commit of this process handed
// over or announced the row.
func (g *Ledger) add(l *lane, row *store.Row, hot bool) *Item {
	if hot {
		g.counts.HotTaken++
	} else {
		g.counts.ColdTaken++
	}
	it := &Item{lane: l, row: row, hot: hot, announced: hot, size: driver.RowSize(row)}
	l.items[row.ID] = it
	l.unsettled++
	g.account(it)
	return it
}

// ready lets an item be delivered for which no other event has to be delivered
// first.
func (g *Ledger) ready(it *Item) {
	if it.suspect && !it.counted {
		g.move(it, waiting)
		g.suspects.push(it)
		return
	}
	if dest, down := g.down(&it.row.Event); down {
		g.releaseHotSlot(it)
		g.park(it, g.dests[dest])
		return
	}
	g.enqueue(it)
}

// insert adds an item to its aggregate's queue. An event that was the next one,
// and has not been handed to a worker, waits again if the item comes before it:
// a deferred event may be read before an earlier event of its aggregate.
func (g *Ledger) insert(a *aggregate, it *Item) {
	var next *Item
	if len(a.queue) > 0 {
		next = a.queue[0]
	}
	a.enqueue(it)
	if next != nil && next != a.queue[0] && next.state == queued {
		g.unprobe(next)
		g.forget(next)
		g.move(next, waiting)
	}
}

// advance lets an aggregate's next event be delivered, if no other event comes
// before it.
func (g *Ledger) advance(a *aggregate) {
	if a.lane.gone || a.lane.draining {
		return
	}
	if a.stuck == 0 && a.inFlight == 0 {
		g.advanceQueue(a)
	}
	if len(a.queue) <= maxQueued/4 && len(a.holders) == 0 && a.passed != 0 && !a.waits && !a.following {
		a.following = true
		g.plan.follow = append(g.plan.follow, a)
	}
	if a.lateWaiting && (len(a.holders) == 0 || len(a.queue) == 0) {
		a.lateWaiting = false
		g.dueTimes.now()
	}
	if len(a.queue) == 0 && a.stuck == 0 && len(a.holders) > 0 && a.holders[0].behind != nil {
		g.recall(a)
	}
	a.tidy()
}

// advanceQueue lets the first event of an aggregate's queue be delivered.
func (g *Ledger) advanceQueue(a *aggregate) {
	if len(a.queue) == 0 {
		return
	}
	if head := a.queue[0]; head.state == waiting && !g.suspects.has(head) && a.heldBefore(head.row.Seq) {
		g.evict(a) // the event that it waits for may be behind it, and becomes the next one
	}
	if len(a.queue) == 0 {
		return
	}
	head := a.queue[0]
	switch {
	case head.state != waiting || g.suspects.has(head):
	case !head.late && a.passed != 0 && head.row.Seq >= a.passed:
		// The event was with a worker, behind an event that has been passed
		// over since: it is read again after that event.
		g.passAll(a)
	default:
		g.ready(head)
	}
}

// evict removes the waiting events of an aggregate from memory: the aggregate
// is held, and its rows will be read again.
func (g *Ledger) evict(a *aggregate) {
	keep := a.queue[:0]
	var out []*Item
	for i, it := range a.queue {
		if i < int(a.inFlight) || it.state == inFlight || it.state == finished {
			keep = append(keep, it) // with a worker, or its attempt is being counted
			continue
		}
		if a.holds(it.id()) && !a.heldBefore(it.row.Seq) {
			keep = append(keep, it) // the event that the others wait for
			continue
		}
		if it.late {
			a.lateWaiting = true
		} else {
			a.pass(it.row.Seq)
		}
		out = append(out, it)
	}
	clear(a.queue[len(keep):])
	a.queue = keep
	for _, it := range out {
		g.dropOrUncount(it)
	}
}

// drop removes an item that is not with a worker from memory. Its row is
// untouched.
func (g *Ledger) drop(it *Item) {
	switch it.state {
	case queued:
		g.forget(it)
	case parked:
		g.dests[it.dest].unpark(it)
	case waiting, inFlight, finished, settled, dropped:
	}
	g.releaseHotSlot(it)
	g.unprobe(it)
	g.suspects.remove(it)
	it.lane.suspicion.remember(it) // the event is suspect when it is taken again
	it.lane.suspicion.giveBack(it)
	g.move(it, dropped)
	it.lane.unsettled--
	delete(it.lane.items, it.id())
}

// dropOrUncount removes an item that is not with a worker from memory. The
// attempt of a suspect that was counted, and does not happen, is taken back.
func (g *Ledger) dropOrUncount(it *Item) {
	if it.counted && it.state == waiting && !it.lane.gone {
		g.uncount(it)
		return
	}
	g.drop(it)
}

// takeDue takes a deferred row that is due. It reports false for a row that has
// to wait for another row of its aggregate.
func (g *Ledger) takeDue(l *lane, row *store.Row) bool {
	if l.items[row.ID] != nil {
		return true
	}
	late := &l.suspicion.late
	if l.unsettled >= g.window || g.isFull() || l.suspicion.undecided(row.ID, late) {
		return true // the next read returns the row again
	}
	agg := driver.AggregateOf(&row.Event)
	if agg.IsZero() {
		it := g.add(l, row, false)
		it.late = true
		if !g.deferDown(it, row.Holds) {
			l.suspicion.mark(it, late)
			g.ready(it)
		}
		return true
	}
	a := l.aggregate(agg)
	if row.Holds && !a.holds(row.ID) {
		g.hold(a, holder{seq: row.Seq, id: row.ID, read: g.readNo})
		g.evict(a)
	}
	if a.heldBefore(row.Seq) || !row.Holds && a.passed != 0 || len(a.queue) >= maxQueued {
		l.suspicion.passBehind(a, row.ID, late)
		a.lateWaiting = true
		return false
	}
	it := g.add(l, row, false)
	it.late, it.agg = true, a
	if g.deferDown(it, true) {
		a.tidy()
		return true
	}
	l.suspicion.mark(it, late)
	g.insert(a, it)
	g.advance(a)
	return true
}

// deferDown defers a due event whose destination is unavailable. It reports
// false if the destination is available.
func (g *Ledger) deferDown(it *Item, holds bool) bool {
	dest, down := g.down(&it.row.Event)
	if !down {
		return false
	}
	it.lane.suspicion.pass(dest, it.id(), &it.lane.suspicion.late)
	g.deferEvent(it, g.dests[dest].wait(g.now), holds, it.row.LastError)
	return true
}

// releaseHotSlot releases a hot item's slot in the commit queue.
func (g *Ledger) releaseHotSlot(it *Item) {
	if it.hot {
		it.hot = false
		g.counts.Freed++
		g.account(it)
	}
}
