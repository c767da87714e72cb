package memstore

import (
	"cmp"
	"container/heap"
	"iter"
	"slices"
	"time"

	"github.com/waybillhq/waybill/store"
)

// record is a row and its state. A row that moves gets a new record; readers of
// the old record see that it has left. Only a ready row that is delivered keeps
// its record: no series that still contains the record depends on the changed
// fields.
type record struct {
	store.Row
	state store.State
	ended time.Time // delivered or dead-lettered at
	cause string    // of a dead letter; see driver.Causes
	left  bool
	place int     // index in the heap of deferred rows; -1 if due
	taker *txn    // the open transaction that has recorded it as done
	group *series // the ready records of its aggregate
}

func (r *record) pending() bool { return r.state == store.Ready || r.state == store.Delayed }

func bySeq(a, b *record) int   { return cmp.Compare(a.Seq, b.Seq) }
func byDue(a, b *record) int   { return cmp.Or(a.DueAt.Compare(b.DueAt), bySeq(a, b)) }
func byEnded(a, b *record) int { return cmp.Or(a.ended.Compare(b.ended), bySeq(a, b)) }

// series is a sorted list of records. Records that have left are skipped, and
// removed once they are as many as those that stay: adding and removing cost
// the same for any length.
type series struct {
	order func(a, b *record) int
	ended bool // holds delivered or dead records, not pending ones
	rows  []*record
	gone  int
}

// has reports whether a record that was added to the series still belongs to
// it.
func (s *series) has(r *record) bool { return !r.left && (s.ended || r.pending()) }

// add inserts a record at its place, which is nearly always the end.
func (s *series) add(r *record) {
	if n := len(s.rows); n == 0 || s.order(s.rows[n-1], r) < 0 {
		s.rows = append(s.rows, r)
		return
	}
	at, _ := slices.BinarySearchFunc(s.rows, r, s.order)
	s.rows = slices.Insert(s.rows, at, r)
}

// drop counts a record that has left.
func (s *series) drop() {
	s.gone++
	for s.gone > 0 && !s.has(s.rows[0]) {
		s.rows = s.rows[1:]
		s.gone--
	}
	if s.gone*2 > len(s.rows) {
		s.rows = slices.DeleteFunc(s.rows, func(r *record) bool { return !s.has(r) })
		s.gone = 0
	}
}

// all calls yield for every record that has not left.
func (s *series) all(yield func(*record) bool) {
	for _, r := range s.rows {
		if s.has(r) && !yield(r) {
			return
		}
	}
}

// stretch adds the records with a seq in (after, upTo] to found, at most limit;
// an upTo of 0 means no upper bound. The series is in the order of seq.
func (s *series) stretch(found []*record, after, upTo int64, limit int) []*record {
	found = slices.Grow(found, max(min(limit, len(s.rows)-s.after(after)), 0))
	for r := range s.between(after, upTo) {
		if limit <= 0 {
			break
		}
		found = append(found, r)
		limit--
	}
	return found
}

// after returns the index of the first record after a seq.
func (s *series) after(seq int64) int {
	start, _ := slices.BinarySearchFunc(s.rows, seq+1, func(r *record, seq int64) int { return cmp.Compare(r.Seq, seq) })
	return start
}

// between iterates over the records with a seq in (after, upTo]; an upTo of 0
// means no upper bound. The series is in the order of seq.
func (s *series) between(after, upTo int64) iter.Seq[*record] {
	return func(yield func(*record) bool) {
		if s == nil {
			return
		}
		for _, r := range s.rows[s.after(after):] {
			if upTo > 0 && r.Seq > upTo {
				return
			}
			if s.has(r) && !yield(r) {
				return
			}
		}
	}
}

// from iterates over the records that have ended at or after a time. The series
// is in the order of these times.
func (s *series) from(at time.Time) iter.Seq[*record] {
	return func(yield func(*record) bool) {
		start, _ := slices.BinarySearchFunc(s.rows, at, func(r *record, at time.Time) int { return r.ended.Compare(at) })
		for _, r := range s.rows[start:] {
			if s.has(r) && !yield(r) {
				return
			}
		}
	}
}

// near returns the record with a seq, searching the first records first; nil if
// there is none. The series is in the order of seq.
func (s *series) near(seq int64) *record {
	end := 1
	for end < len(s.rows) && s.rows[end-1].Seq < seq {
		end *= 2
	}
	rows := s.rows[end/2 : min(end, len(s.rows))]
	at, found := slices.BinarySearchFunc(rows, seq, func(r *record, seq int64) int { return cmp.Compare(r.Seq, seq) })
	if !found || !s.has(rows[at]) {
		return nil
	}
	return rows[at]
}

// queue holds the pending rows of a lane.
type queue struct {
	ready  series // in the order of seq
	urgent series // ready rows with a priority
	due    series // deferred rows that are due
	later  later  // deferred rows that are not due
}

func newQueues(n int) []queue {
	queues := make([]queue, n)
	for i := range queues {
		queues[i] = queue{ready: series{order: bySeq}, urgent: series{order: bySeq}, due: series{order: byDue}}
	}
	return queues
}

// delayed calls yield for every deferred row.
func (q *queue) delayed(yield func(*record) bool) {
	for r := range q.due.all {
		if !yield(r) {
			return
		}
	}
	for _, r := range q.later {
		if !yield(r) {
			return
		}
	}
}

// drop removes a row that has left.
func (q *queue) drop(r *record) {
	switch {
	case r.state == store.Ready:
		q.dropReady(r)
	case r.place < 0:
		q.due.drop()
	default:
		heap.Remove(&q.later, r.place)
	}
}

// dropReady removes a row that is no longer ready.
func (q *queue) dropReady(r *record) {
	q.ready.drop()
	if urgent(r) {
		q.urgent.drop()
	}
}

func urgent(r *record) bool { return r.Event.Priority > 0 }

// advance moves the rows that are due by now, and returns the time at which the
// next one is due; zero if there is none.
func (q *queue) advance(now time.Time) time.Time {
	for len(q.later) > 0 {
		first := q.later[0]
		if first.DueAt.After(now) {
			return first.DueAt
		}
		heap.Pop(&q.later)
		q.due.add(first)
	}
	return time.Time{}
}

// later is a heap of rows by due time.
type later []*record

func (l later) Len() int           { return len(l) }
func (l later) Less(i, j int) bool { return byDue(l[i], l[j]) < 0 }

func (l later) Swap(i, j int) {
	l[i], l[j] = l[j], l[i]
	l[i].place, l[j].place = i, j
}

func (l *later) Push(x any) {
	r := x.(*record)
	r.place = len(*l)
	*l = append(*l, r)
}

func (l *later) Pop() any {
	last := len(*l) - 1
	r := (*l)[last]
	r.place = -1
	(*l)[last] = nil
	*l = (*l)[:last]
	return r
}
