package relay

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// lane is the state of a lane that this relay owns. Only the engine's goroutine
// uses it.
type lane struct {
	number int
	lease  driver.Lease
	claim  *driver.Claim // of all deliveries; nil before the first one
	since  time.Time     // when this relay learned that it owns the lane

	// items are the events in memory, and those that a read under way might
	// still return.
	items map[waybill.ID]*item
	// unsettled is the number of items that are not settled, at most the window
	// recorded in the lane's row.
	unsettled int
	// busy is the number of unsettled items that are with a worker, or finished
	// and not settled.
	busy int

	aggs map[store.Aggregate]*aggregate

	// read is the seq at which the fast read stopped. A row may commit late
	// with a lower seq.
	read int64
	// floor is the seq up to which every row that will ever exist has been
	// seen, except rows of excluded transactions; see horizon.
	floor  int64
	recent recent // used instead of floor if the store cannot report open transactions
	// whole is the horizon at the time when the lane was last read to its end:
	// no new row can appear at or below it.
	whole int64
	// look: there may be unseen rows between lookFrom and read that come before
	// the rows that are read next.
	look     bool
	lookFrom int64
	// backlog: the last fast read did not reach the end of the lane.
	backlog bool
	// clogged: the rows just before read fill a whole page.
	clogged bool
	// barren: most of the last page was passed over, so the next page may be
	// larger.
	barren bool
	// wake: a notification reported rows to read.
	wake bool
	// rewound is the read that was under way when the read position moved back:
	// its rows come after rows that will be read again.
	rewound int64

	// open: the holds have been read, so reading may begin.
	open bool
	// suspects and lateSuspects are how many of the next rows, ready and
	// deferred, may have been in flight on a crashed owner.
	suspects, lateSuspects int
	// urgentSuspects is the same number for rows with a priority, which the
	// crashed owner may have taken ahead of the others.
	urgentSuspects int
	// unsure, lateUnsure and urgentUnsure: suspect rows may not have been read
	// yet. A suspect that turns out to have waited for an unavailable
	// destination gives its place back to them.
	unsure, lateUnsure, urgentUnsure bool
	// placed is the number of suspects in memory that may still give their
	// place back.
	placed int
	// wary are suspects that left memory before a delivery ended: they stay
	// suspect. waryOf is how many of them were passed over because their
	// destination was unavailable, by destination.
	wary   map[waybill.ID]struct{}
	waryOf map[string]int

	// announced are events that this process has committed and that have not
	// been read yet, with the number of fast reads that missed them.
	announced map[waybill.ID]int

	// skipped are unordered rows that were passed over because their
	// destination is unavailable, by seq; skippedFrom is the lowest seq of any
	// row that was passed over, by destination.
	skipped     map[int64]struct{}
	skippedFrom map[string]int64

	// settling is the number of the last settlement that includes the lane.
	settling int64

	draining bool
	drainBy  time.Time
	gone     bool // released or lost
}

func newLane(lease driver.Lease) *lane {
	l := &lane{
		number: lease.Lane, lease: lease, items: make(map[waybill.ID]*item), aggs: make(map[store.Aggregate]*aggregate),
		announced: make(map[waybill.ID]int), skipped: make(map[int64]struct{}), skippedFrom: make(map[string]int64), wake: true, since: time.Now(),
	}
	if lease.Unclean {
		l.suspects, l.lateSuspects, l.urgentSuspects = lease.Window, lease.Window, lease.Window
		l.unsure, l.lateUnsure, l.urgentUnsure = true, true, true
		l.wary, l.waryOf = make(map[waybill.ID]struct{}), make(map[string]int)
	}
	return l
}

// owned is the set of lanes that this relay owns. The relay iterates over the
// lanes all the time, and they change rarely: the list is replaced, never
// modified, so that a loop over it may remove lanes.
type owned struct {
	list []*lane
	by   map[int]*lane
}

// at returns the lane with a number, or nil.
func (o *owned) at(number int) *lane { return o.by[number] }

func (o *owned) add(l *lane) {
	if o.by == nil {
		o.by = make(map[int]*lane)
	}
	if old := o.by[l.number]; old != nil {
		o.remove(old)
	}
	o.by[l.number] = l
	o.list = append(slices.Clip(o.list), l)
}

func (o *owned) remove(l *lane) {
	if o.by[l.number] == l {
		delete(o.by, l.number)
	}
	o.list = slices.DeleteFunc(slices.Clone(o.list), func(x *lane) bool { return x == l })
}

// inTurn calls yield for every lane. It starts at a random lane, so that all
// lanes are served fairly.
func (o *owned) inTurn(yield func(*lane) bool) {
	list := o.list
	if len(list) == 0 {
		return
	}
	first := rand.IntN(len(list))
	for i := range list {
		if !yield(list[(first+i)%len(list)]) {
			return
		}
	}
}

// aggregate is the state of an aggregate with events that are in memory, held
// or passed over.
type aggregate struct {
	key  store.Aggregate
	lane *lane
	// queue are its unfinished events in memory, in the order of delivery.
	queue []*item
	// one is the queue's first backing array: most aggregates have a single
	// event in memory.
	one [1]*item
	// inFlight is how many items at the front of the queue are with a worker.
	inFlight int
	// stuck counts dead letters that are being moved; the aggregate continues
	// only when the moves have been answered.
	stuck int
	// holders are rows in delayed or dead that hold the aggregate back, by seq.
	holders []holder
	// passed is the first seq that was passed over, 0 if none was; passedTo is
	// the last.
	passed, passedTo int64
	// waitsFor is the destination for which the aggregate was passed over.
	waitsFor string
	// lateWaiting: a row that is due was left in its table, behind another row.
	lateWaiting bool
	// following: the aggregate's rows are to be read again.
	following bool
}

