package relay

import (
	"cmp"
	"math/rand/v2"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// lane is a lane that this relay owns, and what it knows of it. Only the engine's goroutine touches it.
type lane struct {
	number int
	lease  store.Lease
	since  time.Time // when it was known to be this relay's

	// items are the events in hand, and those that a read under way might still bring back.
	items map[waybill.ID]*item
	// unsettled is how many of them are not settled: never more than the window that the lane's row names.
	unsettled int
	// busy is how many of those are with a worker, or finished and not settled.
	busy int

	aggs map[store.Aggregate]*aggregate

	// read is where the fast read stopped. A row may commit late with a seq below it.
	read int64
	// floor is up to where every row has been seen that will ever be there, but for transactions that are set aside; see horizon.
	floor  int64
	recent recent // in place of floor, if the store cannot tell
	// whole is the horizon behind which the lane was last read to its end: a row up to it that is
	// new cannot be there.
	whole int64
	// look: there may be rows between lookFrom and read that have not been seen, and that come before what is read next.
	look     bool
	lookFrom int64
	// backlog: the last fast read did not get to the end.
	backlog bool
	// clogged: what lies just behind read fills a whole page.
	clogged bool
	// barren: most of the last page was passed over, so the next may be larger.
	barren bool
	// wake: somebody says that there is something to read.
	wake bool
	// rewound is the read that was under way when reading was set back: what it brings lies behind rows that are to be read
	// again.
	rewound int64

	// open: the holds have been read, reading may begin.
	open bool
	// suspects and lateSuspects are how many of the next rows, ready and put off, may have been in the hands of an owner
	// that died.
	suspects, lateSuspects int
	// urgentSuspects is the same for rows with a priority, which that owner may have taken ahead of the others.
	urgentSuspects int
	// unsure and lateUnsure: such rows may not have been read yet. A suspect that turns out to have waited for a destination that is
	// down gives its place back to them.
	unsure, lateUnsure, urgentUnsure bool
	// placed is how many suspects in memory may still give their place back.
	placed int
	// wary are suspects that have left memory before a delivery came to an end: they stay suspect. waryOf is how many of them were
	// passed over because their destination was down, by destination.
	wary   map[waybill.ID]struct{}
	waryOf map[string]int

	// marks are events that this process has committed and that have not been read yet.
	announced map[waybill.ID]int

	// skipped are unordered rows that were passed over because their destination is down, by seq; skippedFrom is the
	// lowest of any row that was, by destination.
	skipped     map[int64]struct{}
	skippedFrom map[string]int64

	// settling is the last settlement that names the lane.
	settling int64

	draining bool
	drainBy  time.Time
	gone     bool // released or lost
}

func newLane(lease store.Lease) *lane {
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

// owned is the lanes that this relay owns. They are looked through all the time, and change rarely: a list is replaced, and never changed, so that whoever
// goes through it may lose some of them on the way.
type owned struct {
	list []*lane
	by   map[int]*lane
}

// at returns the lane of a number, or nil.
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

// inTurn calls yield for every lane, each time beginning with another one, which is fair.
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

// aggregate is an aggregate of which something is in hand, held or passed over.
type aggregate struct {
	key  store.Aggregate
	lane *lane
	// queue are its events in hand that are not finished, in the order in which they are delivered.
	queue []*item
	// one is where the queue begins: most aggregates have a single event in hand.
	one [1]*item
	// flying is how many at the front of the queue are with a worker.
	inFlight int
	// stuck: its dead letter is being moved; the aggregate goes on only when that has returned.
	stuck int
	// holders are rows in delayed or dead that hold it back, by seq.
	holders []holder
	// passed is the first seq that was passed over, 0 if none was; passedTo the last.
	passed, passedTo int64
	// waitsFor is the destination for which it was passed over.
	waitsFor string
	// lateWaiting: a row that is due was left in its table, behind another.
	lateWaiting bool
	// following: its rows are to be read again.
	following bool
}

// holder is a row that holds an aggregate back.
type holder struct {
	seq  int64
	id   waybill.ID
	dead bool
	read int64 // the read during which it was added
	// behind: it is due, and was deferred so that it does not fill every page of rows that are. The rest is what its row has.
	behind           bool
	attempts, replay int
	text             string
}

// maxQueued is how many events of one aggregate wait in memory: more would keep the rest of the lane out.
const maxQueued = 64

func (l *lane) aggregate(key store.Aggregate) *aggregate {
	a := l.aggs[key]
	if a == nil {
		a = &aggregate{key: key, lane: l}
		l.aggs[key] = a
	}
	return a
}

// passedOver returns the aggregates whose next rows would be passed over, whatever they are.
func (l *lane) passedOver() map[store.Aggregate]struct{} {
	out := make(map[store.Aggregate]struct{})
	for key, a := range l.aggs {
		if a.passes(l.read + 1) {
			out[key] = struct{}{}
		}
	}
	return out
}

// tidy forgets an aggregate about which there is nothing to remember.
func (a *aggregate) tidy() {
	if len(a.queue) == 0 && len(a.holders) == 0 && a.passed == 0 && a.stuck == 0 && a.lane.aggs[a.key] == a {
		delete(a.lane.aggs, a.key)
	}
}

// heldBefore reports whether a row of this seq has to wait for another.
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

// deferBehind notes that a row which holds the aggregate was deferred though it is due.
func (a *aggregate) deferBehind(row *store.Row) {
	if at := slices.IndexFunc(a.holders, func(h holder) bool { return h.id == row.ID }); at >= 0 {
		h := &a.holders[at]
		h.behind, h.attempts, h.replay, h.text = true, row.Attempts, row.Replay, row.LastError
	}
}

// holds reports whether the row of this id holds the aggregate.
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

// passes reports whether a row of this seq must be passed over because one before it was, or because there is no room.
func (a *aggregate) passes(seq int64) bool {
	return a.heldBefore(seq) || a.passed != 0 && seq >= a.passed || len(a.queue) >= maxQueued
}

// enqueue puts an item into its place: by seq, behind what is with a worker.
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

// remove takes an item out of the queue that is not with a worker any more.
func (a *aggregate) remove(it *item) {
	if len(a.queue) > 0 && a.queue[0] == it { // nearly always
		a.queue[0] = nil
		a.queue = a.queue[1:]
		return
	}
	if at := slices.Index(a.queue, it); at >= 0 {
		a.queue = slices.Delete(a.queue, at, at+1)
	}
}

// recent knows where the rows of the last two seconds begin. A transaction draws the seq of its events before it commits, so
// near the end of a lane rows appear out of order all the time; the fast read begins a little behind where it stopped.
type recent struct {
	buckets [recentBuckets]bucket
}

type bucket struct {
	number int64 // which stretch of time it is for
	first  int64 // the lowest seq written in it
}

const (
	recentBuckets = 16
	bucketWidth   = 125 * time.Millisecond
)

// add notes a row that was read at a time. A producer with plain SQL may have written any time of
// creation: one to come counts as now.
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

// floor returns the seq behind which to read: in front of the first row of the last two seconds, or read if there is none.
func (r *recent) floor(now time.Time, read int64) int64 {
	oldest := now.UnixNano()/int64(bucketWidth) - recentBuckets
	for _, b := range r.buckets {
		if b.first > 0 && b.number > oldest {
			read = min(read, b.first-1)
		}
	}
	return read
}
