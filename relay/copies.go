package relay

import (
	"container/heap"
	"math"
)

// copies are the seqs of a lane's events that will be copied to a backlog, or
// whose copies are not answered yet. The relay takes no row of the backlog
// behind the first of them: a row that a later settlement copies may come
// before rows that are visible already.
type copies struct {
	pending map[int64]bool
	order   seqHeap // may contain seqs that are not pending any more
}

// add adds a seq; 0 is not known, and belongs to an unordered event.
func (c *copies) add(seq int64) {
	if seq == 0 || c.pending[seq] {
		return
	}
	if c.pending == nil {
		c.pending = make(map[int64]bool)
	}
	c.pending[seq] = true
	heap.Push(&c.order, seq)
}

// remove removes a seq. It shortens the heap, too: nothing asks for the first
// seq while the destination is paused.
func (c *copies) remove(seq int64) {
	delete(c.pending, seq)
	c.first()
}

// first returns the lowest seq; [math.MaxInt64] if there is none.
func (c *copies) first() int64 {
	for len(c.order) > 0 {
		if c.pending[c.order[0]] {
			return c.order[0]
		}
		heap.Pop(&c.order)
	}
	return math.MaxInt64
}

// seqHeap is a heap of seqs, the lowest first.
type seqHeap []int64

func (h seqHeap) Len() int           { return len(h) }
func (h seqHeap) Less(i, j int) bool { return h[i] < h[j] }
func (h seqHeap) Swap(i, j int)      { h[i], h[j] = h[j], h[i] }

// Push implements [heap.Interface].
func (h *seqHeap) Push(x any) { *h = append(*h, x.(int64)) }

// Pop implements [heap.Interface].
func (h *seqHeap) Pop() any {
	last := len(*h) - 1
	x := (*h)[last]
	*h = (*h)[:last]
	return x
}
