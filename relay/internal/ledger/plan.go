package ledger

import (
	"slices"
	"time"

	"github.com/waybillhq/waybill/store"
)

// plan decides when to read what.
type plan struct {
	turn ReadKind // the kinds take turns, so that none starves

	skim     bool // the last fast read was of a lane that is skimmed
	skimTurn int  // the skimmed lanes take turns
	lastFast time.Time
	fastTook time.Duration
	interval time.Duration // between polls: grows while there are no events
	nextPoll time.Time
	chase    chase

	sweep sweep

	holds holdReads
	// The earliest time of the next read of a kind after a failed one.
	holdsAfter, followAfter, writersAfter time.Time

	lastDue    time.Time
	lastUrgent time.Time
	urgentTook time.Duration // duration of the last read of urgent rows
	looked     int           // approximate number of rows that it scanned
	unlooked   int           // rows that were taken since then
	follow     []*aggregate
	load       []store.Key

	rate   float64 // approximate events per second while there is no backlog
	rateAt time.Time
	reads  pace // duration of fast reads
	writes pace // duration of settlements
}

// Between these rates, in events per second, the relay's pauses grow: with many
// producers, each of the relay's statements costs the producers more than it
// gains.
const (
	calmRate = 2500
	busyRate = 5000
	// restFactor is the pause at high rates, as a multiple of the duration of a
	// read and a settlement. On a machine with spare capacity these take little
	// time; where they compete with producers, the pause leaves more capacity
	// to the producers.
	restFactor = 1
	// maxPatient is the maximum pause, as a multiple of Linger.
	maxPatient = 20
)

// pace is a moving average of a duration.
type pace time.Duration

func (p *pace) add(took time.Duration) {
	*p += (pace(took) - *p) / 8
}

// arrived notes how many events a read has returned.
func (p *plan) arrived(n int, now time.Time) {
	since := now.Sub(p.rateAt).Seconds()
	p.rateAt = now
	if since <= 0 {
		return
	}
	p.rate += (float64(n)/since - p.rate) * min(since/0.1, 1)
}

// busy makes the next polls come soon.
func (p *plan) busy() {
	p.interval = 0
}

// firstPoll is the shortest interval between polls. urgentRest limits reads of
// urgent rows to one part in urgentRest of the time.
const (
	firstPoll  = 16 * time.Millisecond
	urgentRest = 20
)

// empty doubles the interval between polls, up to longest.
func (p *plan) empty(longest time.Duration) {
	p.interval = min(max(2*p.interval, firstPoll), longest)
}

// forgetLane forgets a lane that the relay has lost.
func (p *plan) forgetLane(l *lane) {
	delete(p.sweep.left, l)
	p.follow = slices.DeleteFunc(p.follow, func(a *aggregate) bool { return a.lane == l })
}

// dueTimes is the earliest known time at which a deferred row is due.
type dueTimes struct{ next time.Time }

func (d *dueTimes) at(t time.Time) {
	if t.Before(d.next) {
		d.next = t
	}
}
func (d *dueTimes) now() { d.next = time.Time{} }

// batchDelay stretches a pause according to the rate of events.
func (g *Ledger) batchDelay(pause time.Duration) time.Duration {
	p := &g.plan
	pause = max(pause, 0)
	longest := min(restFactor*time.Duration(p.reads+p.writes), maxPatient*max(g.cfg.Linger, 0))
	share := (p.rate - calmRate) / (busyRate - calmRate)
	return pause + time.Duration(min(max(share, 0), 1)*float64(max(longest-pause, 0)))
}

// wish is whether and when a kind of read is wanted. A time that has passed, as
// the zero time, means at once.
type wish struct {
	wanted bool
	at     time.Time
}

func at(t time.Time) wish { return wish{wanted: true, at: t} }

// wish returns whether and when a kind of read is wanted.
func (g *Ledger) wish(k ReadKind) wish {
	if len(g.lanes.list) == 0 {
		return wish{}
	}
	p := &g.plan
	switch k {
	case ReadHolds:
		return g.wishHolds()
	case ReadFast:
		return g.wishFast()
	case ReadDue:
		return wish{wanted: g.hasRoom(), at: g.dueTimes.next}
	case ReadFollow:
		return wish{wanted: g.nextFollow() != nil, at: p.followAfter}
	case ReadLoad:
		return wish{wanted: len(p.load) > 0 && g.hasRoom()}
	case ReadSweep:
		return at(p.sweep.due())
	case ReadUrgent:
		return g.wishUrgent()
	case ReadOthers:
		return g.wishOthers()
	case ReadWriters:
		after := g.horizon.next
		if p.writersAfter.After(after) {
			after = p.writersAfter
		}
		return wish{wanted: g.horizon.wanted(g.lanes.list), at: after}
	}
	return wish{}
}

