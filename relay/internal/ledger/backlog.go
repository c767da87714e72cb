package ledger

import "time"

// Appended notes that a settlement of the outbox has committed a row in a lane
// of this backlog. Rows of different aggregates are not appended in the order
// of their seqs: the fast read goes back to a row that it has passed. A seq of
// 0 is not known: if the fast read has passed that row, a sweep finds it.
//
// A read that is under way may not have seen the row: of its rows, only those
// in front of the appended one are taken.
func (g *Ledger) Appended(lane int, seq int64, now time.Time) {
	g.now = now
	l := g.lanes.at(lane)
	if l == nil {
		return
	}
	if seq > 0 && seq <= l.scan.position {
		l.scan.moveBack(seq-1, g.readNo)
	}
	if s := &l.scan; seq > 0 && g.reading && s.beforeAppended(seq, g.readNo) {
		s.appended, s.appendedDuring = seq, g.readNo
	}
	l.scan.woken, l.scan.awaits = true, false
	g.plan.busy()
}

// isInOrder reports whether a row that a read of new rows has returned may be
// taken: no row that has appeared during the read, or is about to appear, comes
// before it. In the latter case the lane waits until that row has appeared.
func (g *Ledger) isInOrder(l *lane, seq int64) bool {
	if g.cfg.MayTake != nil && seq > g.cfg.MayTake(l.number) {
		l.scan.awaits = true
		return false
	}
	return l.scan.beforeAppended(seq, g.readNo)
}

// IsQuiet reports whether a lane has been read to its end, and no event of the
// lane is in memory, held or passed over.
func (g *Ledger) IsQuiet(lane int) bool {
	l := g.lanes.at(lane)
	return l == nil || l.open && !l.draining && l.quiet()
}
