package ledger

import "time"

// dueSoon is how soon a deferred row must be due so that the ledger is not
// idle: after a page without room the next one follows within that time.
const dueSoon = 2 * firstPoll

// IsIdle reports whether there is nothing to deliver now: every lane has been
// read to its end since this relay acquired it, and no event can be delivered
// or waits for its settlement. Events that wait for a time, for another event,
// for an operator or for an unavailable destination do not count.
func (g *Ledger) IsIdle(now time.Time) bool {
	p := &g.plan
	if g.reading || g.settling || len(g.pending.list) > 0 || g.commitsWait || len(p.load) > 0 || p.sweep.running {
		return false
	}
	if g.Ready() > 0 || g.SuspectsReady() > 0 || g.nextFollow() != nil || g.horizon.next.IsZero() && len(g.lanes.list) > 0 {
		return false
	}
	if len(g.lanes.list) > 0 && !g.dueTimes.next.After(now.Add(dueSoon)) {
		return false
	}
	for _, l := range g.lanes.list {
		switch {
		case l.draining:
		case !l.open, l.busy > 0, l.scan.woken, l.scan.awaits, l.scan.rescan, l.scan.state != caughtUp, p.lastDue.Before(l.since):
			return false
		}
	}
	return true
}
