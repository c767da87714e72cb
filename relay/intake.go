package relay

import (
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
)

// take takes a row that a read of the outbox has brought, unless it is known, has to wait, or is not due. It reports
// whether the row needs no further thought: false means that there was no room for it.
func (e *engine) take(l *lane, row *store.Row, now time.Time) bool {
	if known := l.items[row.ID]; known != nil {
		e.mergeSeq(known, row)
		return true
	}
	if l.unsettled >= e.window || l.undecided(row.ID, l.suspects, l.unsure) {
		return false
	}
	hot := e.unmark(l, row.ID)
	if row.Err == nil && row.DueAt.After(now) {
		// Somebody inserted it with plain SQL and a time to come: its place is among the delayed events.
		e.dropAnnounced(hot, observe.DropNotDue)
		e.deferEvent(e.add(l, row, false), row.DueAt.Sub(now), false, "")
		return true
	}
	agg := store.AggregateOf(&row.Event)
	if agg.IsZero() {
		return e.takeUnordered(l, row, hot)
	}
	a := l.aggregate(agg)
	if a.passes(row.Seq) {
		a.pass(row.Seq)
		e.dropAnnounced(hot, observe.DropBlocked)
		return true
	}
	if dest, down := e.down(&row.Event); down && (len(a.queue) > 0 || !e.dests[dest].wantsProbe()) {
		e.dropAnnounced(hot, observe.DropBlocked)
		a.pass(row.Seq)
		a.waitsFor = dest
		l.skip(dest, row.Seq, false)
		l.passWary(dest, row.ID, *l.places(row))
		return true
	}
	it := e.add(l, row, hot)
	it.agg = a
	l.suspect(it, l.places(row))
	a.enqueue(it)
	e.advance(a)
	return true
}

func (e *engine) takeUnordered(l *lane, row *store.Row, hot bool) bool {
	if dest, down := e.down(&row.Event); down && !e.dests[dest].wantsProbe() {
		e.dropAnnounced(hot, observe.DropBlocked)
		if len(l.skipped) >= maxSkipped {
			return false
		}
		l.skip(dest, row.Seq, true)
		l.passWary(dest, row.ID, *l.places(row))
		return true
	}
	it := e.add(l, row, hot)
	l.suspect(it, l.places(row))
	e.ready(it)
	return true
}

// takeAhead takes a row of an aggregate that has a priority, ahead of the fast read: all rows of
// its aggregate between where that has stopped and this one have been taken. It reports false for
// a row that has to wait; the fast read will bring it.
func (e *engine) takeAhead(l *lane, row *store.Row) bool {
	a := l.aggregate(store.AggregateOf(&row.Event))
	defer a.tidy()
	if a.passes(row.Seq) {
		return false
	}
	if dest, down := e.down(&row.Event); down {
		l.passWary(dest, row.ID, l.urgentSuspects)
		return false
	}
	it := e.add(l, row, e.unmark(l, row.ID))
	it.agg = a
	l.suspect(it, &l.urgentSuspects)
	a.enqueue(it)
	e.advance(a)
	return true
}

// maxSkipped bounds how many unordered rows a lane remembers that wait for a destination; then reading waits too.
const maxSkipped = 100_000

// maxHeld bounds how many aggregates a lane remembers that are held or passed over; then reading waits too.
const maxHeld = 100_000

// meet notes what a read knows about an event that is already in hand: one that came from memory had no seq.
func (e *engine) mergeSeq(it *item, row *store.Row) {
	if it.row.Seq == 0 && it.state < settled {
		it.row.Seq = row.Seq
		if it.row.CreatedAt.IsZero() {
			it.row.CreatedAt = row.CreatedAt
		}
	}
}

// add takes a row in hand. hot says that a commit of this process brought it, or announced it.
func (e *engine) add(l *lane, row *store.Row, hot bool) *item {
	switch {
	case hot && e.observe.HotEnqueued != nil:
		e.observe.HotEnqueued(1)
	case !hot && e.observe.ColdEnqueued != nil:
		e.observe.ColdEnqueued(1)
	}
	it := &item{lane: l, row: row, hot: hot, heard: hot}
	l.items[row.ID] = it
	l.unsettled++
	return it
}

// ready puts an item where it will be delivered from.
func (e *engine) ready(it *item) {
	if it.suspect && !it.counted {
		it.state = waiting
		e.suspects.push(it)
		return
	}
	if dest, down := e.down(&it.row.Event); down {
		e.releaseHotSlot(it)
		e.park(it, e.dests[dest])
		return
	}
	e.push(it)
}

