package broker

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
	bad      error // why it cannot be read; then there is no delivery
	key      string
	number   uint64 // in the tenure, if it has one
	order    place
	due      time.Time // it was put off and stays here until then
	line     *queue    // where it stands, while it is in the line
	back     bool      // this receiver had given it back
}

// redelivered reports whether a message was delivered before, by the broker's count, to a process
// that may have died of it: not to this one, which has given it back or kept it.
func (it *item) redelivered() bool { return it.in.Attempt > 1 && it.in.held == 0 && !it.back }

// place is where a message stands among those of its key. It is compared as a whole, and never
// squeezed into fewer bits: two messages that look equal count as two copies of one.
type place struct {
	order  uint64
	within [2]uint64
}

func placeOf(in *Incoming) place { return place{in.Order, in.Within} }

func (p place) compare(other place) int {
	return cmp.Or(cmp.Compare(p.order, other.order), cmp.Compare(p.within[0], other.within[0]), cmp.Compare(p.within[1], other.within[1]))
}

// line keeps the messages in hand in order: those of one key one after another, several keys at a time. It is guarded by its owner.
//
// A key is held back while a message of it is being handled, waits here for its next attempt, or has been given back to the broker for later: what comes
// behind that one does not overtake it. A message that comes back, or that somebody else had and lost, goes in front of later ones.
type line struct {
	keys    map[string]*queue
	queues  []*queue // in the order in which they got something to do
	arrived uint64   // the last place given to a message that has none of its own
	size    int      // messages here: waiting or being handled
	away    int      // messages that were given back and are waited for
}

// queue is the messages of one key; a message without one has a queue to itself.
type queue struct {
	key     string
	waiting []*item // by order
	busy    *item
	away    map[place]absence // what was given back
}

// absence is a message that was given back to the broker.
type absence struct {
	due    time.Time // when the broker will deliver it again
	lapses time.Time // when it is no longer waited for: somebody else has got it, or it is gone
}

func newLine() *line { return &line{keys: make(map[string]*queue)} }

// insert puts a message into the line. A copy that waits already is replaced: the broker takes answers to the latest delivery. It returns whether
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

// blocked returns until when a message has to wait for earlier ones of its key that were given back; zero if it has not.
func (l *line) blocked(key string, order place, now time.Time) time.Time {
	if q := l.keys[key]; q != nil && key != "" && order.order != 0 {
		return q.behind(order, now)
	}
	return time.Time{}
}

// behind returns when the broker delivers the last message that was given back, stands before order, and is still waited for.
func (q *queue) behind(order place, now time.Time) time.Time {
	var until time.Time
	for o, a := range q.away {
		if o.compare(order) < 0 && a.lapses.After(now) && a.due.After(until) {
			until = a.due
		}
	}
	return until
}

// ready returns when the queue's first message may be handled; ok is false if there is nothing to wait for.
func (q *queue) ready(now time.Time) (at time.Time, ok bool) {
	if q.busy != nil || len(q.waiting) == 0 {
		return time.Time{}, false
	}
	head := q.waiting[0]
	at = head.due
	for o, a := range q.away {
		if o.compare(head.order) < 0 && a.lapses.After(now) && a.lapses.After(at) {
			at = a.lapses // or sooner: when it comes back it will be the first
		}
	}
	return at, true
}

// take returns up to most messages that may be handled now, each of another key, and marks them as being handled. next is when there will be
// more, if nothing else happens; zero: not by time alone.
func (l *line) take(now time.Time, most int) (items []*item, next time.Time) {
	l.sweep(now)
	for _, q := range l.queues {
		at, ok := q.ready(now)
		switch {
		case !ok:
		case at.After(now):
			if next.IsZero() || at.Before(next) {
				next = at
			}
		case len(items) == most:
			return items, now
		default:
			q.busy = q.waiting[0]
			q.waiting = slices.Delete(q.waiting, 0, 1)
			items = append(items, q.busy)
		}
	}
	return items, next
}

// sweep forgets what is no longer waited for, and queues without a message.
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

// done takes a message that was handled out of the line.
func (l *line) done(it *item) {
	it.line.busy = nil
	l.size--
}

// hold puts a message that was handled back into its place, until it is due.
func (l *line) hold(it *item, due time.Time) {
	q := it.line
	q.busy = nil
	it.due = due
	l.size--
	if len(q.waiting) > 0 && q.waiting[0].order == it.order {
		q.waiting[0].due = due // a newer copy has come meanwhile, and takes its place
		return
	}
	at, _ := slices.BinarySearchFunc(q.waiting, it.order, func(w *item, order place) int { return w.order.compare(order) })
	q.waiting = slices.Insert(q.waiting, at, it)
	l.size++
}

// leave takes a message that was handled out of the line, because it is given back to the broker, and returns those that wait behind it, which have to go,
// too: they are taken out as well. All are waited for until lapses.
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

// turnAway notes that a message which has just come was given back at once, because earlier ones of its key are away.
func (l *line) turnAway(key string, order place, due, lapses time.Time) {
	if q := l.keys[key]; q != nil {
		l.absent(q, order, due, lapses)
	}
}

// remove takes the waiting messages out that match, and returns them.
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

// each calls fn for every message that is here.
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
