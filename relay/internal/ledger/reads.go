package ledger

import (
	"iter"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// ReadKind is a kind of read.
type ReadKind uint8

// The kinds of reads.
const (
	ReadHolds   ReadKind = iota // rows that hold aggregates back
	ReadFast                    // new rows of lanes
	ReadDue                     // deferred rows that are due
	ReadFollow                  // rows of an aggregate that were passed over
	ReadLoad                    // rows that a sweep has found
	ReadSweep                   // rows that committed late
	ReadUrgent                  // rows with a priority, ahead of the fast read
	ReadOthers                  // rows of tenants outside the crowd, ahead of the fast read
	ReadWriters                 // open transactions
)

// readKinds is the number of kinds.
const readKinds = int(ReadWriters) + 1

func (k ReadKind) String() string {
	return [...]string{"holds", "fast", "due", "follow", "load", "sweep", "urgent", "others", "writers"}[k]
}

// Read is one read. The engine runs it and passes the answer to
// [Ledger.RowsRead].
type Read struct {
	Kind ReadKind
	// Lanes are the lanes of a read of holds or due rows.
	Lanes []int
	// Cursors are the ranges of the other reads, ordered by lane; Limit is the
	// maximum number of rows per lane.
	Cursors []driver.Cursor
	Limit   int
	// Aggregate is the aggregate of ReadFollow.
	Aggregate store.Aggregate
	// Keys are the rows of ReadLoad.
	Keys []store.Key
	// Skip is set for a lane whose rows are nearly all passed over: rows of
	// these aggregates are listed, but not loaded.
	Skip map[store.Aggregate]struct{}
	// Crowd is set for a read of other tenants: the rows of these tenants are
	// listed, but not loaded.
	Crowd map[string]struct{}
	// Verify asks for the open transactions after the read.
	Verify bool
	// Check are ranges whose rows are listed after the read, to find unknown
	// ones.
	Check []driver.Cursor

	lanes  []*lane
	known  map[waybill.ID]struct{} // events of others in memory
	agg    *aggregate
	passed int64 // the first row of agg that was passed over
	whole  bool  // a fast read that covers a sweep as well
	woken  bool  // a notification caused the fast read
	// Lanes and keys that Shrink has removed.
	left     []*lane
	leftKeys []store.Key
}

// Shrink makes a read smaller whose page was too large for the store. It
// reports false if the read cannot be smaller.
func (r *Read) Shrink() bool {
	switch {
	case len(r.Keys) > 1:
		half := len(r.Keys) / 2
		r.leftKeys = slices.Concat(r.Keys[half:], r.leftKeys)
		r.Keys = r.Keys[:half]
	case r.Limit > 1:
		r.Limit = max(r.Limit/4, 1)
	case len(r.Cursors) > 1:
		half := len(r.Cursors) / 2
		r.left = append(r.left, r.lanes[half:]...)
		r.lanes, r.Lanes, r.Cursors = r.lanes[:half], r.Lanes[:half], r.Cursors[:half]
	default:
		return false
	}
	return true
}

// leaveOut lets later reads return what Shrink has removed from a read.
func (g *Ledger) leaveOut(r *Read) {
	g.plan.load = slices.Concat(r.leftKeys, g.plan.load)
	if r.Kind != ReadFast || len(r.left) == 0 {
		return
	}
	r.whole = false
	for _, l := range r.left {
		// A lane with a backlog is read in its turn, even if the other lanes
		// fill every page.
		l.scan.woken, l.scan.state = true, behind
	}
}

// Answer is the answer to a read.
type Answer struct {
	Page    driver.Page
	Refs    []driver.RowRef
	Holds   []driver.Hold
	Writers *driver.WriterState
	Took    time.Duration
}

// CheckLimit is the number of rows of a lane that one check covers. If there
// are more, the next sweep finds the missing rows.
const CheckLimit = 100_000

// DueReads returns the kinds of reads that are due, in their turn, while no
// read is under way.
func (g *Ledger) DueReads(now time.Time) iter.Seq[ReadKind] {
	return func(yield func(ReadKind) bool) {
		g.now = now
		turn := g.plan.turn
		for i := range readKinds {
			if g.reading || g.stopping {
				return
			}
			k := ReadKind((int(turn) + i) % readKinds)
			if w := g.wish(k); w.wanted && !w.at.After(now) && !yield(k) {
				return
			}
		}
	}
}

// StartRead makes a read of a kind that is due; false if there is nothing to
// read after all.
func (g *Ledger) StartRead(k ReadKind, now time.Time) (Read, bool) {
	g.now = now
	r, ok := g.newRead(k)
	if !ok {
		return Read{}, false
	}
	r.Kind = k
	for _, l := range r.lanes {
		r.Lanes = append(r.Lanes, l.number)
	}
	g.plan.turn = ReadKind((int(k) + 1) % readKinds)
	g.reading = true
	g.readNo++
	return r, true
}

func (g *Ledger) newRead(k ReadKind) (Read, bool) {
	p := &g.plan
	var r Read
	switch k {
	case ReadHolds:
		return g.newHoldsRead()
	case ReadFast:
		return g.newFastRead()
	case ReadDue:
		p.lastDue = g.now
		g.dueTimes.next = g.now.Add(g.cfg.PollInterval)
		if p.interval >= g.cfg.PollInterval {
			// The relay is idle. Writers of this process announce events that
			// they schedule, and a store that can wake other processes does;
			// the due times of existing events are known.
			g.dueTimes.next = g.now.Add(2 * g.cfg.PollInterval)
		}
		r.lanes = g.lanes.that((*lane).active)
		r.Limit = min(g.cfg.BatchSize, g.rowRoom())
	case ReadFollow:
		return g.newFollowRead()
	case ReadLoad:
		n := min(len(p.load), g.cfg.BatchSize, g.rowRoom())
		r.Keys, p.load = p.load[:n:n], p.load[n:]
		return r, n > 0
	case ReadSweep:
		return g.newSweepRead()
	case ReadUrgent:
		p.lastUrgent, p.unlooked = g.now, 0
		r.lanes = g.lanes.that(func(l *lane) bool { return l.scan.state != caughtUp && l.active() })
		r.Limit, r.Verify = min(urgentLimit, g.pageRoom(len(r.lanes))), g.horizon.hasExcluded()
		for _, l := range r.lanes {
			// As for the fast read: a row of the same aggregate, in front of an
			// urgent one, may have committed late.
			r.Cursors = append(r.Cursors, driver.Cursor{Lane: l.number, After: g.floor(l)})
		}
	case ReadOthers:
		return g.newOthersRead()
	case ReadWriters:
		r.Verify = true
		return r, true
	}
	return r, len(r.lanes) > 0
}

// newFollowRead makes a read of the rows of an aggregate that were passed over.
func (g *Ledger) newFollowRead() (Read, bool) {
	p := &g.plan
	a := g.nextFollow()
	p.follow = slices.DeleteFunc(p.follow, func(x *aggregate) bool {
		if x == a {
			return true
		}
		if x.passed != 0 {
			return false
		}
		x.following = false // nothing is passed over any more
		return true
	})
	if a == nil {
		return Read{}, false
	}
	return Read{
		agg: a, passed: a.passed, Aggregate: a.key, Limit: min(maxQueued, g.rowRoom()), Verify: g.horizon.hasExcluded(),
		Cursors: []driver.Cursor{{
			Lane: a.lane.number, After: min(a.passed-1, g.floor(a.lane)), UpTo: max(a.lane.scan.position, a.passedTo),
		}},
	}, true
}

// newFastRead makes a fast read: of the lanes that were woken, of those with a
// backlog, or of all lanes if a poll is due or the relay polls without
// notifications.
func (g *Ledger) newFastRead() (Read, bool) {
	p := &g.plan
	// A lane whose rows are nearly all passed over, because their aggregate is
	// held, is read separately in large pages, at every other turn: it needs no
	// room, and the other lanes should not wait for it.
	p.skim = !p.skim
	if p.skim {
		if l := g.skimmedLane(); l != nil {
			l.scan.woken = false
			return Read{
				Limit: sweepLimit, lanes: []*lane{l}, Skip: l.passedOver(), Verify: g.horizon.hasExcluded(),
				Cursors: []driver.Cursor{{Lane: l.number, After: l.scan.position}},
			}, true
		}
	}
	poll := !g.now.Before(p.nextPoll)
	room := g.rowRoom()
	// At least one lane with a backlog has to fit.
	r := Read{Limit: min(g.pageLimit(), room), Verify: g.horizon.hasExcluded(), whole: poll && !p.chase.soon && p.sweep.isCheap(g.lanes.list)}
	g.addFastLanes(&r, poll, room)
	// A lane that is not known to have a backlog may have one nevertheless. The
	// lanes share the room, so that a first read, or a read after a large
	// commit, does not return a page of every lane; a lane whose share was not
	// enough has a backlog from then on.
	if n := len(r.lanes); n > 0 && n*r.Limit > room {
		r.Limit = max(room/n, 1)
	}
	slices.SortFunc(r.lanes, func(a, b *lane) int { return a.number - b.number })
	for _, l := range r.lanes {
		g.addFastCursor(&r, l)
	}
	r.Limit = min(r.Limit, g.pageRoom(len(r.lanes)))
	p.lastFast = g.now
	if poll {
		p.nextPoll = g.now.Add(max(p.interval, firstPoll))
	}
	return r, len(r.lanes) > 0
}

// addFastLanes adds the lanes of a fast read for which there is room.
func (g *Ledger) addFastLanes(r *Read, poll bool, room int) {
	for _, l := range g.lanes.inTurn() {
		s := &l.scan
		if !g.isReadable(l) {
			r.whole = r.whole && l.draining
			continue
		}
		if s.state == caughtUp && !s.woken && !poll && !g.selfPolling {
			continue
		}
		if s.state != caughtUp {
			if room < r.Limit && len(r.lanes) > 0 {
				r.whole = false
				continue
			}
			room -= r.Limit
		}
		r.woken = r.woken || s.woken
		s.woken = false
		r.whole = r.whole && l.quiet()
		r.lanes = append(r.lanes, l)
	}
}

// addFastCursor adds the range of a lane to a fast read.
func (g *Ledger) addFastCursor(r *Read, l *lane) {
	s := &l.scan
	after, from := g.floor(l), g.floor(l)
	switch {
	case r.whole:
		// No event is in memory or held, and few rows were deleted: reading
		// from the beginning is as cheap, and finds rows that committed late
		// too.
		after, from = 0, 0
	case s.clogged:
		after = s.position
	}
	if after < s.position {
		r.Limit = max(r.Limit, min(g.window, 2*g.cfg.BatchSize))
	}
	if s.rescan {
		from = min(from, s.rescanFrom)
	}
	if from < after {
		r.Check = append(r.Check, driver.Cursor{Lane: l.number, After: from, UpTo: after})
	}
	r.Cursors = append(r.Cursors, driver.Cursor{Lane: l.number, After: after})
}

// skimmedLane returns a lane that is to be read in large pages; nil if there is
// none.
func (g *Ledger) skimmedLane() *lane {
	g.plan.skimTurn++
	for _, l := range g.lanes.from(g.plan.skimTurn) {
		if s := &l.scan; s.state == skimming && !s.rescan && g.floor(l) == s.position && g.isReadable(l) {
			return l
		}
	}
	return nil
}
