package relay

import (
	"sort"
	"time"

	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// finishFast takes a page of new rows, lane by lane.
func (e *engine) finishFast(r readReply) {
	p := &e.plan
	p.fastTook = r.took
	p.reads.add(r.took)
	if e.overtaken(r) {
		return
	}
	if r.skip != nil {
		e.finishBarren(r.lanes[0], r)
		return
	}
	rows := r.page.Rows
	taken, fresh := false, 0
	whole := r.whole
	for _, l := range r.lanes {
		from, to := lanePart(rows, l.number)
		if l.gone || l.draining {
			whole = false
			continue
		}
		whole = whole && l.rewound != e.readNo
		before := len(l.items)
		if e.finishFastLane(l, rows[from:to], r) {
			taken = true
		}
		fresh += max(len(l.items)-before, 0)
		p.unlooked += max(len(l.items)-before, 0)
		whole = whole && to-from < r.limit
	}
	if taken {
		p.busy()
	} else {
		p.empty(e.cfg.PollInterval)
	}
	now := time.Now()
	if e.behind() {
		p.rate, p.rateAt = 0, now
	} else {
		p.arrived(fresh, now)
	}
	e.updateSelfPolling()
	p.nextPoll = now.Add(max(p.interval, firstPoll))
	if whole && !p.sweeping {
		p.sweepTook = r.took
		e.endSweep(now)
		// The next poll will have covered the rows again by then.
		p.nextSweep = p.nextSweep.Add(p.interval / 2)
	}
}

// finishBarren takes the rows that were picked from a lane whose rows are
// nearly all passed over.
func (e *engine) finishBarren(l *lane, r readReply) {
	if l.gone || l.draining {
		return
	}
	if l.rewound == e.readNo {
		l.wake = true
		return
	}
	rows, taken, short := r.page.Rows, 0, false
	for i := range r.sightings {
		s := &r.sightings[i]
		if _, skipped := r.skip[s.Aggregate]; skipped {
			// Also if the aggregate was released meanwhile: then the row is
			// read again.
			l.aggregate(s.Aggregate).pass(s.Seq)
		} else if len(rows) > 0 && rows[0].ID == s.ID { // else the row is gone
			if !e.take(l, &rows[0], r.page.Now) {
				short = true
				break
			}
			l.recent.add(s.Seq, rows[0].CreatedAt, r.page.Now)
			rows = rows[1:]
			taken++
		}
		l.read = max(l.read, s.Seq)
	}
	e.plan.unlooked += taken
	for agg := range r.skip {
		if a := l.aggs[agg]; a != nil {
			e.advance(a)
		}
	}
	l.floor = min(l.read, e.horizon.seq)
	full := len(r.sightings) >= r.limit
	l.backlog = full || short
	l.barren = full && !short && taken < len(r.sightings)/8
	if !l.backlog {
		l.seenAll()
		e.forgetMarks(l)
	}
	e.plan.busy()
}

// overtaken reports whether an excluded transaction had ended when these rows
// had been read: the rows of that transaction come first.
func (e *engine) overtaken(r readReply) bool {
	from, some := e.horizon.ended(r.writers)
	if some {
		e.lookFrom(from)
	}
	return some
}

// missing reports whether a lane has unknown rows in front of those that were
// read, and schedules loading them.
func (e *engine) missing(l *lane, r readReply) bool {
	found := false
	for i := range r.sightings {
		s := &r.sightings[i]
		if s.Lane == l.number && !e.known(l, s) {
			e.plan.load = append(e.plan.load, s.Key)
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
func (e *engine) finishFastLane(l *lane, rows []store.Row, r readReply) bool {
	if l.rewound == e.readNo || e.missing(l, r) {
		l.wake = true
		return false
	}
	if l.impossible(rows) {
		e.distrust() // nothing is taken before the store has reported open transactions
		return false
	}
	full := len(rows) >= r.limit
	before, known := l.read, len(l.items)
	short, gap := false, full && rows[len(rows)-1].Seq < before
	for i := range rows {
		row := &rows[i]
		if !e.take(l, row, r.page.Now) {
			short = true // the window is full: this row and those after it are read again
			gap = gap || row.Seq < before
			break
		}
		l.recent.add(row.Seq, row.CreatedAt, r.page.Now)
		l.read = max(l.read, row.Seq)
	}
	if !gap {
		l.floor, l.look = min(l.read, e.horizon.seq), false
	}
	l.backlog = full || short
	l.barren = full && !short && len(l.items)-known < len(rows)/8
	// A page full of rows that are known or held says nothing about the rows
	// after it: continue from where reading stopped.
	l.clogged = full && l.read == before
	if !l.backlog {
		l.seenAll()
		e.forgetMarks(l)
		if !gap {
			l.whole = e.horizon.whole()
		}
	}
	return l.read > before || len(l.items) > known
}

// finishDue takes deferred rows that are due.
func (e *engine) finishDue(r readReply) {
	full := len(r.page.Rows) >= r.limit
	now := time.Now()
	if next := r.page.Next; !next.IsZero() {
		e.dueTimes.at(now.Add(next.Sub(r.page.Now)))
	}
	if full {
		e.dueTimes.at(now.Add(e.cfg.Linger))
	}
	crowded := false
	for i := range r.page.Rows {
		row := &r.page.Rows[i]
		l := e.lanes.at(row.Lane)
		if l == nil || l.draining || !l.open {
			continue
		}
		crowded = crowded || l.unsettled >= e.window || l.items[row.ID] == nil && l.undecided(row.ID, l.lateSuspects, l.lateUnsure)
		if !e.takeDue(l, row) && full {
			// The row waits for another row and would fill every page: defer
			// it.
			it := e.add(l, row, false)
			it.late = true
			if a := l.aggs[driver.AggregateOf(&row.Event)]; a != nil && row.Holds {
				a.deferBehind(row)
				it.behind = a
			}
			e.deferEvent(it, behindDelay, row.Holds, row.LastError)
		}
	}
	if crowded {
		e.dueTimes.at(now.Add(firstPoll))
	}
	if full || crowded {
		return
	}
	for _, l := range r.lanes {
		if !l.draining { // else it took none
			l.lateSuspects, l.lateUnsure = 0, false
		}
	}
}

// behindDelay is how long a due row that waits behind another row of its
// aggregate is deferred, unless its turn comes first.
const behindDelay = 5 * time.Second

// recall makes the next rows of an aggregate that were deferred behind another
// row due again: their turn has come.
func (e *engine) recall(a *aggregate) {
	l := a.lane
	// The limit is less than a page.
	for i := range min(len(a.holders), maxQueued, max(e.cfg.BatchSize/2, 1)) {
		h := &a.holders[i]
		if known := l.items[h.id]; !h.behind || known != nil && known.state != settled {
			return
		}
		h.behind = false
		row := &store.Row{Key: store.Key{Lane: l.number, Seq: h.seq, ID: h.id}, Attempts: h.attempts, Replay: h.replay, LastError: h.text}
		it := e.add(l, row, false)
		it.late = true
		e.deferEvent(it, 0, true, h.text)
	}
}

// finishFollow takes the rows of an aggregate that had been passed over, in
// their order.
func (e *engine) finishFollow(r readReply) {
	a := r.agg
	a.following = false
	if a.lane.gone || a.lane.draining {
		return
	}
	if e.overtaken(r) {
		e.advance(a)
		return
	}
	upTo, passedTo := r.cursors[0].UpTo, a.passedTo
	if a.passed != r.passed {
		// Meanwhile an earlier event was deferred, or the read position moved
		// back: these rows would come too early.
		e.advance(a)
		return
	}
	a.passed, a.passedTo = 0, 0
	e.plan.unlooked += len(r.page.Rows)
	for i := range r.page.Rows {
		row := &r.page.Rows[i]
		if !e.take(a.lane, row, r.page.Now) {
			a.pass(row.Seq)
		}
	}
	rows := r.page.Rows
	switch {
	case len(rows) >= r.limit:
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
	e.advance(a)
}

// finishSweep compares the rows in the table with those that are known.
func (e *engine) finishSweep(r readReply) {
	p := &e.plan
	p.sweepTook += r.took
	count := make(map[int]int, len(r.lanes))
	for i := range r.sightings {
		s := &r.sightings[i]
		l := e.lanes.at(s.Lane)
		if l == nil {
			continue
		}
		count[s.Lane]++
		if _, ok := p.swept[l]; ok {
			p.swept[l] = s.Seq
		}
		if !e.known(l, s) && len(p.load) < e.cfg.ColdQueue {
			p.load = append(p.load, s.Key)
		}
	}
	for _, l := range r.lanes {
		if count[l.number] < r.limit {
			delete(p.swept, l)
		}
	}
	if len(p.swept) == 0 {
		e.endSweep(time.Now())
	}
}

// known reports whether there is a reason why a row below the read position
// still exists. A row that waits behind a hold is noted as passed over: it may
// have committed late, and then no read has noted it before.
func (e *engine) known(l *lane, s *driver.RowRef) bool {
	if l.items[s.ID] != nil {
		return true
	}
	if s.Aggregate.IsZero() {
		_, skipped := l.skipped[s.Seq]
		return skipped
	}
	a := l.aggs[s.Aggregate]
	if a == nil || !a.heldBefore(s.Seq) && (a.passed == 0 || s.Seq < a.passed) {
		return false
	}
	a.pass(s.Seq)
	return true
}

// finishLoad takes rows that committed late.
func (e *engine) finishLoad(r readReply) {
	for i := range r.page.Rows {
		row := &r.page.Rows[i]
		// The read position may have moved back since the sweep: then the fast
		// read covers the row.
		if l := e.lanes.at(row.Lane); l != nil && l.open && !l.draining && row.Seq <= l.read {
			if !e.take(l, row, r.page.Now) {
				e.plan.load = nil // the next sweep finds it again; later rows must not come first
				break
			}
			l.recent.add(row.Seq, row.CreatedAt, r.page.Now)
		}
	}
	if len(r.page.Rows) > 0 {
		e.plan.busy()
	}
}

// finishUrgent takes rows that have a priority, ahead of the fast read, which
// will find them known or gone.
func (e *engine) finishUrgent(r readReply) {
	p := &e.plan
	p.urgentTook, p.looked = r.took, r.page.RowsScanned
	overtaken := e.overtaken(r)
	// Even if the queue is full there is room for a few urgent rows, which are
	// delivered next.
	room := max(e.cfg.ColdQueue+e.cfg.BatchSize-e.cold.depth, urgentLimit-len(e.cold.urgent))
	left := make(map[*lane]bool, len(r.lanes))  // lanes with rows that were left in the table
	waits := make(map[store.Aggregate]struct{}) // aggregates whose next rows have to wait
	for i := range r.page.Rows {
		row := &r.page.Rows[i]
		l := e.lanes.at(row.Lane)
		if l == nil || l.draining || l.items[row.ID] != nil || row.DueAt.After(r.page.Now) {
			continue
		}
		agg := driver.AggregateOf(&row.Event)
		if row.Seq <= l.read {
			waits[agg] = struct{}{} // it committed late, and the fast read returns it
			continue
		}
		if room <= 0 || l.unsettled >= e.window || l.undecided(row.ID, l.urgentSuspects, l.urgentUnsure) {
			left[l] = true
			continue
		}
		before := l.unsettled
		switch _, behind := waits[agg]; {
		case agg.IsZero():
			suspects := l.suspects
			l.suspects = 0 // urgent rows are not among the first rows, and have places of their own
			e.takeUnordered(l, row, false)
			l.suspects = suspects
		case overtaken || l.look || l.rewound == e.readNo || len(p.load) > 0:
			left[l] = true // rows in front of it may be unknown
		case behind || !e.takeAhead(l, row):
			waits[agg] = struct{}{}
		}
		room -= l.unsettled - before
	}
	// Only a read that returns no row has seen all of them: a store may leave
	// rows out, and rows of a short page may have been settled during the read.
	for _, l := range r.lanes {
		if from, to := lanePart(r.page.Rows, l.number); from == to && !left[l] && !l.draining {
			l.urgentSuspects, l.urgentUnsure = 0, false
		}
	}
}
