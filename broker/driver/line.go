package driver

import (
	"cmp"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
)

// item is a message in a line.
type item struct {
	in       *Incoming
	delivery waybill.Delivery
	bad      error // why the message cannot be decoded; then delivery is empty
	key      string
	number   uint64 // number within the tenure, if there is one
	order    place
	due      time.Time // set if deferred: held in memory until then
	line     *queue    // the queue that holds it, while it is in the line
	back     bool      // this receiver had returned it to the broker
}

// redelivered reports whether the broker delivered the message before, by its
// delivery count, to a process that may have crashed because of it. Messages
// that this process held or returned do not count.
func (it *item) redelivered() bool { return it.in.Attempt > 1 && it.in.held == 0 && !it.back }

// place is the position of a message among the messages of its key. A place is
// compared as a whole and never packed into fewer bits, because two messages
// with equal places are treated as two copies of one message.
type place struct {
	order  uint64
	within [2]uint64
}

func placeOf(in *Incoming) place { return place{in.Order, in.Within} }

func (p place) compare(other place) int {
	return cmp.Or(cmp.Compare(p.order, other.order), cmp.Compare(p.within[0], other.within[0]), cmp.Compare(p.within[1], other.within[1]))
}

// line orders the messages in flight: messages of one key one after another,
// different keys concurrently. The owner of the line guards it with a lock.
//
// A key is blocked while one of its messages is being handled, waits in memory
// for its next attempt, or has been returned to the broker with a delay: later
// messages do not overtake it. A message that comes back, or that another
// consumer had and lost, goes in front of later messages.
type line struct {
	keys    map[string]*queue
	queues  []*queue // ordered by when they became non-empty
	arrived uint64   // last place given to a message without its own
	size    int      // messages in memory: waiting or being handled
	away    int      // returned messages that are still expected back
}

// queue holds the messages of one key. A message without a key has a queue to
// itself.
type queue struct {
	key     string
	waiting []*item // sorted by place
	busy    *item
	away    map[place]absence // returned messages
}

// absence describes a message that was returned to the broker.
type absence struct {
	due    time.Time // when the broker redelivers the message
	lapses time.Time // end of the wait; another consumer may have it
}

func newLine() *line { return &line{keys: make(map[string]*queue)} }

// insert adds a message to the line. A waiting copy is replaced, because the
// broker accepts answers only for the latest delivery. insert reports whether
// the line has grown.
func (l *line) insert(it *item) bool {
	if it.order.order == 0 {
		l.arrived++
		it.order = place{order: l.arrived}
	}
	q := l.keys[it.key]
	if q == nil || it.key == "" {
		q = &queue{key: it.key}
		l.queues = append(l.queues, q)
		if it.key != "" {
			l.keys[it.key] = q
		}
	}
	if _, back := q.away[it.order]; back {
		it.back = true
		delete(q.away, it.order)
		l.away--
	}
	it.line = q
	at, found := slices.BinarySearchFunc(q.waiting, it.order, func(w *item, order place) int { return w.order.compare(order) })
	if found {
		q.waiting[at] = it
		return false
	}
	q.waiting = slices.Insert(q.waiting, at, it)
	l.size++
	return true
}

// blocked returns how long a message has to wait for earlier messages of its
// key that were returned to the broker. The result is zero if the message need
// not wait.
func (l *line) blocked(key string, order place, now time.Time) time.Time {
	if q := l.keys[key]; q != nil && key != "" && order.order != 0 {
		return q.behind(order, now)
	}
	return time.Time{}
}

// behind returns the latest redelivery time among the returned messages that
// precede order and are still expected.
func (q *queue) behind(order place, now time.Time) time.Time {
	var until time.Time
	for o, a := range q.away {
		if o.compare(order) < 0 && a.lapses.After(now) && a.due.After(until) {
			until = a.due
		}
	}
	return until
}

