package ledger

import (
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// crowd is the tenants whose rows fill the pages of the fast read. The rows of
// other tenants would wait behind theirs in the tables: while lanes have a
// backlog, reads of other tenants look past the position of the fast read for
// them. Events without a tenant count as one tenant, as soon as any event with
// a tenant has been read.
type crowd struct {
	// shares are the shares of the pages of the fast read, and ahead those of
	// the pages of reads of others.
	shares, ahead shares
	tenants       bool // an event with a tenant was read
	// names are the tenants of the crowd. A tenant below leaveShare is removed
	// at leaveAfter: the reads of others have to look at all rows again then.
	names      map[string]struct{}
	leaveAfter time.Time

	last  time.Time     // the beginning of the last read of others
	took  time.Duration // its duration
	more  bool          // there may be rows that it has not reached
	woken bool          // a notification reported a row that may be of others
}

const (
	// crowdShare is the part of the pages from which on a tenant belongs to the
	// crowd; leaveShare is the part below which it leaves the crowd.
	crowdShare = 1.0 / 16
	leaveShare = 1.0 / 256
	// crowdWeight is the weight of a page of the fast read in the averages,
	// aheadWeight that of a page of a read of others.
	crowdWeight = 1.0 / 4
	aheadWeight = 1.0 / 16
	leavePause  = 5 * time.Second

	// othersLimit is the number of events of other tenants that may be in
	// memory although it is full, and that one read returns; at least
	// othersEach of every lane.
	othersLimit = 64
	othersEach  = 8
	// othersReach is the number of rows that one read of others looks at, in
	// all lanes together.
	othersReach = 32_768
	// othersInterval is the interval between reads of others that find nothing
	// new, othersPause between those that do. They take at most half of the
	// time until they have reached the end of the backlog, and one part in
	// othersRest after that.
	othersInterval = 20 * time.Millisecond
	othersPause    = 4 * time.Millisecond
	othersRest     = 10
	// crowdedHorizon is the interval between checks of the horizon while it is
	// behind the reads of others. A server may show its open transactions as
	// they were 100 ms ago.
	crowdedHorizon = 125 * time.Millisecond
)

// shares are moving averages of the part that each tenant has of a page.
type shares map[string]float64

// age lowers all shares, before a page is added.
func (s shares) age(weight float64) {
	for tenant := range s {
		s[tenant] *= 1 - weight
	}
}

// add adds n rows of a tenant, of a page of size rows.
func (s shares) add(tenant string, n, size int, weight float64) {
	s[tenant] += weight * float64(n) / float64(size)
}

// saw notes the rows of a page of the fast read. It reports whether a tenant
// has left the crowd.
func (c *crowd) saw(rows []store.Row, now time.Time) (left bool) {
	if len(rows) == 0 {
		return false
	}
	if c.shares == nil {
		c.shares, c.ahead, c.names = make(shares), make(shares), make(map[string]struct{})
	}
	c.shares.age(crowdWeight)
	for i := 0; i < len(rows); {
		tenant, n := rows[i].Event.TenantID, 1
		for i+n < len(rows) && rows[i+n].Event.TenantID == tenant {
			n++
		}
		c.shares.add(tenant, n, len(rows), crowdWeight)
		i += n
	}
	mayLeave := !now.Before(c.leaveAfter)
	for tenant, share := range c.shares {
		_, crowds := c.names[tenant]
		switch {
		case share >= crowdShare:
			c.names[tenant] = struct{}{}
		case share < leaveShare && (mayLeave || !crowds):
			delete(c.shares, tenant)
			if crowds {
				delete(c.names, tenant)
				left, c.leaveAfter = true, now.Add(leavePause)
			}
		}
	}
	return left
}

// tookOther notes that a read of others has taken a row.
func (c *crowd) tookOther(tenant string) { c.ahead.add(tenant, 1, othersLimit, aheadWeight) }

// tookOthers ends a read of others. A tenant that has most of what these reads
// take would keep others from being read, and joins the crowd.
func (c *crowd) tookOthers() {
	for tenant, share := range c.ahead {
		if share >= crowdShare {
			c.names[tenant], c.shares[tenant] = struct{}{}, crowdShare
		}
		if share >= crowdShare || share < leaveShare {
			delete(c.ahead, tenant)
		}
	}
	c.ahead.age(aheadWeight)
}

// disperse forgets the crowd, because no lane has a backlog.
func (c *crowd) disperse() {
	clear(c.shares)
	clear(c.ahead)
	clear(c.names)
	c.woken, c.more, c.leaveAfter = false, false, time.Time{}
}

// isOther reports whether a tenant does not belong to the crowd.
func (c *crowd) isOther(tenant string) bool {
	_, crowds := c.names[tenant]
	return !crowds
}

// ahead is how far the reads of other tenants have looked past the position of
// a lane.
type ahead struct {
	position int64
	// floor is the seq up to which every row of others that will ever exist has
	// been seen; see horizon.
	floor int64
}

// crowdReads notes the rows of a page of the fast read.
func (g *Ledger) crowdReads(rows []store.Row) {
	c := &g.crowd
	c.tenants = c.tenants || slices.ContainsFunc(rows, func(r store.Row) bool { return r.Event.TenantID != "" })
	switch {
	case !c.tenants:
	case slices.ContainsFunc(g.lanes.list, g.hasBacklog):
		if c.saw(rows, g.now) {
			g.lookAgain()
		}
	case len(c.names) > 0:
		c.disperse()
		g.lookAgain()
	}
}

// lookAgain has the reads of others begin at the position of every lane: they
// have not examined the rows of a tenant that belonged to the crowd.
func (g *Ledger) lookAgain() {
	for _, l := range g.lanes.list {
		l.scan.ahead = ahead{}
	}
}

// hasBacklog reports whether rows of a lane may wait in the tables.
func (g *Ledger) hasBacklog(l *lane) bool {
	return l.active() && (l.scan.state != caughtUp || !g.isReadable(l))
}

// looksAhead reports whether a read of others covers a lane.
func (g *Ledger) looksAhead(l *lane) bool {
	return g.hasBacklog(l) && !l.scan.rescan && l.unsettled < g.Window() && len(l.aggs) < maxHeld+g.window && len(l.skipped) < maxSkipped
}

// othersRoom is the number of events of other tenants that may be taken.
func (g *Ledger) othersRoom() int {
	if g.byteRoom() <= 0 {
		return 0
	}
	return max(g.queueRoom(), othersLimit-g.memory.others)
}

// wishOthers returns when the next read of others is wanted. Without the
// horizon, such a read would have to cover all rows of the last two seconds,
// and the crowd writes many. In the backlog of a destination rows appear in
// front of others at any time, so that no read looks past them.
func (g *Ledger) wishOthers() wish {
	c := &g.crowd
	if len(c.names) == 0 || g.cfg.Backlog || g.horizon.unknown || g.horizon.next.IsZero() || len(g.plan.load) > 0 || g.othersRoom() <= 0 ||
		!slices.ContainsFunc(g.lanes.list, g.looksAhead) {
		return wish{}
	}
	pause, rest := othersInterval, time.Duration(othersRest)
	switch {
	case c.more:
		pause, rest = othersPause, 2
	case c.woken:
		pause = othersPause
	}
	return at(c.last.Add(max(pause, rest*c.took)))
}

// newOthersRead makes a read of the rows of other tenants.
func (g *Ledger) newOthersRead() (Read, bool) {
	c := &g.crowd
	c.last, c.woken = g.now, false
	r := Read{Crowd: make(map[string]struct{}, len(c.names)), known: make(map[waybill.ID]struct{}), Verify: g.horizon.hasExcluded()}
	for tenant := range c.names {
		r.Crowd[tenant] = struct{}{}
	}
	r.lanes = g.lanes.that(g.looksAhead)
	slices.SortFunc(r.lanes, func(a, b *lane) int { return a.number - b.number })
	for _, l := range r.lanes {
		from := g.aheadFloor(l)
		r.Cursors = append(r.Cursors, driver.Cursor{Lane: l.number, After: from})
		for id, it := range l.items {
			if it.row.Seq > from && c.isOther(it.row.Event.TenantID) {
				r.known[id] = struct{}{}
			}
		}
	}
	r.Limit = max(othersReach/max(len(r.lanes), 1), othersLimit)
	return r, len(r.lanes) > 0
}

// aheadFloor returns where a read of others begins that misses no row.
func (g *Ledger) aheadFloor(l *lane) int64 { return max(g.floor(l), l.scan.ahead.floor) }

// isAheadOfHorizon reports whether reads of others list rows of a lane again,
// because the horizon is behind them.
func (g *Ledger) isAheadOfHorizon(l *lane) bool {
	return len(g.crowd.names) > 0 && g.horizon.seq < l.scan.ahead.position
}

// Others returns the references of a read of others up to the last row of each
// lane that it may take, and the keys of the rows that are to be loaded.
func (r *Read) Others(seen []driver.RowRef) (considered []driver.RowRef, keys []store.Key) {
	limit, lane, n := r.each(), -1, 0
	for i := range seen {
		ref := &seen[i]
		if ref.Lane != lane {
			lane, n = ref.Lane, 0
		}
		if r.isWanted(ref) {
			if n++; n <= limit {
				keys = append(keys, ref.Key)
			}
		}
		if n <= limit {
			considered = append(considered, *ref)
		}
	}
	return considered, keys
}

// each is the number of rows of a lane that a read of others loads.
func (r *Read) each() int { return max(othersLimit/max(len(r.lanes), 1), othersEach) }

// isWanted reports whether a read of others loads a row.
func (r *Read) isWanted(ref *driver.RowRef) bool {
	_, crowds := r.Crowd[ref.Tenant]
	_, known := r.known[ref.ID]
	return !crowds && !known
}

// finishOthers takes rows of other tenants, ahead of the fast read, which will
// find them known or gone.
func (g *Ledger) finishOthers(r *Read, a *Answer) {
	c := &g.crowd
	c.took, c.more = a.Took, false
	if g.isOvertaken(a) {
		return
	}
	refs, rows := a.Refs, a.Page.Rows
	for _, l := range r.lanes {
		n := 0
		for n < len(refs) && refs[n].Lane == l.number {
			n++
		}
		from, to := lanePart(rows, l.number)
		g.finishOthersLane(l, refs[:n], rows[from:to], r, a.Page.Now)
		refs = refs[n:]
	}
	c.tookOthers()
}

// finishOthersLane takes the rows of a lane in their order. It stops in front
// of a row for which there is no room, or that the fast read has to take first.
func (g *Ledger) finishOthersLane(l *lane, refs []driver.RowRef, rows []store.Row, r *Read, now time.Time) {
	s := &l.scan
	if l.gone || l.draining || s.rescan || s.movedBack == g.readNo || len(refs) == 0 {
		return
	}
	if s.impossible(rows) {
		g.distrust()
		return
	}
	seen, wanted := int64(0), len(rows)
	for i := range refs {
		ref := &refs[i]
		if r.isWanted(ref) && len(rows) > 0 && rows[0].ID == ref.ID { // else the row is gone
			if !g.takeOther(l, ref, &rows[0], now) {
				g.sawAhead(l, max(seen, ref.Seq-1))
				return
			}
			rows = rows[1:]
		}
		seen = ref.Seq
	}
	g.sawAhead(l, seen)
	g.crowd.more = g.crowd.more || len(refs) >= r.Limit || wanted >= r.each()
}

// sawAhead notes that a read of others has looked at all rows of a lane up to a
// seq.
func (g *Ledger) sawAhead(l *lane, seq int64) {
	s := &l.scan
	s.ahead.position = max(s.ahead.position, seq)
	s.ahead.floor = min(seq, g.horizon.seq)
}

// takeOther takes a row of another tenant. It reports false if the row is left
// in its table: there is no room, or the row committed late behind the position
// of the fast read, which takes it.
func (g *Ledger) takeOther(l *lane, ref *driver.RowRef, row *store.Row, now time.Time) bool {
	if known := l.items[row.ID]; known != nil {
		known.mergeSeq(row)
		return true
	}
	if row.Seq <= l.scan.position {
		if l.accountsFor(ref) {
			return true
		}
		l.scan.woken = true
		return false
	}
	if l.unsettled >= g.Window() || g.othersRoom() <= 0 {
		return false
	}
	taken := g.takeRow(l, row, now, &l.suspicion.others)
	if it := l.items[row.ID]; it != nil {
		g.memory.isOther(it)
		g.crowd.tookOther(row.Event.TenantID)
	}
	return taken
}
