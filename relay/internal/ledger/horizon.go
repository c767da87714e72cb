package ledger

import (
	"math"
	"slices"
	"time"

	"github.com/waybillhq/waybill/store/driver"
)

// horizon is the seq up to which every row that will ever exist is visible. A
// transaction draws the seq of its events early and may commit late; rows
// written after that commit, to the same aggregate, must not be taken first. So
// the fast read begins at the horizon, and not where it stopped.
//
// A transaction that stays open for long would hold the horizon back, and every
// read would cover rows that have been deleted since. Such a transaction is
// excluded instead: while it is open, no row can have been written after its
// commit. Each read is followed by a check whether the excluded transactions
// are still open; if one has ended, the rows that were read are not taken
// before the range that it may have written to has been checked.
type horizon struct {
	unknown bool  // the store cannot report open transactions
	seq     int64 // the horizon

	// Up to drawn, every row is visible or comes from a transaction in open, as
	// of the last check that set them.
	drawn  int64
	open   []string
	checks int

	// issued is the highest seq that the store last reported as handed out.
	// After a crash, a failover or a restore a sequence goes back: the seqs
	// above it are drawn again. The horizon is behind until the sequence has
	// caught up with what has been read.
	issued int64
	behind bool

	old  map[string]int64 // excluded transactions, and the horizon when they began
	next time.Time        // the next check
	// regular is when the next check counts: reads of others may make checks
	// more frequent.
	regular time.Time
}

const (
	horizonInterval = 500 * time.Millisecond
	// unknownInterval is the interval between checks of a store that cannot
	// report open transactions.
	unknownInterval = 10 * time.Second
	// oldChecks is the number of checks that the horizon waits for a
	// transaction.
	oldChecks = 4
)

// wanted reports whether the horizon ends before the last row that was read.
func (h *horizon) wanted(lanes []*lane) bool {
	if h.unknown || h.next.IsZero() || len(h.old) > 0 {
		return true
	}
	for _, l := range lanes {
		if l.scan.position > h.seq {
			return true
		}
	}
	return false
}

// check takes the store's report about open transactions, and the highest seq
// that was read.
func (h *horizon) check(w driver.WriterState, read int64, now time.Time) {
	h.unknown = w.Unknown
	h.next = now.Add(horizonInterval)
	if h.unknown {
		h.next = now.Add(unknownInterval)
		return
	}
	if w.Issued < h.issued {
		// How far the sequence went back is not known: open transactions may
		// have drawn any earlier seq again.
		*h = horizon{next: h.next, behind: true, drawn: w.HighSeq, open: w.Open, old: h.old}
		if len(w.Open) == 0 {
			h.seq = w.HighSeq
		}
	}
	h.issued = w.Issued
	if h.behind = h.behind && w.Issued < read; !h.behind {
		w.HighSeq = max(w.HighSeq, read) // seqs that were read have been drawn
	}
	h.open = slices.DeleteFunc(h.open, func(id string) bool { return !slices.Contains(w.Open, id) })
	h.checks++
	if len(h.open) > 0 && h.checks < oldChecks {
		return
	}
	for _, id := range h.open {
		if h.old == nil {
			h.old = make(map[string]int64)
		}
		h.old[id] = h.seq
	}
	h.seq = max(h.seq, h.drawn)
	h.drawn, h.checks = w.HighSeq, 0
	h.open = slices.DeleteFunc(slices.Clone(w.Open), func(id string) bool { _, old := h.old[id]; return old })
	if len(h.open) == 0 {
		h.seq = max(h.seq, h.drawn)
	}
}

// forget resets the horizon, as at the start: the server has failed, or a row
// was found where none could be. The server may have crashed, or be another
// one, and other transactions may have drawn earlier seqs again.
func (h *horizon) forget() { *h = horizon{unknown: h.unknown, issued: h.issued, behind: true} }

// ended returns from where to search for rows of excluded transactions that
// have ended, and forgets these transactions.
func (h *horizon) ended(w *driver.WriterState) (from int64, some bool) {
	if w == nil || w.Unknown {
		return 0, false
	}
	from = math.MaxInt64
	for id, seq := range h.old {
		if !slices.Contains(w.Open, id) {
			from, some = min(from, seq), true
			delete(h.old, id)
		}
	}
	return from, some
}

// whole returns the seq up to which a lane that has now been read to its end is
// completely known. A store whose rows become visible in the order of their seq
// has no such seq: its lanes are always completely known.
func (h *horizon) whole() int64 {
	if h.seq == math.MaxInt64 {
		return 0
	}
	return h.seq
}

// hasExcluded reports whether any transaction is excluded: after a read, the
// relay has to check whether these transactions are still open.
func (h *horizon) hasExcluded() bool { return len(h.old) > 0 }

// floor returns where a read of a lane begins that misses no row. If the store
// cannot report open transactions, the read covers the last two seconds.
func (g *Ledger) floor(l *lane) int64 {
	s := &l.scan
	if g.horizon.unknown {
		return s.recent.floor(g.dbClock.at(g.now), s.position)
	}
	return min(s.position, s.floor)
}

// settleHorizon takes the store's report about open transactions.
func (g *Ledger) settleHorizon(w driver.WriterState) {
	read := int64(0)
	for _, l := range g.lanes.list {
		read = max(read, l.scan.position)
	}
	h := &g.horizon
	before, counts := h.seq, !g.now.Before(h.regular)
	if !counts {
		h.checks--
	}
	h.check(w, read, g.now)
	if counts {
		h.regular = h.next
	}
	if !h.unknown && slices.ContainsFunc(g.lanes.list, g.isAheadOfHorizon) {
		h.next = g.now.Add(crowdedHorizon)
	}
	if g.horizon.seq < before { // the sequence went back: reads begin there again
		g.readAgainFrom(g.horizon.seq)
	}
	if from, some := g.horizon.ended(&w); some {
		g.rescanFrom(from)
	}
}

// Distrust resets the horizon, and has every lane checked from its beginning: a
// call to the database has failed, so that the server may have crashed.
func (g *Ledger) Distrust(now time.Time) {
	g.now = now
	g.distrust()
}

func (g *Ledger) distrust() {
	g.horizon.forget()
	g.readAgainFrom(0)
}

// readAgainFrom makes reads begin at a seq again.
func (g *Ledger) readAgainFrom(seq int64) {
	g.rescanFrom(seq)
	for _, l := range g.lanes.list {
		l.scan.lowerFloor(seq)
	}
}

// rescanFrom has every lane checked from a seq on before more of it is taken.
func (g *Ledger) rescanFrom(seq int64) {
	for _, l := range g.lanes.list {
		l.scan.rescanAt(seq)
	}
}
