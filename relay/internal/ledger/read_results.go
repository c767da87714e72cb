package ledger

import (
	"slices"
	"sort"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// RowsRead takes the answer to a read.
func (g *Ledger) RowsRead(r Read, a Answer, now time.Time) {
	g.now = now
	if !g.stopping {
		g.dbClock.set(a.Page.Now, now)
		g.memory.sawRows(a.Page.Rows)
		g.leaveOut(&r)
		g.finishRead(&r, &a)
		g.releaseRows(a.Page.Rows)
	}
	g.endRead()
}

func (g *Ledger) finishRead(r *Read, a *Answer) {
	switch r.Kind {
	case ReadHolds:
		g.finishHolds(r.lanes, a)
	case ReadFast:
		g.finishFast(r, a)
	case ReadDue:
		g.finishDue(r, a)
	case ReadFollow:
		g.finishFollow(r, a)
	case ReadLoad:
		g.finishLoad(a)
	case ReadSweep:
		g.finishSweep(r, a)
	case ReadUrgent:
		g.finishUrgent(r, a)
	case ReadOthers:
		g.finishOthers(r, a)
	case ReadWriters:
		g.settleHorizon(*a.Writers)
	}
}

// endRead notes that no read is under way: every later read begins after the
// settlements that were answered by now.
func (g *Ledger) endRead() {
	g.reading = false
	for i, it := range g.settledDuringRead {
		it.forget()
		g.settledDuringRead[i] = nil
	}
	g.settledDuringRead = g.settledDuringRead[:0]
}

// readRetry is the delay after a failed read.
const readRetry = 250 * time.Millisecond

// ReadFailed schedules the retry of a failed read, soon but not at once.
func (g *Ledger) ReadFailed(r Read, now time.Time) {
	g.now = now
	p := &g.plan
	later := now.Add(readRetry)
	g.distrust() // the server may have lost or changed rows, or be another server
	switch r.Kind {
	case ReadFast:
		for _, l := range slices.Concat(r.lanes, r.left) {
			l.scan.woken = true
		}
		p.lastFast, p.fastTook = later, 0
	case ReadDue:
		g.dueTimes.at(later)
	case ReadFollow:
		p.follow, p.followAfter = append(p.follow, r.agg), later
	case ReadSweep:
		g.endSweep()
	case ReadLoad:
		p.load = nil // the next sweep finds them again, in their order
	case ReadWriters:
		p.writersAfter = later
	case ReadHolds:
		p.holdsAfter, p.holds.after = later, later
	case ReadOthers:
		g.crowd.last = later
	case ReadUrgent:
	}
	g.endRead()
}

// finishFast takes a page of new rows, lane by lane.
func (g *Ledger) finishFast(r *Read, a *Answer) {
	p := &g.plan
	p.fastTook = a.Took
	if !r.whole { // it may walk over many deleted rows
		p.reads.add(a.Took)
	}
	if g.isOvertaken(a) {
		return
	}
	if r.Skip != nil {
		g.finishSkim(r.lanes[0], r, a)
		return
	}
	rows := a.Page.Rows
	taken, fresh := false, 0
	whole, foreign := r.whole, -g.counts.ColdTaken
	for _, l := range r.lanes {
		from, to := lanePart(rows, l.number)
		if l.gone || l.draining {
			whole = false
			continue
		}
		whole = whole && l.scan.movedBack != g.readNo
		before := len(l.items)
		if g.finishFastLane(l, rows[from:to], r, a) {
			taken = true
		}
		fresh += max(len(l.items)-before, 0)
		whole = whole && to-from < r.Limit
	}
	p.unlooked += fresh
	g.crowdReads(rows)
	switch {
	case taken:
		p.busy()
	case !p.chase.isActive(g.now):
		p.empty(g.cfg.PollInterval)
	}
	if g.isBehind() {
		p.rate, p.rateAt = 0, g.now
		if fresh == 0 { // else polls would follow without a pause while a lane waits
			p.chase.empty++
		}
	} else {
		p.arrived(fresh, g.now)
		if !g.selfPolling {
			p.chase.read(fresh, foreign+g.counts.ColdTaken, r.woken, g.now)
		}
	}
	g.updateSelfPolling()
	p.nextPoll = g.now.Add(p.chase.pause(max(p.interval, firstPoll), g.batchDelay(min(g.cfg.Linger, a.Took)), g.now))
	if r.whole {
		p.sweep.took(a.Took, time.Duration(p.reads), g.now)
	}
	if whole && !p.sweep.running {
		g.endSweep()
		// The next poll will have covered the rows again by then.
		p.sweep.next = p.sweep.next.Add(p.interval / 2)
	}
}

// finishSkim takes the rows that were picked from a lane whose rows are nearly
// all passed over.
func (g *Ledger) finishSkim(l *lane, r *Read, a *Answer) {
	if l.gone || l.draining {
		return
	}
	s := &l.scan
	if s.movedBack == g.readNo {
		s.woken = true
		return
	}
	taken, short := g.takeSkimmed(l, r, a)
	g.plan.unlooked += taken
	var released []*aggregate // while the read was under way
	for key := range r.Skip {
		if agg := l.aggs[key]; agg != nil && len(agg.holders) == 0 {
			released = append(released, agg)
		}
	}
	g.advanceAll(released)
	s.floor = min(s.position, g.horizon.seq)
	full := len(a.Refs) >= r.Limit
	g.endOfPage(l, full, short, taken < len(a.Refs)/8)
	g.plan.busy()
}

// takeSkimmed takes the rows of a lane that were loaded, and passes over those
// that were only listed. It returns the number of rows that were taken, and
// whether there was no room for one.
func (g *Ledger) takeSkimmed(l *lane, r *Read, a *Answer) (taken int, short bool) {
	rows := a.Page.Rows
	for i := range a.Refs {
		ref := &a.Refs[i]
		if !g.isInOrder(l, ref.Seq) {
			return taken, true
		}
		if _, skipped := r.Skip[ref.Aggregate]; skipped {
			// Also if the aggregate was released meanwhile: then the row is
			// read again.
			agg := l.aggregate(ref.Aggregate)
			l.suspicion.passBehind(agg, ref.ID, &l.suspicion.ready)
			agg.pass(ref.Seq)
			l.scan.recent.add(ref.Seq, g.dbNow(), g.dbNow()) // its time is not known
		} else if len(rows) > 0 && rows[0].ID == ref.ID { // else the row is gone
			if !g.take(l, &rows[0], a.Page.Now) {
				return taken, true
			}
			l.scan.saw(&rows[0], a.Page.Now)
			rows = rows[1:]
			taken++
		}
		l.scan.position = max(l.scan.position, ref.Seq)
	}
	return taken, false
}

// endOfPage records what the end of a page shows about the rows behind it: the
// page was full, there was no room for one of its rows, or few of its rows were
// taken.
func (g *Ledger) endOfPage(l *lane, full, short, few bool) {
	switch {
	case full && !short && few:
		l.scan.state = skimming
	case full || short:
		l.scan.state = behind
	default:
		l.scan.state = caughtUp
		l.suspicion.seenReady()
		g.forgetAnnounced(l)
	}
}

// isOvertaken reports whether an excluded transaction had ended when these rows
// had been read: the rows of that transaction come first.
func (g *Ledger) isOvertaken(a *Answer) bool {
	from, some := g.horizon.ended(a.Writers)
	if some {
		g.rescanFrom(from)
	}
	return some
}

// loadMissing schedules loading the unknown rows of a lane that come before
// those that were read. It reports whether there are any.
func (g *Ledger) loadMissing(l *lane, a *Answer) bool {
	found := false
	for i := range a.Refs {
		ref := &a.Refs[i]
		if ref.Lane == l.number && !l.accountsFor(ref) {
			g.plan.load = append(g.plan.load, ref.Key)
			found = true
		}
	}
	return found
}

// lanePart returns the range of a lane's rows in a page that is ordered by
// lane.
func lanePart(rows []store.Row, lane int) (from, to int) {
	before := func(lane int) int { return sort.Search(len(rows), func(i int) bool { return rows[i].Lane >= lane }) }
	return before(lane), before(lane + 1)
}

// finishFastLane takes the rows of one lane. It reports whether any row was
// new.
func (g *Ledger) finishFastLane(l *lane, rows []store.Row, r *Read, a *Answer) bool {
	s := &l.scan
	if s.movedBack == g.readNo || g.loadMissing(l, a) {
		s.woken = true
		return false
	}
	if s.impossible(rows) {
		g.distrust() // nothing is taken before the store has reported open transactions
		return false
	}
	full := len(rows) >= r.Limit
	before, known := s.position, len(l.items)
	short, gap := false, full && rows[len(rows)-1].Seq < before
	for i := range rows {
		row := &rows[i]
		if !g.isInOrder(l, row.Seq) || !g.take(l, row, a.Page.Now) {
			short = true // the window is full, or another row comes first: this row and those after it are read again
			gap = gap || row.Seq < before
			break
		}
		s.saw(row, a.Page.Now)
		s.position = max(s.position, row.Seq)
	}
	if !gap {
		s.floor, s.rescan = min(s.position, g.horizon.seq), false
	}
	g.endOfPage(l, full, short, len(l.items)-known < len(rows)/8)
	// A page full of rows that are in memory or held shows nothing about the
	// rows after it: continue from where reading stopped.
	s.clogged = full && s.position == before
	if s.state == caughtUp && !gap {
		s.whole = g.horizon.whole()
	}
	return s.position > before || len(l.items) > known
}

// minDuePause is the minimum pause between two full pages of deferred rows,
// also without a linger: the rows of the next page may be the same ones.
const minDuePause = time.Millisecond

// finishDue takes deferred rows that are due.
func (g *Ledger) finishDue(r *Read, a *Answer) {
	full := len(a.Page.Rows) >= r.Limit
	if next := a.Page.Next; !next.IsZero() {
		g.dueTimes.at(g.now.Add(next.Sub(a.Page.Now)))
	}
	if full {
		g.dueTimes.at(g.now.Add(max(g.cfg.Linger, minDuePause)))
	}
	crowded := false
	for i := range a.Page.Rows {
		row := &a.Page.Rows[i]
		l := g.lanes.at(row.Lane)
		if l == nil || !l.active() {
			continue
		}
		crowded = crowded || l.unsettled >= g.window || g.isFull() || l.items[row.ID] == nil && l.suspicion.undecided(row.ID, &l.suspicion.late)
		if !g.takeDue(l, row) && full {
			it := g.add(l, row, false)
			it.late = true
			g.deferBehind(l, it)
		}
	}
	if crowded {
		g.dueTimes.at(g.now.Add(firstPoll))
	}
	if full || crowded {
		return
	}
	for _, l := range r.lanes {
		if !l.draining { // else it took none
			l.suspicion.late = places{}
		}
	}
}

// behindDelay is how long a due row that waits behind another row of its
// aggregate is deferred, unless its turn comes first.
const behindDelay = 5 * time.Second

// recall makes the next rows of an aggregate that were deferred behind another
// row due again: their turn has come.
func (g *Ledger) recall(a *aggregate) {
	l := a.lane
	// The limit is less than a page.
	for i := range min(len(a.holders), maxQueued, max(g.cfg.BatchSize/2, 1)) {
		h := &a.holders[i]
		if known := l.items[h.id]; h.behind == nil || known != nil && known.state != settled {
			return
		}
		b := *h.behind
		h.behind = nil
		row := &store.Row{Key: store.Key{Lane: l.number, Seq: h.seq, ID: h.id}, Attempts: b.attempts, Replay: b.replay, LastError: b.text}
		it := g.add(l, row, false)
		it.late = true
		g.deferEvent(it, 0, true, b.text)
	}
}

// finishFollow takes the rows of an aggregate that had been passed over, in
// their order.
func (g *Ledger) finishFollow(r *Read, answer *Answer) {
	a := r.agg
	a.following = false
	if a.lane.gone || a.lane.draining {
		return
	}
	if g.isOvertaken(answer) {
		g.advance(a)
		return
	}
	upTo, passedTo := r.Cursors[0].UpTo, a.passedTo
	if a.passed != r.passed {
		// Meanwhile an earlier event was deferred, or the read position moved
		// back: these rows would come too early.
		g.advance(a)
		return
	}
	a.passed, a.passedTo = 0, 0
	rows := answer.Page.Rows
	g.plan.unlooked += len(rows)
	for i := range rows {
		if !g.take(a.lane, &rows[i], answer.Page.Now) {
			a.pass(rows[i].Seq)
		}
	}
	switch {
	case len(rows) >= r.Limit:
		a.pass(rows[len(rows)-1].Seq + 1)
	case passedTo > upTo:
		a.pass(upTo + 1) // passed over while this read was under way
	}
	if a.passed != 0 {
		a.passedTo = max(a.passedTo, passedTo)
	}
	// take may have forgotten the aggregate meanwhile: put it back if it has
	// state.
	if known := a.lane.aggs[a.key]; known == nil && (a.passed != 0 || len(a.queue) > 0) {
		a.lane.aggs[a.key] = a
	}
	g.advance(a)
}

// finishLoad takes rows that committed late.
func (g *Ledger) finishLoad(a *Answer) {
	rows := a.Page.Rows
	for i := range rows {
		row := &rows[i]
		// The read position may have moved back since the sweep: then the fast
		// read covers the row.
		if l := g.lanes.at(row.Lane); l != nil && l.active() && row.Seq <= l.scan.position {
			if !g.take(l, row, a.Page.Now) {
				g.plan.load = nil // the next sweep finds it again; later rows must not come first
				break
			}
			l.scan.saw(row, a.Page.Now)
		}
	}
	if len(rows) > 0 {
		g.plan.busy()
	}
}

// finishUrgent takes rows that have a priority, ahead of the fast read, which
// will find them known or gone. A lane that was lost and acquired again during
// the read is not active: its holds have not been read.
func (g *Ledger) finishUrgent(r *Read, a *Answer) {
	p := &g.plan
	p.urgentTook, p.looked = a.Took, a.Page.RowsScanned
	u := urgentPage{
		overtaken: g.isOvertaken(a),
		// Even if the queue is full there is room for a few urgent rows, which
		// are delivered next.
		room:  max(g.queueRoom(), urgentLimit-len(g.cold.urgent)),
		waits: make(map[store.Aggregate]struct{}),
	}
	rows := a.Page.Rows
	for i := range rows {
		row := &rows[i]
		l := g.lanes.at(row.Lane)
		if l != nil && l.active() && l.items[row.ID] == nil && !row.DueAt.After(a.Page.Now) {
			before := l.unsettled
			g.takeUrgent(l, row, &u)
			u.room -= l.unsettled - before
		}
	}
	// A page without a row of a lane is not enough: the first urgent rows may
	// wait for other rows, and the store looks at few rows behind them. The
	// crashed owner, which had taken those other rows, may have had any of the
	// urgent ones in flight.
	for _, l := range r.lanes {
		if slices.Contains(a.Page.Plain, l.number) && !l.draining {
			l.suspicion.urgent = places{}
		}
	}
}

// urgentPage is the state while a page of urgent rows is taken.
type urgentPage struct {
	overtaken bool
	room      int
	waits     map[store.Aggregate]struct{} // aggregates whose next rows have to wait
}

func (g *Ledger) takeUrgent(l *lane, row *store.Row, u *urgentPage) {
	urgent := &l.suspicion.urgent
	agg := driver.AggregateOf(&row.Event)
	_, waits := u.waits[agg]
	switch {
	case row.Seq <= l.scan.position:
		u.waits[agg] = struct{}{} // it committed late, and the fast read returns it
	case u.room <= 0 || l.unsettled >= g.Window() || l.suspicion.undecided(row.ID, urgent):
		// There is no room for it now.
	case agg.IsZero():
		g.takeUnordered(l, row, false, urgent)
	case u.overtaken || l.scan.rescan || l.scan.movedBack == g.readNo || len(g.plan.load) > 0:
		// Rows in front of it may be unknown.
	case waits || !g.takeAhead(l, row):
		u.waits[agg] = struct{}{}
	}
}
