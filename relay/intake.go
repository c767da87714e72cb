package relay

import (
	"log/slog"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/logkey"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// take takes a row that a read of the outbox returned, unless the row is known,
// has to wait, or is not due. It reports false if there was no room for the
// row, and true if the row needs no further handling.
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
		// A producer inserted the row with plain SQL and a due time in the
		// future: the row belongs in delayed.
		e.dropAnnounced(hot, observe.DropNotDue)
		e.deferEvent(e.add(l, row, false), row.DueAt.Sub(now), false, "")
		return true
	}
	agg := driver.AggregateOf(&row.Event)
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

// takeAhead takes a row with a priority of an aggregate, ahead of the fast
// read. All rows of its aggregate between the position of the fast read and
// this row have been taken. takeAhead reports false for a row that has to wait;
// the fast read will return it.
func (e *engine) takeAhead(l *lane, row *store.Row) bool {
	a := l.aggregate(driver.AggregateOf(&row.Event))
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

// maxSkipped limits how many unordered rows that wait for a destination a lane
// remembers; at the limit, reading waits too.
const maxSkipped = 100_000

// maxHeld limits how many aggregates that are held or passed over a lane
// remembers; at the limit, reading waits too.
const maxHeld = 100_000

// mergeSeq completes an event in memory with the row that a read returned: an
// event from the hot path has no seq.
func (e *engine) mergeSeq(it *item, row *store.Row) {
	if it.row.Seq == 0 && it.state < settled {
		it.row.Seq = row.Seq
		if it.row.CreatedAt.IsZero() {
			it.row.CreatedAt = row.CreatedAt
		}
	}
}

// add puts a row into memory. hot reports that a commit of this process handed
// over or announced the row.
func (e *engine) add(l *lane, row *store.Row, hot bool) *item {
	switch {
	case hot && e.observe.HotEnqueued != nil:
		e.observe.HotEnqueued(observe.HotEnqueuedInfo{Events: 1})
	case !hot && e.observe.ColdEnqueued != nil:
		e.observe.ColdEnqueued(observe.ColdEnqueuedInfo{Events: 1})
	}
	it := &item{lane: l, row: row, hot: hot, announced: hot}
	l.items[row.ID] = it
	l.unsettled++
	return it
}

// ready puts an item into the queue from which it will be delivered.
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

// advance lets an aggregate's next event be delivered, if no other event comes
// before it.
func (e *engine) advance(a *aggregate) {
	if a.lane.gone || a.lane.draining {
		return
	}
	if a.stuck == 0 && a.inFlight == 0 && len(a.queue) > 0 {
		if head := a.queue[0]; head.state == waiting && !e.suspects.has(head) && a.heldBefore(head.row.Seq) {
			e.evict(a) // the event that it waits for may be behind it, and becomes the next one
		}
	}
	if a.stuck == 0 && a.inFlight == 0 && len(a.queue) > 0 {
		head := a.queue[0]
		switch {
		case head.state != waiting || e.suspects.has(head):
		case !head.late && a.passed != 0 && head.row.Seq >= a.passed:
			// The event was with a worker, behind an event that has been passed
			// over since: it is read again after that event.
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

// evict removes the waiting events of an aggregate from memory: the aggregate
// is held, and its rows will be read again.
func (e *engine) evict(a *aggregate) {
	keep := a.queue[:0]
	for i, it := range a.queue {
		if i < a.inFlight || it.state == inFlight || it.state == finished {
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
		e.drop(it)
	}
	clear(a.queue[len(keep):])
	a.queue = keep
}

// drop removes an item that is not with a worker from memory. Its row is
// untouched.
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
	it.lane.remember(it) // the event is suspect when it is taken again
	it.lane.giveBack(it)
	it.state = dropped
	it.lane.unsettled--
	delete(it.lane.items, it.id())
}

// takeDue takes a deferred row that is due. It reports false for a row that has
// to wait for another row of its aggregate.
func (e *engine) takeDue(l *lane, row *store.Row) bool {
	if l.items[row.ID] != nil {
		return true
	}
	if l.unsettled >= e.window || l.undecided(row.ID, l.lateSuspects, l.lateUnsure) {
		return true // the next read returns the row again
	}
	dest, down := e.down(&row.Event)
	agg := driver.AggregateOf(&row.Event)
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

// applyHolds replaces the aggregates' holds with those in the tables. Changes
// made while the read was under way take precedence: an event in memory is not
// held by its own row, and a hold that was added meanwhile stays.
func (e *engine) applyHolds(lanes []*lane, holds []driver.Hold) {
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
				// An operator has acted on the event; or the server has crashed
				// and lost the deferral, and the event is ready again. So the
				// following rows are read from the event's own seq on.
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

// takeHot takes the events that commits of this process handed over.
func (e *engine) takeHot() {
	e.hotWaits = false
	e.commits.take(func(c *driver.Commit) {
		if len(c.Entries) == 0 {
			e.wakeAll()
		}
		for i := range c.Entries {
			e.takeEntry(&c.Entries[i], c)
		}
	})
	e.plan.busy()
}

// wakeAll wakes every kind of read: events may have been written, replayed or
// unblocked.
func (e *engine) wakeAll() {
	for _, l := range e.lanes.list {
		l.wake = true
	}
	// Many wake-ups may come in a short time.
	e.dueTimes.at(e.plan.lastDue.Add(wakePause))
	if soon := time.Now().Add(wakePause - e.cfg.SweepInterval); soon.Before(e.plan.lastHolds) {
		e.plan.lastHolds = soon
	}
}

// wakePause is the minimum interval between reads of deferred and held rows
// that wake-ups cause.
const wakePause = 50 * time.Millisecond

func (e *engine) takeEntry(entry *driver.Entry, c *driver.Commit) {
	ev := &entry.Event
	l := e.lanes.at(entry.Lane)
	switch {
	case l == nil || l.draining:
		e.commits.cold(1, e.away())
		return
	case !ev.AvailableAt.IsZero() && e.dbClock.db.IsZero():
		// Only the database's clock decides whether the event is due, and that
		// clock is not known before the first page of rows.
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
	// A rollback to a savepoint that the store did not see may have removed the
	// row, and only the table has the order of an aggregate: in both cases the
	// row has to be read first. The same holds while earlier rows are unread or
	// suspect, and for an event that another node may have delivered before it
	// released the lane.
	straight := c.Checked && !c.BeganAt.Before(l.since) && !ev.Ordered() && !e.selfPolling &&
		l.open && !l.backlog && l.suspects == 0 && l.unsettled < e.window && e.past.complete()
	if it := l.items[ev.ID]; it != nil || e.past.has(ev.ID) {
		// A read was faster than the writer's notification.
		if it != nil {
			it.announced = true
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

// away returns why an event is not delivered by this relay.
func (e *engine) away() observe.Drop {
	if e.stopping {
		return observe.DropStopped
	}
	return observe.DropNotOwned
}

// unmark reports whether a commit of this process has announced the row that
// was read.
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

// oldMarks is the number of fast reads in which an announced event may be
// missing.
const oldMarks = 8

// forgetMarks drops announcements whose rows were never read: the rows were
// rolled back, or another node has delivered them.
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

// dropAnnounced releases the slot in the hot queue of an announced event that
// is not taken now.
func (e *engine) dropAnnounced(hot bool, why observe.Drop) {
	if hot {
		e.commits.cold(1, why)
	}
}

// releaseHotSlot releases a hot item's slot in the hot queue.
func (e *engine) releaseHotSlot(it *item) {
	if it.hot {
		it.hot = false
		e.commits.done(1)
	}
}

// wallClock returns the database's time, or this node's time while the
// database's clock is not known.
func (e *engine) wallClock() time.Time {
	if now := e.dbClock.now(); !now.IsZero() {
		return now
	}
	return time.Now()
}

func (e *engine) warn(message string, err error, attrs ...any) {
	e.log.Warn(message, append(attrs, slog.String(logkey.Error, err.Error()))...)
}
