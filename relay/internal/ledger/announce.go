package ledger

import (
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// CommitsWait notes that the commit queue holds announcements that the engine
// hands over before the next fast read.
func (g *Ledger) CommitsWait() { g.commitsWait = true }

// AreCommitsWaiting reports whether the commit queue holds such announcements.
func (g *Ledger) AreCommitsWaiting() bool { return g.commitsWait }

// IsCalm reports whether announcements are worth a wake-up each. While many
// events are read anyway, the next read takes the announcements too.
func (g *Ledger) IsCalm() bool { return g.plan.rate <= calmRate }

// SelfPolling reports whether the relay reads all of its lanes continuously, so
// that writers of this process need not announce their commits.
func (g *Ledger) SelfPolling() bool { return g.selfPolling }

// Announced takes the events of commits of this process.
func (g *Ledger) Announced(commits []driver.Commit, now time.Time) {
	g.now, g.commitsWait = now, false
	for i := range commits {
		c := &commits[i]
		if len(c.Entries) == 0 {
			g.wakeAll()
		}
		for k := range c.Entries {
			g.takeEntry(&c.Entries[k], c)
		}
	}
	g.plan.busy()
}

// wakeAll wakes every kind of read: events may have been written, replayed or
// unblocked.
func (g *Ledger) wakeAll() {
	for _, l := range g.lanes.list {
		l.scan.woken = true
	}
	g.crowd.woken = true
	// Many wake-ups may come in a short time.
	g.dueTimes.at(g.plan.lastDue.Add(wakePause))
	if soon := g.now.Add(wakePause - g.cfg.SweepInterval); soon.Before(g.plan.holds.began) {
		g.plan.holds.began = soon
	}
}

// wakePause is the minimum interval between reads of deferred and held rows
// that wake-ups cause.
const wakePause = 50 * time.Millisecond

func (g *Ledger) takeEntry(entry *driver.Entry, c *driver.Commit) {
	ev := &entry.Event
	l := g.lanes.at(entry.Lane)
	if l == nil || l.draining {
		g.dropAnnouncements(1, g.away())
		return
	}
	if g.isDelayed(l, ev) {
		g.dropAnnouncements(1, observe.DropNotDue)
		return
	}
	if it := l.items[ev.ID]; it != nil || g.past.has(ev.ID) {
		// A read was faster than the writer's notification.
		if it != nil {
			it.announced = true
		}
		g.plan.chase.announcedLate()
		g.dropAnnouncements(1, observe.DropAlreadyRead)
		return
	}
	if _, down := g.down(ev); down || !g.isStraight(l, ev, c) {
		if len(l.announced) >= g.cfg.HotQueue {
			g.dropAnnouncements(1, observe.DropQueueFull)
		} else {
			l.announced[ev.ID] = 0
		}
		l.scan.woken = true
		g.crowd.woken = g.crowd.woken || g.crowd.isOther(ev.TenantID)
		return
	}
	g.ready(g.add(l, &store.Row{Key: store.Key{Lane: l.number, ID: ev.ID}, Event: *ev, CreatedAt: g.dbNow()}, true))
}

// isDelayed reports whether an announced event is not due, and notes when it
// is.
func (g *Ledger) isDelayed(l *lane, ev *waybill.Event) bool {
	switch now := g.dbNow(); {
	case !ev.AvailableAt.IsZero() && g.dbClock.db.IsZero():
		// Only the database's clock decides whether the event is due, and that
		// clock is not known before the first page of rows.
		l.scan.woken = true
		g.dueTimes.now()
		return true
	case ev.Delay > 0:
		g.dueTimes.at(g.now.Add(ev.Delay))
		return true
	case ev.AvailableAt.After(now):
		g.dueTimes.at(g.now.Add(ev.AvailableAt.Sub(now)))
		return true
	}
	return false
}

// isStraight reports whether an announced event may be delivered from memory,
// before its row is read. A rollback to a savepoint that the store did not see
// may have removed the row, and only the table has the order of an aggregate:
// in both cases the row has to be read first. The same holds while earlier rows
// are unread or suspect, and for an event that another node may have delivered
// before it released the lane.
func (g *Ledger) isStraight(l *lane, ev *waybill.Event, c *driver.Commit) bool {
	return c.Checked && !c.BeganAt.Before(l.since) && !ev.Ordered() && !g.selfPolling &&
		l.open && l.scan.state == caughtUp && l.suspicion.ready.free == 0 && l.unsettled < g.window && g.byteRoom() > 0 && g.past.complete(g.now)
}

// takeAnnounced reports whether a commit of this process has announced the row
// that was read.
func (l *lane) takeAnnounced(id waybill.ID) bool {
	if len(l.announced) == 0 {
		return false
	}
	_, hot := l.announced[id]
	if hot {
		delete(l.announced, id)
	}
	return hot
}

// maxMissed is the number of fast reads in which an announced event may be
// missing.
const maxMissed = 8

// forgetAnnounced drops announcements whose rows were never read: the rows were
// rolled back, or another node has delivered them.
func (g *Ledger) forgetAnnounced(l *lane) {
	for id, reads := range l.announced {
		if reads >= maxMissed {
			delete(l.announced, id)
			g.dropAnnouncements(1, observe.DropRowMissing)
			continue
		}
		l.announced[id] = reads + 1
	}
}

// dropAnnounced releases the slot in the commit queue of an announced event
// that is not taken now.
func (g *Ledger) dropAnnounced(hot bool, why observe.Drop) {
	if hot {
		g.dropAnnouncements(1, why)
	}
}

// updateSelfPolling decides whether writers of this process announce their
// commits. At high rates the relay reads all of its lanes continuously anyway,
// and an announcement per commit would cost its writer and the engine more than
// it saves. When announcements are turned on again, the relay reads every lane
// once more to find what was committed meanwhile.
func (g *Ledger) updateSelfPolling() {
	polls := !g.IsCalm()
	if polls == g.selfPolling {
		return
	}
	g.selfPolling = polls
	if polls {
		return
	}
	for _, l := range g.lanes.list {
		l.scan.woken = true
	}
	g.past.miss(g.now)
}

// recentlyDelivered remembers which unordered events were read, delivered and
// settled before this process's own writer announced the commit: a row can be
// seen before the writer's goroutine runs again, and the late announcement
// would deliver the event a second time, straight from memory. Two generations
// of half a minute are much longer than that takes; a pause of the whole
// process stops the relay as well. When more events pass than can be
// remembered, the relay delivers nothing straight from memory for a while.
type recentlyDelivered struct {
	recent, older map[waybill.ID]struct{}
	turn          time.Time
	full          int // generations that could not remember every event
}

const (
	pastLength = 30 * time.Second
	maxPast    = 50_000
)

func (p *recentlyDelivered) add(id waybill.ID, now time.Time) {
	if p.recent == nil || now.After(p.turn) {
		p.full = max(p.full-1, 0)
		if p.isOver(now) {
			p.full = 0
		}
		p.older, p.recent = p.recent, make(map[waybill.ID]struct{})
		p.turn = now.Add(pastLength)
	}
	if len(p.recent) >= maxPast {
		p.full = 2
		return
	}
	p.recent[id] = struct{}{}
}

// miss notes that events have passed that are not remembered.
func (p *recentlyDelivered) miss(now time.Time) {
	p.full = 2
	if p.turn.Before(now) {
		p.turn = now.Add(pastLength)
	}
}

func (p *recentlyDelivered) has(id waybill.ID) bool {
	if _, ok := p.recent[id]; ok {
		return true
	}
	_, ok := p.older[id]
	return ok
}

// complete reports whether every event that should be remembered is remembered.
func (p *recentlyDelivered) complete(now time.Time) bool { return p.full == 0 || p.isOver(now) }

// isOver reports whether both generations are over.
func (p *recentlyDelivered) isOver(now time.Time) bool { return now.After(p.turn.Add(pastLength)) }
