package ledger

import (
	"errors"
	"slices"
	"time"
)

// suspects are events that may have been in flight on a crashed owner: one of
// them may have caused the crash. They are tried in groups: the attempts of the
// group are counted, durably, then its events are delivered and settled, then
// the next group begins. An event that kills its process becomes a dead letter,
// and its neighbors do not:
//
//   - Groups of ready rows grow from one event, so that a crash with many
//     events in flight takes few turns.
//   - The count moves the rows to delayed. Deferred rows are tried alone: a
//     neighbor is counted together with the killer once.
//   - A row whose last attempt this is goes alone.
type suspects struct {
	list  []*Item
	group []*Item // being tried
	size  int     // of the last group
}

// maxGroup is the maximum number of suspects that are tried together.
const maxGroup = 256

func (s *suspects) push(it *Item) { s.list = append(s.list, it) }

// has reports whether the item waits for its turn, or has it.
func (s *suspects) has(it *Item) bool {
	return it.suspect && (slices.Contains(s.group, it) || slices.Contains(s.list, it))
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

// isAlone reports whether an item is tried alone.
func (g *Ledger) isAlone(it *Item) bool {
	return it.late || it.probe || g.cfg.MaxAttempts > 0 && it.row.Attempts+1 >= g.cfg.MaxAttempts
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
	if it.suspect {
		s.group = slices.DeleteFunc(s.group, func(x *Item) bool { return x == it })
	}
}

var errCrashed = errors.New("the last attempt did not return: the process ended during the delivery")

// CountSuspects chooses the next group of suspects when the last one has ended,
// and queues the settlement that counts its attempts.
func (g *Ledger) CountSuspects(now time.Time) {
	g.now = now
	s := &g.suspects
	for len(s.group) == 0 && len(s.list) > 0 {
		it := s.next()
		if it.state != waiting || it.lane.gone || !it.isNext() {
			g.unprobe(it)
			continue // advance lets it take its turn when it is the next event
		}
		if name, down := g.down(&it.row.Event); down && !it.probe {
			g.park(it, g.dests[name])
			continue
		}
		s.group = append(s.group, it)
		if err := it.hopeless(); err != nil {
			g.deadLetterUndelivered(it, err)
			return
		}
		if g.cfg.MaxAttempts > 0 && it.row.Attempts >= g.cfg.MaxAttempts {
			g.deadLetterUndelivered(it, crashReason(it))
			return
		}
		s.size = min(max(2*s.size, 1), maxGroup)
		if !g.isAlone(it) {
			g.fillGroup(s.size)
		}
		g.countGroup()
	}
}

// fillGroup adds ready rows to the group that have not more attempts than its
// first row.
func (g *Ledger) fillGroup(limit int) {
	s := &g.suspects
	attempts := s.group[0].row.Attempts
	rest := s.list[:0]
	for _, it := range s.list {
		if len(s.group) < limit && !g.isAlone(it) && it.row.Attempts <= attempts && it.hopeless() == nil && it.state == waiting && !it.lane.gone && it.isNext() {
			s.group = append(s.group, it)
			continue
		}
		rest = append(rest, it)
	}
	clear(s.list[len(rest):])
	s.list = rest
}

// countGroup queues the settlement that counts the attempts of the group.
func (g *Ledger) countGroup() {
	for _, it := range slices.Clone(g.suspects.group) {
		if name, down := g.down(&it.row.Event); down && !it.probe {
			g.suspects.settled(it)
			g.park(it, g.dests[name])
			continue
		}
		it.attempts = it.row.Attempts + 1
		g.outcome(outcome{it: it, kind: kindCount, holds: it.agg != nil, text: it.row.LastError})
	}
}

// SuspectsReady returns the number of suspects whose attempt is counted, and
// which can be delivered.
func (g *Ledger) SuspectsReady() int {
	n := 0
	for _, it := range g.suspects.group {
		if it.counted && it.state == waiting {
			n++
		}
	}
	return n
}

// NextSuspects appends suspects whose attempt is counted, as in flight, up to
// limit.
func (g *Ledger) NextSuspects(batch []*Item, limit int, now time.Time) []*Item {
	g.now = now
	for _, it := range slices.Clone(g.suspects.group) {
		switch {
		case len(batch) == limit || !it.counted || it.state != waiting:
		case !it.isNext():
			g.uncountBehind(it)
		default:
			g.startDelivery(it)
			batch = append(batch, it)
		}
	}
	return batch
}

// uncountBehind takes back the attempt of a suspect that is not the next event
// of its aggregate any more: it is read again after the other event.
func (g *Ledger) uncountBehind(it *Item) {
	it.agg.lateWaiting = true
	g.uncount(it)
	g.advance(it.agg)
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
}

// uncount takes back the attempt of a suspect whose delivery did not happen, or
// was canceled by this relay.
func (g *Ledger) uncount(it *Item) {
	it.attempts = it.Attempt() - 1
	if it.agg != nil {
		it.agg.remove(it)
	}
	it.lane.suspicion.remember(it)
	it.lane.suspicion.giveBack(it)
	g.suspects.settled(it)
	g.outcome(outcome{it: it, kind: kindRetry, holds: it.agg != nil, text: it.row.LastError})
}