// advance lets an aggregate's next event be delivered, if nothing stands in its way.
func (e *engine) advance(a *aggregate) {
	if a.lane.gone || a.lane.draining {
		return
	}
	if a.stuck == 0 && a.inFlight == 0 && len(a.queue) > 0 {
		if head := a.queue[0]; head.state == waiting && !e.suspects.has(head) && a.heldBefore(head.row.Seq) {
			e.evict(a) // what it waits for may stand behind it, and is the next one then
		}
	}
	if a.stuck == 0 && a.inFlight == 0 && len(a.queue) > 0 {
		head := a.queue[0]
		switch {
		case head.state != waiting || e.suspects.has(head):
		case !head.late && a.passed != 0 && head.row.Seq >= a.passed:
			// It was with a worker, behind one that has been passed over since: it is read again after that one.
			e.passAll(a)
		default:
			e.ready(head)
		}
	}
	if len(a.queue) <= maxQueued/4 && len(a.holders) == 0 && a.passed != 0 && a.waitsFor == "" && !a.following {
		a.following = true
		e.plan.follow = append(e.plan.follow, a)
	}
	if a.lateWaiting && (len(a.holders) == 0 || len(a.queue) == 0) {
		a.lateWaiting = false
		e.dueTimes.now()
	}
	if len(a.queue) == 0 && a.stuck == 0 && len(a.holders) > 0 && a.holders[0].behind {
		e.recall(a)
	}
	a.tidy()
}

// evict takes what waits of an aggregate out of memory: it is held, and its rows will be read again.
func (e *engine) evict(a *aggregate) {
	keep := a.queue[:0]
	for i, it := range a.queue {
		if i < a.inFlight || it.state == inFlight || it.state == finished {
			keep = append(keep, it) // it is with a worker, or its attempt is being counted
			continue
		}
		if a.holds(it.id()) && !a.heldBefore(it.row.Seq) {
			keep = append(keep, it) // the one that the others wait for
			continue
		}
		if it.late {
			a.lateWaiting = true
		} else {
			a.pass(it.row.Seq)
		}
		e.drop(it)
	}
	clear(a.queue[len(keep):])
	a.queue = keep
}

// drop forgets an item that is not with a worker. Its row is untouched.
func (e *engine) drop(it *item) {
	switch it.state {
	case queued:
		e.forget(it)
	case parked:
		e.dests[it.dest].unpark(it)
	case waiting, inFlight, finished, settled, dropped:
	}
	e.releaseHotSlot(it)
	e.unprobe(it)
	e.suspects.remove(it)
	it.lane.remember(it) // it is suspect when it is taken again
	it.lane.giveBack(it)
	it.state = dropped
	it.lane.unsettled--
	delete(it.lane.items, it.id())
}

// takeDue takes a row put off whose time has come. It reports false for one that stands behind another.
func (e *engine) takeDue(l *lane, row *store.Row) bool {
	if l.items[row.ID] != nil {
		return true
	}
	if l.unsettled >= e.window || l.undecided(row.ID, l.lateSuspects, l.lateUnsure) {
		return true // the next read brings it again
	}
	dest, down := e.down(&row.Event)
	agg := store.AggregateOf(&row.Event)
	if agg.IsZero() {
		it := e.add(l, row, false)
		it.late = true
		if down {
			l.passWary(dest, row.ID, l.lateSuspects)
			e.deferEvent(it, e.dests[dest].wait(), row.Holds, row.LastError)
			return true
		}
		l.suspect(it, &l.lateSuspects)
		e.ready(it)
		return true
	}
	a := l.aggregate(agg)
	if row.Holds && !a.holds(row.ID) {
		a.hold(holder{seq: row.Seq, id: row.ID, read: e.readNo})
		e.evict(a)
	}
	if a.heldBefore(row.Seq) || !row.Holds && a.passed != 0 || len(a.queue) >= maxQueued {
		a.lateWaiting = true
		return false
	}
	it := e.add(l, row, false)
	it.late, it.agg = true, a
	if down {
		a.tidy()
		l.passWary(dest, row.ID, l.lateSuspects)
		e.deferEvent(it, e.dests[dest].wait(), true, row.LastError)
		return true
	}
	l.suspect(it, &l.lateSuspects)
	a.enqueue(it)
	e.advance(a)
	return true
}

// applyHolds makes the aggregates' holds those that the tables have. What changed while the read was under way is not
// judged by it: an event that is in hand is not held by its own row, and a hold that was added meanwhile stays.
func (e *engine) applyHolds(lanes []*lane, holds []store.Hold) {
	found := make(map[waybill.ID]bool, len(holds))
	for _, h := range holds {
		found[h.ID] = true
		l := e.lanes.at(h.Lane)
		if l == nil || h.Aggregate.IsZero() || l.items[h.ID] != nil {
			continue
		}
		a := l.aggregate(h.Aggregate)
		if !a.holds(h.ID) {
			a.hold(holder{seq: h.Seq, id: h.ID, dead: h.Dead, read: e.readNo})
			e.evict(a)
		}
	}
	for _, l := range lanes {
		if l.gone {
			continue
		}
		l.open = true
		for _, a := range l.aggs {
			if len(a.holders) == 0 {
				continue
			}
			kept := a.holders[:0]
			for _, h := range a.holders {
				if found[h.id] || h.read == e.readNo || l.items[h.id] != nil {
					kept = append(kept, h)
					continue
				}
				// An operator has decided about it; or the server has crashed and forgotten that it was put off, and it is
				// ready again. So what follows is read from its own place on.
				a.pass(h.seq)
			}
			if len(kept) < len(a.holders) {
				a.holders = kept
				e.advance(a)
			}
		}
	}
}