// isUnopened reports whether there is a lane whose holds have not been read.
func (g *Ledger) isUnopened() bool {
	return slices.ContainsFunc(g.lanes.list, func(l *lane) bool { return !l.open && !l.draining })
}

// isBehind reports whether there is a lane with rows that were not read yet.
func (g *Ledger) isBehind() bool {
	return slices.ContainsFunc(g.lanes.list, func(l *lane) bool { return l.scan.state != caughtUp && l.active() })
}

// pageLimit is the number of rows of a lane that are read at a time while there
// is a backlog.
func (g *Ledger) pageLimit() int { return max(min(g.window/2, g.cfg.BatchSize), 1) }

// isReadable reports whether a lane has room for the rows that a read might
// return.
func (g *Ledger) isReadable(l *lane) bool {
	if !l.active() || l.scan.awaits || !g.hasRoom() || len(l.aggs) >= maxHeld+g.window || len(l.skipped) >= maxSkipped || l.suspicion.blocksReads() {
		return false
	}
	if l.scan.state != caughtUp {
		return g.window-l.unsettled >= g.pageLimit()
	}
	return l.unsettled < g.window
}

// wishFast returns when the next fast read is wanted.
func (g *Ledger) wishFast() wish {
	if g.horizon.next.IsZero() {
		return wish{} // the horizon has to be known first
	}
	wanted, open := g.commitsWait || g.selfPolling, false
	for _, l := range g.lanes.list {
		if !g.isReadable(l) {
			continue
		}
		open = true
		if l.scan.state != caughtUp {
			return at(time.Time{})
		}
		wanted = wanted || l.scan.woken
	}
	p := &g.plan
	switch {
	case !open:
		return wish{}
	case !wanted:
		return at(p.nextPoll)
	}
	// A busy relay waits a little, so that one read replaces many. The pause
	// depends on the duration of a read and on the rate of events.
	pause := g.batchDelay(min(g.cfg.Linger, 2*p.fastTook))
	return at(g.behindSettle(p.lastFast.Add(pause), pause))
}

// behindSettle moves a read that is wanted at a time behind the settlement that
// is due before the read, or soon after: the read would return rows again that
// are about to be settled. The read waits for the settlement at most as long as
// it has already waited.
func (g *Ledger) behindSettle(at time.Time, pause time.Duration) time.Time {
	if g.IsCalm() {
		return at
	}
	last := at.Add(pause)
	if g.settling {
		return last // the time is computed again when the answer arrives
	}
	if flush, ok := g.flushAt(); ok && flush.After(at) && flush.Before(last) {
		return flush
	}
	return at
}

const (
	urgentInterval = 100 * time.Millisecond
	urgentLimit    = 64
	// urgentShare: between two reads of urgent rows the relay takes at least
	// one row per urgentShare rows that the last such read scanned.
	urgentShare = 16
)

// wishUrgent returns when the next read of urgent rows is wanted: at an
// interval, and whenever as many other rows were taken as the relay has room
// for, so that a fast relay does not empty the backlog between two such reads.
func (g *Ledger) wishUrgent() wish {
	p := &g.plan
	switch {
	case !g.isBehind() || g.byteRoom() <= 0:
		return wish{}
	case p.unlooked >= max(g.cfg.ColdQueue, p.looked/urgentShare):
		return at(time.Time{})
	}
	return at(p.lastUrgent.Add(max(urgentInterval, urgentRest*p.urgentTook)))
}

// nextFollow returns an aggregate whose rows are to be read again and for which
// there is room, or nil.
func (g *Ledger) nextFollow() *aggregate {
	if !g.hasRoom() {
		return nil
	}
	for _, a := range g.plan.follow {
		l := a.lane
		if a.passed != 0 && !l.gone && !l.draining && !l.scan.rescan && l.unsettled < g.window && !l.suspicion.blocksReads() {
			return a
		}
	}
	return nil
}
