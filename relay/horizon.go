package relay

import (
	"math"
	"slices"
	"time"

	"github.com/waybillhq/waybill/store"
)

// horizon knows up to which seq every row that will ever be there is there. A transaction draws the seq of its events early and may
// commit late; what is written after that commit, to the same aggregate, must not be taken first. So the fast read begins at the
// horizon, and not where it stopped.
//
// A transaction that stays open for long would hold the horizon back, and with it every read, over what has been deleted since. It is
// set aside instead: while it is open nobody can have written after its commit. Each read is followed by a look whether it still is; if
// not, what was read is not taken before the stretch behind it has been looked through.
type horizon struct {
	unknown bool  // the store may not tell
	seq     int64 // the horizon

	// Up to drawn, every row is there or comes from a transaction in open, since the check of that time.
	drawn  int64
	open   []string
	checks int

	// issued is the highest seq that the store last reported as handed out.
	// After a crash, a failover or a restore a sequence goes back: the seqs
	// above it are drawn again. The horizon is behind until the sequence has
	// caught up with what has been read.
	issued int64
	behind bool

	old  map[string]int64 // transactions that are set aside, and where the horizon was when they began
	next time.Time        // the next check
}

const (
	horizonInterval = 500 * time.Millisecond
	// unknownInterval is when a store is asked again that could not tell.
	unknownInterval = 10 * time.Second
	// oldChecks is how many checks the horizon waits for a transaction.
	oldChecks = 4
)

// wanted reports whether the horizon ends before what has been read.
func (h *horizon) wanted(lanes []*lane) bool {
	if h.unknown || h.next.IsZero() || len(h.old) > 0 {
		return true
	}
	for _, l := range lanes {
		if l.read > h.seq {
			return true
		}
	}
	return false
}

// check takes what the store says about open transactions, and how far has been read.
func (h *horizon) check(w store.WriterState, read int64, now time.Time) {
	h.unknown = w.Unknown
	h.next = now.Add(horizonInterval)
	if h.unknown {
		h.next = now.Add(unknownInterval)
		return
	}
	if w.Issued < h.issued {
		// How far it went back is not known: those who are open may have drawn again any seq that
		// was drawn before.
		*h = horizon{next: h.next, behind: true, drawn: w.HighSeq, open: w.Open, old: h.old}
		if len(w.Open) == 0 {
			h.seq = w.HighSeq
		}
	}
	h.issued = w.Issued
	if h.behind = h.behind && w.Issued < read; !h.behind {
		w.HighSeq = max(w.HighSeq, read) // what has been read was drawn
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

// forget makes the horizon begin anew, as at the start: the server has failed, or a row was found
// where there could be none any more. It may have crashed, or be another one, and other
// transactions may have drawn since what had been drawn before.
func (h *horizon) forget() { *h = horizon{unknown: h.unknown, issued: h.issued, behind: true} }

// ended returns from where to look for what transactions wrote that were set aside and are not open any more, and forgets them.
func (h *horizon) ended(w *store.WriterState) (from int64, some bool) {
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

// whole returns up to where a lane that is read to its end now has been seen whole. A store whose
// rows are there in the order of their seq has no such place: all of it is always seen.
func (h *horizon) whole() int64 {
	if h.seq == math.MaxInt64 {
		return 0
	}
	return h.seq
}

// setAside reports whether transactions are: after a read, somebody has to see whether they are still open.
func (h *horizon) setAside() bool { return len(h.old) > 0 }

// floor returns where a read of a lane begins that misses nothing. If the store cannot tell, two seconds have to do.
func (e *engine) floor(l *lane) int64 {
	h := &e.horizon
	if h.unknown {
		return l.recent.floor(e.dbClock.now(), l.read)
	}
	return min(l.read, l.floor)
}

// settleHorizon takes what the store says about open transactions.
func (e *engine) settleHorizon(w store.WriterState) {
	read := int64(0)
	for _, l := range e.lanes.list {
		read = max(read, l.read)
	}
	before := e.horizon.seq
	e.horizon.check(w, read, time.Now())
	if e.horizon.seq < before { // it went back: reads begin there again
		e.readAgainFrom(e.horizon.seq)
	}
	if from, some := e.horizon.ended(&w); some {
		e.lookFrom(from)
	}
}

// distrust has the horizon begin anew, and every lane be looked through from its beginning.
func (e *engine) distrust() {
	e.horizon.forget()
	e.readAgainFrom(0)
}

// readAgainFrom has reads begin at a place again.
func (e *engine) readAgainFrom(seq int64) {
	e.lookFrom(seq)
	for _, l := range e.lanes.list {
		l.floor, l.whole = min(l.floor, seq), 0
	}
}

// impossible reports whether a read has brought a row that cannot be there: when the lane was
// last read to its end, all rows up to the horizon of that time had been seen. Such a seq was
// drawn a second time, because the sequence went back, as it does after a crash: a connection
// pool may hide that from the relay. One in front of it may be drawn again and not committed yet.
func (l *lane) impossible(rows []store.Row) bool {
	for i := range rows {
		if seq := rows[i].Seq; seq > l.read && seq <= l.whole {
			return true
		}
	}
	return false
}

// lookFrom has every lane looked through from a place on before more of it is taken.
func (e *engine) lookFrom(seq int64) {
	for _, l := range e.lanes.list {
		if !l.look || seq < l.lookFrom {
			l.look, l.lookFrom = true, seq
		}
		l.wake = true
	}
}
