package ledger

import "container/heap"

// queue holds items that can be delivered, urgent ones separately; tenants take
// turns among the others. pop skips items that were dropped while they were
// queued.
type queue struct {
	normal turns
	urgent urgent
	streak int // consecutive urgent items while others waited
	depth  int // without dropped items
}

// maxUrgent is the number of urgent items that may pass before one of the
// others is delivered.
const maxUrgent = 3

func (q *queue) push(it *Item) {
	q.depth++
	if it.row.Event.Priority > 0 {
		heap.Push(&q.urgent, it)
		return
	}
	q.normal.push(it)
}

// pop returns the next item, or nil.
func (q *queue) pop() *Item {
	for {
		var it *Item
		more := q.normal.n > 0
		switch {
		case len(q.urgent) > 0 && (!more || q.streak < maxUrgent):
			it = heap.Pop(&q.urgent).(*Item)
			if it.state == queued && more {
				q.streak++
			}
		case more:
			it = q.normal.pop()
			if it.state == queued {
				q.streak = 0
			}
		default:
			return nil
		}
		if it.state == queued {
			q.depth--
			return it
		}
	}
}

// urgent is a heap of items with a priority: the highest first, then by seq.
type urgent []*Item

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
func (u *urgent) Push(x any) { *u = append(*u, x.(*Item)) }

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

// enqueue makes an item deliverable.
func (g *Ledger) enqueue(it *Item) {
	g.move(it, queued)
	g.push(it)
}

func (q *queues) push(it *Item) {
	if it.hot {
		q.hot.push(it)
	} else {
		q.cold.push(it)
	}
}

// forget notes that a queued item was dropped.
func (q *queues) forget(it *Item) {
	if it.hot {
		q.hot.depth--
	} else {
		q.cold.depth--
	}
}

func (q *queues) depth() int { return q.hot.depth + q.cold.depth }

// pop takes hot and cold items 2:1, so that neither starves.
func (q *queues) pop() *Item {
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
