package relay

import (
	"container/heap"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// item is an event in the relay's memory: from when it is taken until a read has been processed that began after its
// settlement. It is what keeps the event from being taken again.
type item struct {
	lane *lane
	agg  *aggregate // nil: unordered
	row  *store.Row

	state    state
	hot      bool // a commit of this process said so
	heard    bool // and it was one
	late     bool // its row is in delayed
	suspect  bool // a process may have died of it: its attempt is counted before it is delivered
	counted  bool // row.Attempts includes the attempt under way
	place    *int // for a suspect, where its place was counted down; nil: it takes none
	attempts int  // as they will be stored
	dest     string
	probe    bool       // sent to see whether its destination is back
	behind   *aggregate // its row is due, and deferred because it waits for another one of this aggregate
}

// state is where an item stands.
type state uint8

const (
	waiting  state = iota // behind others of its aggregate
	queued                // in a queue, to be delivered
	parked                // waits for its destination
	inFlight              // with a worker
	finished              // delivered, put off or given up; to be settled
	settled               // until no read can bring it back
	dropped               // not this relay's concern any more; its row is untouched
)

func (it *item) id() waybill.ID { return it.row.ID }

// attempt returns the number of the delivery, counted from 1.
func (it *item) attempt() int {
	if it.counted {
		return it.row.Attempts
	}
	return it.row.Attempts + 1
}

// delivery returns what the sink gets.
func (it *item) delivery(history bool, source any) waybill.Delivery {
	p := waybill.Position{Lane: it.lane.number, Epoch: it.lane.lease.Epoch, Seq: it.row.Seq}
	return waybill.Delivery{
		Event: it.row.Event, Attempt: it.attempt(), Replay: it.row.Replay,
		Claim: waybill.NewClaim(p, it.lane.lease.Token).WithHistory(history).WithSource(source),
	}
}

// result returns the item as a settlement names it.
func (it *item) result() store.Result {
	return store.Result{Lane: it.lane.number, ID: it.row.ID, Seq: it.row.Seq, Late: it.late, Replay: it.row.Replay, Attempts: it.attempts}
}

// queue holds items that can be delivered, urgent ones apart. What was dropped meanwhile is passed over when it comes up.
type queue struct {
	usual  []*item
	head   int
	urgent urgent
	streak int // urgent ones in a row while others waited
	depth  int // without those that were dropped
}

// maxUrgent is how many urgent items may pass before one of the others has its turn.
const maxUrgent = 3

func (q *queue) push(it *item) {
	it.state = queued
	q.depth++
	if it.row.Event.Priority > 0 {
		heap.Push(&q.urgent, it)
		return
	}
	q.usual = append(q.usual, it)
}

// pop returns the next item, or nil.
func (q *queue) pop() *item {
	for {
		var it *item
		more := q.head < len(q.usual)
		switch {
		case len(q.urgent) > 0 && (!more || q.streak < maxUrgent):
			it = heap.Pop(&q.urgent).(*item)
			if it.state == queued && more {
				q.streak++
			}
		case more:
			it = q.usual[q.head]
			q.usual[q.head] = nil
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

// compact gives the room of what was popped back.
func (q *queue) compact() {
	if q.head == len(q.usual) {
		q.usual, q.head = q.usual[:0], 0
	} else if q.head > 1024 && q.head > len(q.usual)/2 {
		n := copy(q.usual, q.usual[q.head:])
		clear(q.usual[n:])
		q.usual, q.head = q.usual[:n], 0
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

// Push and Pop implement [heap.Interface].
func (u *urgent) Push(x any) { *u = append(*u, x.(*item)) }

// Pop returns the last one.
func (u *urgent) Pop() any {
	last := len(*u) - 1
	it := (*u)[last]
	(*u)[last] = nil
	*u = (*u)[:last]
	return it
}

// hotShare is how many hot items are pulled for each cold one while both wait.
const hotShare = 2

// queues is what can be delivered: what this process has just committed, and what was read from the tables.
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

// pop pulls hot and cold 2:1, so that neither starves.
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
