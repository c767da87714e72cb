package ledger

import (
	"math"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// suspicion is which rows of a lane may have been in flight on an owner that
// crashed. The lane's row recorded the owner's window: not more rows of a kind
// can be suspect.
type suspicion struct {
	// ready, late and urgent are the rows that may still turn out to be
	// suspect: among the next ready rows, the deferred rows that are due, and
	// the rows with a priority, which the owner may have taken ahead of the
	// others.
	ready, late, urgent places
	// others are the rows of other tenants that are taken ahead of the crowd.
	// The crowd of the last owner is not known: all such rows are suspect until
	// the lane has been read to its end.
	others places
	// window is the number of rows that the crashed owner can have had in
	// flight.
	window int
	// placed is the number of suspects in memory that may still give their
	// place back.
	placed int
	// wary are suspects that left memory before a delivery ended: they stay
	// suspect. waryOf is how many of them were passed over because their
	// destination was unavailable, by destination.
	wary   map[waybill.ID]struct{}
	waryOf map[string]int
}

// places is the number of next rows of a kind that are suspect.
type places struct {
	free int
	// unsure: suspect rows may not have been read yet. A suspect that turns out
	// to have waited for an unavailable destination gives its place back to
	// them.
	unsure bool
}

func newSuspicion(lease driver.Lease) suspicion {
	if !lease.Unclean {
		return suspicion{}
	}
	all := places{free: lease.Window, unsure: true}
	return suspicion{
		ready: all, late: all, urgent: all, window: lease.Window, others: places{free: math.MaxInt},
		wary: make(map[waybill.ID]struct{}), waryOf: make(map[string]int),
	}
}

// left reports whether rows may be suspect that are not in memory.
func (s *suspicion) left() bool {
	return s.ready.free > 0 || s.urgent.free > 0 || s.late.free > 0 || len(s.wary) > 0
}

// of returns the places that a ready row uses. A row with a priority may have
// been taken ahead of the others.
func (s *suspicion) of(row *store.Row) *places {
	if s.ready.free == 0 && row.Event.Priority > 0 {
		return &s.urgent
	}
	return &s.ready
}

// mark decides whether a row that is taken may have crashed an owner.
func (s *suspicion) mark(it *Item, p *places) {
	if _, known := s.wary[it.id()]; known {
		delete(s.wary, it.id())
		it.suspect = true
		return
	}
	switch {
	case p == &s.others:
		it.suspect = p.free > 0
	case p.free > 0:
		p.free--
		s.placed++
		it.suspect, it.place = true, p
	}
}

// undecided reports whether a row has to wait: it is not a suspect, but becomes
// one if a suspect gives its place back.
func (s *suspicion) undecided(id waybill.ID, p *places) bool {
	if !p.unsure || p.free > 0 || s.placed == 0 {
		return false
	}
	_, known := s.wary[id]
	return !known
}

// blocksReads reports whether it is not decided whether the next ready rows are
// suspect.
func (s *suspicion) blocksReads() bool { return s.ready.unsure && s.ready.free == 0 && s.placed > 0 }

// minWary is the least limit of suspects that are not in memory.
const minWary = 10_000

// maxWary limits how many suspects that are not in memory a lane remembers. The
// crashed owner had not more events in flight than its window, but more rows
// than that may be passed over, and any of them may have been among its events.
func (s *suspicion) maxWary() int { return max(minWary, 4*s.window) }

// maxWaryBehind is the part of the limit that rows behind other rows may use.
// Ready rows may use half of it. Deferred rows may use a quarter more, which is
// as many as the crashed owner can have had in flight: many ready rows behind
// held aggregates must not clear them.
func (s *suspicion) maxWaryBehind(late bool) int {
	if late {
		return s.maxWary() / 4 * 3
	}
	return s.maxWary() / 2
}

// remember keeps an event suspect that leaves memory before a delivery of it
// has ended.
func (s *suspicion) remember(it *Item) {
	if it.suspect && s.wary != nil && len(s.wary) < s.maxWary() {
		s.wary[it.id()] = struct{}{}
	}
}

// pass keeps a row suspect that is passed over because its destination is
// unavailable. The crashed owner had no more rows of one destination than its
// window.
func (s *suspicion) pass(dest string, id waybill.ID, p *places) {
	if p.free > 0 && s.waryOf[dest] < s.window && len(s.wary) < s.maxWary() {
		if _, known := s.wary[id]; !known {
			s.waryOf[dest]++
			s.wary[id] = struct{}{}
		}
	}
}

// maxBehind limits the ready rows of an aggregate that stay suspect behind
// another row. An owner has up to maxQueued events of an aggregate in memory;
// as many rows may have been committed among them since.
const maxBehind = 2 * maxQueued

// passBehind keeps a row suspect that is passed over because it waits for a row
// of its aggregate: an owner that crashed before that row was deferred or
// replayed may have had both in flight, in one batch. The places stay free: the
// owner may as well have passed over the row.
func (s *suspicion) passBehind(a *aggregate, id waybill.ID, p *places) {
	late := p == &s.late
	if _, known := s.wary[id]; known || p.free == 0 || len(s.wary) >= s.maxWaryBehind(late) {
		return
	}
	if !late {
		if a.wary >= maxBehind {
			return
		}
		a.wary++
	}
	s.wary[id] = struct{}{}
}

// cleared lets rows that waited for a suspect's place continue.
func (s *suspicion) cleared(it *Item) {
	if it.place != nil {
		it.place = nil
		s.placed--
	}
}

// giveBack gives the place of a suspect to another row: the crashed owner
// cannot have delivered an event that waits.
func (s *suspicion) giveBack(it *Item) {
	if p := it.place; p != nil {
		s.cleared(it)
		if p.unsure {
			p.free++
		}
	}
}

// seenReady notes that all ready rows that the last owner can have had in
// flight have been seen.
func (s *suspicion) seenReady() { s.ready, s.urgent, s.others = places{}, places{}, places{} }