// holding reports whether any lane has an aggregate that is held.
func (e *engine) holding() bool {
	for _, l := range e.lanes.list {
		for _, a := range l.aggs {
			if len(a.holders) > 0 {
				return true
			}
		}
	}
	return false
}

// takeHot takes what commits of this process have handed over.
func (e *engine) takeHot() {
	e.hotWaits = false
	e.commits.take(func(c *store.Commit) {
		if len(c.Entries) == 0 {
			e.wakeAll()
		}
		for i := range c.Entries {
			e.takeEntry(&c.Entries[i], c)
		}
	})
	e.plan.busy()
}

// wakeAll looks at everything: somebody may have written, replayed, or unblocked.
func (e *engine) wakeAll() {
	for _, l := range e.lanes.list {
		l.wake = true
	}
	// Wake-ups may come in numbers.
	e.dueTimes.at(e.plan.lastDue.Add(wakePause))
	if soon := time.Now().Add(wakePause - e.cfg.SweepInterval); soon.Before(e.plan.lastHolds) {
		e.plan.lastHolds = soon
	}
}

// wakePause is how far apart wake-ups make the relay look at what is put off and held.
const wakePause = 50 * time.Millisecond

func (e *engine) takeEntry(entry *store.Entry, c *store.Commit) {
	ev := &entry.Event
	l := e.lanes.at(entry.Lane)
	switch {
	case l == nil || l.draining:
		e.commits.cold(1, e.away())
		return
	case !ev.AvailableAt.IsZero() && e.dbClock.db.IsZero():
		// Only the database's clock says whether it is due, and that is not known before the first page of rows.
		e.commits.cold(1, observe.DropNotDue)
		l.wake = true
		e.dueTimes.now()
		return
	case ev.Delay > 0 || ev.AvailableAt.After(e.wallClock()):
		e.commits.cold(1, observe.DropNotDue)
		delay := ev.Delay
		if delay <= 0 {
			delay = ev.AvailableAt.Sub(e.wallClock())
		}
		e.dueTimes.at(time.Now().Add(delay))
		return
	}
	// A rollback to a savepoint that nobody saw may have taken the row back, and the order of an aggregate is in the table:
	// both have to be read first. So does everything while rows before it are unread, or suspect, and what another node may have delivered before it gave
	// the lane away.
	straight := c.Checked && !c.BeganAt.Before(l.since) && !ev.Ordered() && !e.selfPolling &&
		l.open && !l.backlog && l.suspects == 0 && l.unsettled < e.window && e.past.complete()
	if it := l.items[ev.ID]; it != nil || e.past.has(ev.ID) {
		// A read was faster than the writer's own word.
		if it != nil {
			it.heard = true
		}
		e.commits.cold(1, observe.DropAlreadyRead)
		return
	}
	if _, down := e.down(ev); !straight || down {
		if len(l.announced) >= e.cfg.HotQueue {
			e.commits.cold(1, observe.DropQueueFull)
		} else {
			l.announced[ev.ID] = 0
		}
		l.wake = true
		return
	}
	e.ready(e.add(l, &store.Row{Key: store.Key{Lane: l.number, ID: ev.ID}, Event: *ev, CreatedAt: e.wallClock()}, true))
}

// away is why an event is not for this relay.
func (e *engine) away() observe.Drop {
	if e.stopping {
		return observe.DropStopped
	}
	return observe.DropNotOwned
}

// unmark reports whether a commit of this process has announced the row that was read.
func (e *engine) unmark(l *lane, id waybill.ID) bool {
	if len(l.announced) == 0 {
		return false
	}
	_, hot := l.announced[id]
	if hot {
		delete(l.announced, id)
	}
	return hot
}

// oldMarks is how many fast reads an announced event may be missing from.
const oldMarks = 8

// forgetMarks drops announcements whose rows never came: they were taken back, or somebody else has delivered them.
func (e *engine) forgetMarks(l *lane) {
	for id, reads := range l.announced {
		if reads >= oldMarks {
			delete(l.announced, id)
			e.commits.cold(1, observe.DropRowMissing)
			continue
		}
		l.announced[id] = reads + 1
	}
}

// unheard gives the place in the hot queue back of an event that was announced and is not taken now.
func (e *engine) dropAnnounced(hot bool, why observe.Drop) {
	if hot {
		e.commits.cold(1, why)
	}
}

// cool gives a hot item's place in the hot queue back.
func (e *engine) releaseHotSlot(it *item) {
	if it.hot {
		it.hot = false
		e.commits.done(1)
	}
}

// wallClock is the database's time, or this node's while that is not known.
func (e *engine) wallClock() time.Time {
	if now := e.dbClock.now(); !now.IsZero() {
		return now
	}
	return time.Now()
}

func (e *engine) warn(message string, err error, attrs ...any) {
	e.log.Warn(message, append(attrs, slog.String("error", err.Error()))...)
}
