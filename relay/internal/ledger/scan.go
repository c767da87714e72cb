package ledger

import (
	"time"

	"github.com/waybillhq/waybill/store"
)

// scan is how far a lane has been read.
type scan struct {
	state scanState
	// position is the seq at which the fast read stopped. A row may commit late
	// with a lower seq.
	position int64
	// floor is the seq up to which every row that will ever exist has been
	// seen, except rows of excluded transactions; see horizon.
	floor  int64
	recent recent // used instead of floor if the store cannot report open transactions
	// whole is the horizon at the time when the lane was last read to its end:
	// no new row can appear at or below it.
	whole int64
	// rescan: there may be unseen rows between rescanFrom and the position that
	// come before the rows that are read next.
	rescan     bool
	rescanFrom int64
	// clogged: the rows just before the position fill a whole page.
	clogged bool
	// woken: a notification reported rows to read.
	woken bool
	// movedBack is the read that was under way when the position moved back:
	// its rows come after rows that will be read again.
	movedBack int64
	// awaits: the next row may be taken only when other rows have been
	// appended.
	awaits bool
	// ahead is how far reads of other tenants have looked.
	ahead ahead
	// appended is the lowest seq that was appended to the lane during the read
	// appendedDuring.
	appended, appendedDuring int64
}

// beforeAppended reports whether a row that a read has returned comes before
// all rows that were appended during that read.
func (s *scan) beforeAppended(seq, readNo int64) bool {
	return s.appended == 0 || s.appendedDuring != readNo || seq <= s.appended
}

// scanState is what the last fast read of a lane showed.
type scanState uint8

const (
	caughtUp scanState = iota // the read reached the end of the lane
	behind                    // the read did not reach the end of the lane
	skimming                  // behind, and most rows of the page were passed over: larger pages are listed first
)

// rescanAt has the lane checked from a seq on before more of it is taken.
func (s *scan) rescanAt(seq int64) {
	if !s.rescan || seq < s.rescanFrom {
		s.rescan, s.rescanFrom = true, seq
	}
	s.woken, s.ahead = true, ahead{}
}

// lowerFloor makes reads begin at a seq again.
func (s *scan) lowerFloor(seq int64) { s.floor, s.whole, s.ahead = min(s.floor, seq), 0, ahead{} }

// moveBack makes the fast read continue at a seq that it has passed, while a
// read is under way.
func (s *scan) moveBack(to, readNo int64) {
	s.position, s.movedBack = min(s.position, to), readNo
	s.lowerFloor(s.position)
	s.state, s.woken, s.clogged = behind, true, true
}

// impossible reports whether a read has returned a row that cannot exist: when
// the lane was last read to its end, all rows up to the horizon of that time
// had been seen. Such a seq was drawn a second time, because the sequence went
// back, as it does after a crash: a connection pool may hide the crash from the
// relay. A seq in front of it may have been drawn again and not committed yet.
func (s *scan) impossible(rows []store.Row) bool {
	for i := range rows {
		if seq := rows[i].Seq; seq > s.position && seq <= s.whole {
			return true
		}
	}
	return false
}

// saw notes a row that was read at now.
func (s *scan) saw(row *store.Row, now time.Time) { s.recent.add(row.Seq, row.CreatedAt, now) }

// recent finds the rows that are older than two seconds. A transaction draws
// the seq of its events before it commits, so rows regularly appear in front of
// others that have been read. The fast read begins behind the last row that was
// written more than two seconds ago: a transaction that drew its seqs since
// then has higher ones.
type recent struct {
	old     int64 // the highest seq of rows that are older
	buckets [recentBuckets]bucket
}

type bucket struct {
	number int64 // the period of time
	last   int64 // the highest seq written in that period
}

const (
	recentBuckets = 16
	bucketWidth   = 125 * time.Millisecond
)

// add notes a row that was read at now. A producer with plain SQL may have
// written any creation time: a time in the future counts as now.
func (r *recent) add(seq int64, created, now time.Time) {
	if created.Before(now.Add(-recentBuckets * bucketWidth)) {
		r.old = max(r.old, seq)
		return
	}
	if created.After(now) {
		created = now
	}
	n := created.UnixNano() / int64(bucketWidth)
	b := &r.buckets[n%recentBuckets]
	if n > b.number {
		r.old = max(r.old, b.last) // that period is more than two seconds ago
		*b = bucket{number: n, last: seq}
	} else {
		b.last = max(b.last, seq)
	}
}

// floor returns the seq after which to read: the last row that is older than
// two seconds, and not behind the position.
func (r *recent) floor(now time.Time, position int64) int64 {
	oldest := now.UnixNano()/int64(bucketWidth) - recentBuckets
	floor := r.old
	for _, b := range r.buckets {
		if b.number <= oldest {
			floor = max(floor, b.last)
		}
	}
	return min(floor, position)
}