// holder is a row that holds an aggregate back.
type holder struct {
	seq  int64
	id   waybill.ID
	dead bool
	read int64 // the read during which the holder was added
	// behind: the row is due, but was deferred so that it does not fill every
	// page of due rows. The fields below are copied from the row.
	behind           bool
	attempts, replay int
	text             string
}

// maxQueued is the maximum number of events of one aggregate that wait in
// memory: more would leave no room for the rest of the lane.
const maxQueued = 64

func (l *lane) aggregate(key store.Aggregate) *aggregate {
	a := l.aggs[key]
	if a == nil {
		a = &aggregate{key: key, lane: l}
		l.aggs[key] = a
	}
	return a
}

// passedOver returns the aggregates whose next rows would be passed over in any
// case.
func (l *lane) passedOver() map[store.Aggregate]struct{} {
	out := make(map[store.Aggregate]struct{})
	for key, a := range l.aggs {
		if a.passes(l.read + 1) {
			out[key] = struct{}{}
		}
	}
	return out
}

// tidy forgets an aggregate that has no state.
func (a *aggregate) tidy() {
	if len(a.queue) == 0 && len(a.holders) == 0 && a.passed == 0 && a.stuck == 0 && a.lane.aggs[a.key] == a {
		delete(a.lane.aggs, a.key)
	}
}

// heldBefore reports whether a row with this seq has to wait for another row.
func (a *aggregate) heldBefore(seq int64) bool {
	return len(a.holders) > 0 && a.holders[0].seq < seq
}

// hold adds a row that holds the aggregate.
func (a *aggregate) hold(h holder) {
	at, found := slices.BinarySearchFunc(a.holders, h, func(x, y holder) int { return cmp.Compare(x.seq, y.seq) })
	if found && a.holders[at].id == h.id {
		a.holders[at] = h
		return
	}
	a.holders = slices.Insert(a.holders, at, h)
}

// deferBehind notes that a row that holds the aggregate was deferred although
// it is due.
func (a *aggregate) deferBehind(row *store.Row) {
	if at := slices.IndexFunc(a.holders, func(h holder) bool { return h.id == row.ID }); at >= 0 {
		h := &a.holders[at]
		h.behind, h.attempts, h.replay, h.text = true, row.Attempts, row.Replay, row.LastError
	}
}

// holds reports whether the row with this id holds the aggregate.
func (a *aggregate) holds(id waybill.ID) bool {
	return slices.ContainsFunc(a.holders, func(h holder) bool { return h.id == id })
}

// unhold removes a row that held the aggregate.
func (a *aggregate) unhold(id waybill.ID) {
	a.holders = slices.DeleteFunc(a.holders, func(h holder) bool { return h.id == id })
}

// pass notes that a row was passed over; it will be read again.
func (a *aggregate) pass(seq int64) {
	if a.passed == 0 || seq < a.passed {
		a.passed = seq
	}
	a.passedTo = max(a.passedTo, seq)
}

// passes reports whether a row with this seq must be passed over because an
// earlier row was, or because there is no room.
func (a *aggregate) passes(seq int64) bool {
	return a.heldBefore(seq) || a.passed != 0 && seq >= a.passed || len(a.queue) >= maxQueued
}

// enqueue inserts an item by seq, behind the items that are with a worker.
func (a *aggregate) enqueue(it *item) {
	at := len(a.queue)
	if cap(a.queue) == 0 {
		a.queue = a.one[:0]
	}
	if !it.late || it.row.Holds {
		for at > a.inFlight && a.queue[at-1].row.Seq > it.row.Seq {
			at--
		}
	}
	a.queue = slices.Insert(a.queue, at, it)
}

// remove takes an item that is not with a worker any more out of the queue.
func (a *aggregate) remove(it *item) {
	if len(a.queue) > 0 && a.queue[0] == it { // the common case
		a.queue[0] = nil
		a.queue = a.queue[1:]
		return
	}
	if at := slices.Index(a.queue, it); at >= 0 {
		a.queue = slices.Delete(a.queue, at, at+1)
	}
}

// recent knows where the rows of the last two seconds begin. A transaction
// draws the seq of its events before it commits, so rows near the end of a lane
// regularly appear out of order; the fast read begins a little before the
// position where it stopped.
type recent struct {
	buckets [recentBuckets]bucket
}

type bucket struct {
	number int64 // the period of time
	first  int64 // the lowest seq written in that period
}

const (
	recentBuckets = 16
	bucketWidth   = 125 * time.Millisecond
)

// add notes a row that was read at now. A producer with plain SQL may have
// written any creation time: a time in the future counts as now.
func (r *recent) add(seq int64, created, now time.Time) {
	if created.Before(now.Add(-recentBuckets * bucketWidth)) {
		return
	}
	if created.After(now) {
		created = now
	}
	n := created.UnixNano() / int64(bucketWidth)
	b := &r.buckets[n%recentBuckets]
	if n > b.number {
		*b = bucket{number: n, first: seq}
	} else if n == b.number {
		b.first = min(b.first, seq)
	}
}

// floor returns the seq after which to read: just before the first row of the
// last two seconds, or read if there is none.
func (r *recent) floor(now time.Time, read int64) int64 {
	oldest := now.UnixNano()/int64(bucketWidth) - recentBuckets
	for _, b := range r.buckets {
		if b.first > 0 && b.number > oldest {
			read = min(read, b.first-1)
		}
	}
	return read
}
