package ledger

import (
	"errors"
	"slices"
	"time"
)

// suspects are events that may have been in flight on a crashed owner: one of
// them may have caused the crash. They are delivered one at a time: the attempt
// is counted, durably, then the event is delivered and settled. So an event
// that kills its process becomes a dead letter, and its neighbors do not.
type suspects struct {
	list    []*Item
	current *Item
	counted bool // current's attempt is on disk
	sent    bool
}

func (s *suspects) push(it *Item) { s.list = append(s.list, it) }

func (s *suspects) has(it *Item) bool {
	return it.suspect && (s.current == it || slices.Contains(s.list, it))
}

// next removes and returns the next suspect: one that probes its destination;
// otherwise the first of those with the fewest attempts. A process may end for
// another reason right after it has counted an attempt, and that must not hit
// the same event every time.
func (s *suspects) next() *Item {
	at := 0
	for i, it := range s.list {
		if it.probe {
			at = i
			break
		}
		if it.row.Attempts < s.list[at].row.Attempts {
			at = i
		}
	}
	it := s.list[at]
	s.list = slices.Delete(s.list, at, at+1)
	return it
}

// remove forgets an item that is dropped.
func (s *suspects) remove(it *Item) {
	if !it.suspect {
		return
	}
	s.list = slices.DeleteFunc(s.list, func(x *Item) bool { return x == it })
	s.settled(it)
}

// settled ends an item's turn.
func (s *suspects) settled(it *Item) {
	if s.current == it {
		s.current, s.counted, s.sent = nil, false, false
	}
}

// again lets the current suspect be delivered again: its delivery did not
// happen.
func (s *suspects) again(it *Item) {
	if s.current == it {
		s.sent = false
	}
}

var errCrashed = errors.New("the last attempt did not return: the process ended during the delivery")

// CountSuspect chooses the next suspect and queues the settlement that counts
// its attempt.
func (g *Ledger) CountSuspect(now time.Time) {
	g.now = now
	s := &g.suspects
	for s.current == nil && len(s.list) > 0 {
		it := s.next()
		if it.state != waiting || it.lane.gone {
			continue
		}
		if name, down := g.down(&it.row.Event); down && !it.probe {
			g.park(it, g.dests[name])
			continue
		}
		s.current = it
		if it.row.Err != nil {
			g.deadLetterUndelivered(it, it.row.Err)
			return
		}
		if g.cfg.MaxAttempts > 0 && it.row.Attempts >= g.cfg.MaxAttempts {
			g.deadLetterUndelivered(it, crashReason(it))
			return
		}
		it.attempts = it.row.Attempts + 1
		g.outcome(outcome{it: it, kind: kindCount, holds: it.agg != nil, text: it.row.LastError})
	}
}

// NextSuspect returns a suspect whose attempt is counted, as in flight: it is
// delivered alone. It returns nil if there is none.
func (g *Ledger) NextSuspect(now time.Time) *Item {
	g.now = now
	s := &g.suspects
	if s.current == nil || !s.counted || s.sent {
		return nil
	}
	s.sent = true
	g.startDelivery(s.current)
	return s.current
}

// crashReason is the error of an event whose last attempt was used up by a
// process that ended.
func crashReason(it *Item) error {
	if it.row.LastError != "" {
		return errors.New(it.row.LastError + "; " + errCrashed.Error())
	}
	return errCrashed
}

// countedSuspect notes that the attempt is on disk. The row is in delayed now,
// and holds its aggregate.
func (g *Ledger) countedSuspect(it *Item) {
	it.row.Attempts, it.counted, it.late = it.attempts, true, true
	if it.agg != nil {
		it.row.Holds = true
		g.hold(it.agg, holder{seq: it.row.Seq, id: it.id(), read: g.readNo})
	}
	g.move(it, waiting)
	g.suspects.counted = true
}

// uncount takes back the attempt of a suspect whose delivery did not happen, or
// was canceled by this relay.
func (g *Ledger) uncount(it *Item) {
	it.attempts = it.row.Attempts - 1
	if it.agg != nil {
		it.agg.remove(it)
	}
	it.lane.suspicion.remember(it)
	it.lane.suspicion.giveBack(it)
	g.suspects.settled(it)
	g.outcome(outcome{it: it, kind: kindRetry, holds: it.agg != nil, text: it.row.LastError})
}
