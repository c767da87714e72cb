package relay

import (
	"errors"
	"slices"
)

// suspects are events that an owner which died may have had in hand: one of them may be what it died of. They go one at a
// time: the attempt is counted, durably, then the event is delivered and settled. So one that kills its process ends dead,
// and its neighbours do not.
type suspects struct {
	list    []*item
	current *item
	counted bool // current's attempt is on disk
	sent    bool
}

func (s *suspects) push(it *item) { s.list = append(s.list, it) }

func (s *suspects) has(it *item) bool {
	return it.suspect && (s.current == it || slices.Contains(s.list, it))
}

// next takes out the one whose turn it is: of those with the fewest attempts, the first. A process may end for another reason right after it has counted, and
// that must not hit the same event again and again.
func (s *suspects) next() *item {
	at := 0
	for i, it := range s.list {
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
		s.current, s.counted, s.sent = nil, false, false
	}
}

// again lets the current one be sent again: its delivery did not happen.
func (s *suspects) again(it *item) {
	if s.current == it {
		s.sent = false
	}
}

var errKilled = errors.New("its last attempt did not return: the process ended while it was being delivered")

// nextSuspect moves the one whose turn it is one step on.
func (e *engine) nextSuspect() {
	s := &e.suspects
	for s.current == nil && len(s.list) > 0 {
		it := s.next()
		if it.state != waiting || it.lane.gone {
			continue
		}
		s.current = it
		if it.row.Err != nil {
			e.verdict(it, it.row.Err)
			return
		}
		if e.cfg.MaxAttempts > 0 && it.row.Attempts >= e.cfg.MaxAttempts {
			e.verdict(it, e.lastWords(it))
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
	e.launch(j, s.current)
	e.send(j)
}

// lastWords is why an event is dead whose attempts were used up by a process that ended.
func (e *engine) lastWords(it *item) error {
	if it.row.LastError != "" {
		return errors.New(it.row.LastError + "; " + errKilled.Error())
	}
	return errKilled
}

// countedSuspect notes that the attempt is on disk. The row is in delayed now, and holds its aggregate.
func (e *engine) countedSuspect(it *item) {
	it.row.Attempts, it.counted, it.late = it.attempts, true, true
	if it.agg != nil {
		it.row.Holds = true
		it.agg.hold(holder{seq: it.row.Seq, id: it.id(), read: e.readNo})
	}
	it.state = waiting
	e.suspects.counted = true
}
