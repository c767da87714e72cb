package relay

import (
	"container/heap"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// item is an event in the relay's memory, from the time when it is taken until
// the relay has processed a read that began after the event's settlement. The
// item keeps the event from being taken again.
type item struct {
	lane *lane
	agg  *aggregate // nil: unordered
	row  *store.Row

	state     state
	hot       bool // holds a slot of the commit queue
	announced bool // a commit of this process announced it
	late      bool // its row is in delayed
	suspect   bool // may have crashed a process: its attempt is counted before the delivery
	counted   bool // row.Attempts includes the current attempt
	place     *int // for a suspect, the counter that its place was taken from; nil: none
	attempts  int  // as they will be stored
	dest      string
	probe     bool       // checks whether its destination is available again
	behind    *aggregate // its row is due, but deferred behind another row of this aggregate
}

// state is the state of an item.
type state uint8

const (
	waiting  state = iota // behind other events of its aggregate
	queued                // in a queue, to be delivered
	parked                // waits for its destination
	inFlight              // with a worker
	finished              // delivered, deferred or dead; to be settled
	settled               // until no read can return its row
	dropped               // removed from memory; its row is untouched
)

func (it *item) id() waybill.ID { return it.row.ID }

// attempt returns the number of the delivery, counted from 1.
func (it *item) attempt() int {
	if it.counted {
		return it.row.Attempts
	}
	return it.row.Attempts + 1
}

// delivery returns the delivery for the sink.
func (it *item) delivery(history bool, source *driver.Hub) waybill.Delivery {
	if it.lane.claim == nil {
		it.lane.claim = &driver.Claim{Token: it.lane.lease.Token, History: history, Source: source}
	}
	return waybill.Delivery{
		Event: it.row.Event, Attempt: it.attempt(), Replay: it.row.Replay, Claim: it.lane.claim,
		Position: waybill.Position{Lane: it.lane.number, Epoch: it.lane.lease.Epoch, Seq: it.row.Seq},
	}
}

// result returns the item's entry in a settlement.
func (it *item) result() driver.Result {
	return driver.Result{Lane: it.lane.number, ID: it.row.ID, Seq: it.row.Seq, Late: it.late, Replay: it.row.Replay, Attempts: it.attempts}
}

// queue holds items that can be delivered, urgent ones separately. pop skips
// items that were dropped while they were queued.
type queue struct {
	normal []*item
	head   int
	urgent urgent
	streak int // consecutive urgent items while others waited
	depth  int // without dropped items
}

// maxUrgent is the number of urgent items that may pass before one of the
// others is delivered.
const maxUrgent = 3

func (q *queue) push(it *item) {
	it.state = queued
	q.depth++
	if it.row.Event.Priority > 0 {
		heap.Push(&q.urgent, it)
		return
	}
	q.normal = append(q.normal, it)
}

// pop returns the next item, or nil.
func (q *queue) pop() *item {
	for {
		var it *item
		more := q.head < len(q.normal)
		switch {
		case len(q.urgent) > 0 && (!more || q.streak < maxUrgent):
			it = heap.Pop(&q.urgent).(*item)
			if it.state == queued && more {
				q.streak++
			}
		case more:
			it = q.normal[q.head]
			q.normal[q.head] = nil
			q.head++
			if it.state == queued {
				q.streak = 0
			}
			q.compact()
		default:
			return nil
		}
		if it.state == queued {
			q.depth--
			return it
		}
	}
}

// compact frees the room of items that were popped.
func (q *queue) compact() {
	if q.head == len(q.normal) {
		q.normal, q.head = q.normal[:0], 0
	} else if q.head > 1024 && q.head > len(q.normal)/2 {
		n := copy(q.normal, q.normal[q.head:])
		clear(q.normal[n:])
		q.normal, q.head = q.normal[:n], 0
	}
}

// urgent is a heap of items with a priority: the highest first, then by seq.
type urgent []*item

func (u urgent) Len() int { return len(u) }
func (u urgent) Less(i, j int) bool {
	a, b := u[i].row, u[j].row
	if a.Event.Priority != b.Event.Priority {
		return a.Event.Priority > b.Event.Priority
	}
	return a.Seq < b.Seq
}
func (u urgent) Swap(i, j int) { u[i], u[j] = u[j], u[i] }

// Push implements [heap.Interface].
func (u *urgent) Push(x any) { *u = append(*u, x.(*item)) }

// Pop implements [heap.Interface]: it removes and returns the last item.
func (u *urgent) Pop() any {
	last := len(*u) - 1
	it := (*u)[last]
	(*u)[last] = nil
	*u = (*u)[:last]
	return it
}

// hotShare is how many hot items are delivered for each cold one while both
// wait.
const hotShare = 2

// queues holds the items that can be delivered: those that this process has
// just committed, and those that were read from the tables.
type queues struct {
	hot, cold queue
	turn      int
}

func (q *queues) push(it *item) {
	if it.hot {
		q.hot.push(it)
	} else {
		q.cold.push(it)
	}
}

// forget notes that a queued item was dropped.
func (q *queues) forget(it *item) {
	if it.hot {
		q.hot.depth--
	} else {
		q.cold.depth--
	}
}

func (q *queues) depth() int { return q.hot.depth + q.cold.depth }

// pop takes hot and cold items 2:1, so that neither starves.
func (q *queues) pop() *item {
	if q.hot.depth > 0 && (q.cold.depth == 0 || q.turn < hotShare) {
		if it := q.hot.pop(); it != nil {
			if q.cold.depth > 0 {
				q.turn++
			}
			return it
		}
	}
	q.turn = 0
	if it := q.cold.pop(); it != nil {
		return it
	}
	return q.hot.pop()
}