// ready returns the time at which the queue's first message may be handled. ok
// is false if there is no message to wait for.
func (q *queue) ready(now time.Time) (at time.Time, ok bool) {
	if q.busy != nil || len(q.waiting) == 0 {
		return time.Time{}, false
	}
	head := q.waiting[0]
	at = head.due
	for o, a := range q.away {
		if o.compare(head.order) < 0 && a.lapses.After(now) && a.lapses.After(at) {
			// Or sooner: the message comes back in front of the queue.
			at = a.lapses
		}
	}
	return at, true
}

// take returns up to limit messages that may be handled now, each of a
// different key, and marks them as being handled. next is the time at which
// more messages become ready; zero means that none becomes ready by time alone.
func (l *line) take(now time.Time, limit int) (items []*item, next time.Time) {
	l.sweep(now)
	for _, q := range l.queues {
		at, ok := q.ready(now)
		switch {
		case !ok:
		case at.After(now):
			if next.IsZero() || at.Before(next) {
				next = at
			}
		case len(items) == limit:
			return items, now
		default:
			q.busy = q.waiting[0]
			q.waiting = slices.Delete(q.waiting, 0, 1)
			items = append(items, q.busy)
		}
	}
	return items, next
}

// sweep removes lapsed absences and empty queues.
func (l *line) sweep(now time.Time) {
	l.queues = slices.DeleteFunc(l.queues, func(q *queue) bool {
		for o, a := range q.away {
			if !a.lapses.After(now) {
				delete(q.away, o)
				l.away--
			}
		}
		if q.busy != nil || len(q.waiting) > 0 || len(q.away) > 0 {
			return false
		}
		if l.keys[q.key] == q {
			delete(l.keys, q.key)
		}
		return true
	})
}

// done removes a handled message from the line.
func (l *line) done(it *item) {
	it.line.busy = nil
	l.size--
}

// hold puts a handled message back into its place until it is due.
func (l *line) hold(it *item, due time.Time) {
	q := it.line
	q.busy = nil
	it.due = due
	l.size--
	if len(q.waiting) > 0 && q.waiting[0].order == it.order {
		q.waiting[0].due = due // a newer copy has arrived and replaces this one
		return
	}
	at, _ := slices.BinarySearchFunc(q.waiting, it.order, func(w *item, order place) int { return w.order.compare(order) })
	q.waiting = slices.Insert(q.waiting, at, it)
	l.size++
}

// leave removes a handled message that is returned to the broker, and returns
// the messages that wait behind it. Those are removed as well, because they
// must be returned, too. The line waits for all of them until lapses.
func (l *line) leave(it *item, due, lapses time.Time) []*item {
	q := it.line
	q.busy = nil
	l.size--
	if q.key == "" {
		return nil
	}
	l.absent(q, it.order, due, lapses)
	behind := q.waiting
	q.waiting = nil
	for _, w := range behind {
		l.size--
		l.absent(q, w.order, due, lapses)
	}
	return behind
}

func (l *line) absent(q *queue, order place, due, lapses time.Time) {
	if q.away == nil {
		q.away = make(map[place]absence)
	}
	if _, known := q.away[order]; !known {
		l.away++
	}
	q.away[order] = absence{due: due, lapses: lapses}
}

// turnAway records that a message was returned on arrival, because earlier
// messages of its key are away.
func (l *line) turnAway(key string, order place, due, lapses time.Time) {
	if q := l.keys[key]; q != nil {
		l.absent(q, order, due, lapses)
	}
}

// remove removes and returns the waiting messages that match.
func (l *line) remove(match func(*Incoming) bool) []*item {
	var removed []*item
	for _, q := range l.queues {
		q.waiting = slices.DeleteFunc(q.waiting, func(it *item) bool {
			if !match(it.in) {
				return false
			}
			removed = append(removed, it)
			l.size--
			return true
		})
	}
	return removed
}

// each calls fn for every message in memory.
func (l *line) each(fn func(*item)) {
	for _, q := range l.queues {
		if q.busy != nil {
			fn(q.busy)
		}
		for _, it := range q.waiting {
			fn(it)
		}
	}
}
