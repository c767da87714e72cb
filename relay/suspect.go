package relay

import (
	"context"
	"errors"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// suspects are events that may have been in flight on a crashed owner: one of
// them may have caused the crash. They are delivered one at a time: the attempt
// is counted, durably, then the event is delivered and settled. So an event
// that kills its process becomes a dead letter, and its neighbors do not.
type suspects struct {
	list    []*item
	current *item
	counted bool // current's attempt is on disk
	sent    bool
	// stop ends the context of current's delivery, so that its attempt can be
	// taken back before its lane moves to another node.
	stop context.CancelCauseFunc
}

func (s *suspects) push(it *item) { s.list = append(s.list, it) }

func (s *suspects) has(it *item) bool {
	return it.suspect && (s.current == it || slices.Contains(s.list, it))
}

// next removes and returns the next suspect: one that probes its destination;
// otherwise the first of those with the fewest attempts. A process may end for
// another reason right after it has counted an attempt, and that must not hit
// the same event every time.
func (s *suspects) next() *item {
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
func (s *suspects) remove(it *item) {
	if !it.suspect {
		return
	}
	s.list = slices.DeleteFunc(s.list, func(x *item) bool { return x == it })
	s.settled(it)
}

// settled ends an item's turn.
func (s *suspects) settled(it *item) {
	if s.current == it {
		s.end(nil)
		s.current, s.counted, s.sent = nil, false, false
	}
}

// again lets the current suspect be delivered again: its delivery did not
// happen.
func (s *suspects) again(it *item) {
	if s.current == it {
		s.end(nil)
		s.sent = false
	}
}

// end ends the context of current's delivery.
func (s *suspects) end(cause error) {
	if s.stop != nil {
		s.stop(cause)
		s.stop = nil
	}
}

var errCrashed = errors.New("the last attempt did not return: the process ended during the delivery")

// nextSuspect moves the current suspect one step forward.
func (e *engine) nextSuspect() {
	s := &e.suspects
	for s.current == nil && len(s.list) > 0 {
		it := s.next()
		if it.state != waiting || it.lane.gone {
			continue
		}
		if name, down := e.down(&it.row.Event); down && !it.probe {
			e.park(it, e.dests[name])
			continue
		}
		s.current = it
		if it.row.Err != nil {
			e.deadLetterUndelivered(it, it.row.Err)
			return
		}
		if e.cfg.MaxAttempts > 0 && it.row.Attempts >= e.cfg.MaxAttempts {
			e.deadLetterUndelivered(it, e.crashReason(it))
			return
		}
		it.attempts = it.row.Attempts + 1
		e.outcome(outcome{it: it, kind: kindCount, holds: it.agg != nil, text: it.row.LastError})
	}
	if s.current == nil || !s.counted || s.sent || e.idle == 0 {
		return
	}
	s.sent = true
	j := e.newJob()
	j.ctx, s.stop = context.WithCancelCause(e.lease)
	e.startDelivery(j, s.current)
	e.send(j)
}

// crashReason is the error of an event whose last attempt was used up by a
// process that ended.
func (e *engine) crashReason(it *item) error {
	if it.row.LastError != "" {
		return errors.New(it.row.LastError + "; " + errCrashed.Error())
	}
	return errCrashed
}

// countedSuspect notes that the attempt is on disk. The row is in delayed now,
// and holds its aggregate.
func (e *engine) countedSuspect(it *item) {
	it.row.Attempts, it.counted, it.late = it.attempts, true, true
	if it.agg != nil {
		it.row.Holds = true
		it.agg.hold(holder{seq: it.row.Seq, id: it.id(), read: e.readNo})
	}
	it.state = waiting
	e.suspects.counted = true
}

// maxWary limits how many suspects that are not in memory a lane remembers.
const maxWary = 10_000

// suspect decides whether a row that is taken may have crashed an owner. left
// is how many rows of its kind may have, besides the known suspects.
func (l *lane) suspect(it *item, left *int) {
	if _, known := l.wary[it.id()]; known {
		delete(l.wary, it.id())
		it.suspect = true
		return
	}
	if *left > 0 {
		*left--
		l.placed++
		it.suspect, it.place = true, left
	}
}

// places returns the counter of suspect places that a row uses. A row with a
// priority may have been taken ahead of the others.
func (l *lane) places(row *store.Row) *int {
	if l.suspects == 0 && row.Event.Priority > 0 {
		return &l.urgentSuspects
	}
	return &l.suspects
}

// undecided reports whether a row has to wait: it is not a suspect, but becomes
// one if a suspect gives its place back.
func (l *lane) undecided(id waybill.ID, left int, unsure bool) bool {
	if !unsure || left > 0 || l.placed == 0 {
		return false
	}
	_, known := l.wary[id]
	return !known
}

// remember keeps an event suspect that leaves memory before a delivery of it
// has ended.
func (l *lane) remember(it *item) {
	if it.suspect && l.wary != nil && len(l.wary) < maxWary {
		l.wary[it.id()] = struct{}{}
	}
}

// passWary keeps a row suspect that is passed over because its destination is
// unavailable. The crashed owner had no more rows of one destination than its
// window.
func (l *lane) passWary(dest string, id waybill.ID, left int) {
	if left > 0 && l.waryOf[dest] < l.lease.Window && len(l.wary) < maxWary {
		if _, known := l.wary[id]; !known {
			l.waryOf[dest]++
			l.wary[id] = struct{}{}
		}
	}
}

// cleared lets rows that waited for a suspect's place continue.
func (l *lane) cleared(it *item) {
	if it.place != nil {
		it.place = nil
		l.placed--
	}
}

// giveBack gives the place of a suspect to another row: the crashed owner
// cannot have delivered an event that waits.
func (l *lane) giveBack(it *item) {
	if left := it.place; left != nil {
		l.cleared(it)
		if left == &l.suspects && l.unsure || left == &l.lateSuspects && l.lateUnsure || left == &l.urgentSuspects && l.urgentUnsure {
			*left++
		}
	}
}

// seenAll notes that all ready rows that the last owner can have had in flight
// have been seen.
func (l *lane) seenAll() {
	l.suspects, l.unsure = 0, false
	l.urgentSuspects, l.urgentUnsure = 0, false
}

// uncount takes back the attempt of a suspect whose delivery did not happen, or
// was canceled by this relay.
func (e *engine) uncount(it *item) {
	it.attempts = it.row.Attempts - 1
	if it.agg != nil {
		it.agg.remove(it)
	}
	it.lane.remember(it)
	it.lane.giveBack(it)
	e.suspects.settled(it)
	e.outcome(outcome{it: it, kind: kindRetry, holds: it.agg != nil, text: it.row.LastError})
}
