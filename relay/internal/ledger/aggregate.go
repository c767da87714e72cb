package ledger

import (
	"cmp"
	"slices"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// aggregate is the state of an aggregate with events that are in memory, held
// or passed over.
type aggregate struct {
	key  store.Aggregate
	lane *lane
	// queue are its unfinished events in memory, in the order of delivery.
	queue []*Item
	// one is the queue's first backing array: most aggregates have a single
	// event in memory.
	one [1]*Item
	// inFlight is how many items at the front of the queue are with a worker.
	inFlight int32
	// stuck counts dead letters that are being moved; the aggregate continues
	// only when the moves have been answered.
	stuck int32
	// holders are rows in delayed or dead that hold the aggregate back, by seq.
	// oneHolder is the first backing array.
	holders   []holder
	oneHolder [1]holder
	// passed is the first seq that was passed over, 0 if none was; passedTo is
	// the last.
	passed, passedTo int64
	// waits: the aggregate was passed over because a destination is
	// unavailable. waitsFor is its name, which may be empty.
	waits    bool
	waitsFor string
	// lateWaiting: a row that is due was left in its table, behind another row.
	lateWaiting bool
	// following: the aggregate's rows are to be read again.
	following bool
	// wary is the number of rows that were passed over and stay suspect.
	wary int32
}

// holder is a row that holds an aggregate back.
type holder struct {
	seq  int64
	id   waybill.ID
	dead bool
	read int64 // the read during which the holder was added
	// behind is set if the row is due, but was deferred so that it does not
	// fill every page of due rows.
	behind *behindRow
}

// behindRow are fields of a row that was deferred behind another one.
type behindRow struct {
	attempts, replay int
	text             string
}

// maxQueued is the maximum number of events of one aggregate that wait in
// memory: more would leave no room for the rest of the lane.
const maxQueued = 64

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
	if len(a.holders) == 0 {
		a.lane.held++
	}
	at, found := slices.BinarySearchFunc(a.holders, h, func(x, y holder) int { return cmp.Compare(x.seq, y.seq) })
	if found && a.holders[at].id == h.id {
		a.holders[at] = h
		return
	}
	if cap(a.holders) == 0 {
		a.holders = a.oneHolder[:0]
	}
	a.holders = slices.Insert(a.holders, at, h)
}

// deferBehind notes that a row that holds the aggregate was deferred although
// it is due.
func (a *aggregate) deferBehind(row *store.Row) {
	if at := slices.IndexFunc(a.holders, func(h holder) bool { return h.id == row.ID }); at >= 0 {
		a.holders[at].behind = &behindRow{attempts: row.Attempts, replay: row.Replay, text: row.LastError}
	}
}

// holds reports whether the row with this id holds the aggregate.
func (a *aggregate) holds(id waybill.ID) bool {
	return slices.ContainsFunc(a.holders, func(h holder) bool { return h.id == id })
}

// unhold removes a row that held the aggregate.
func (a *aggregate) unhold(id waybill.ID) {
	a.keepHolders(func(h *holder) bool { return h.id != id })
}

// keepHolders removes the other rows that held the aggregate, and reports
// whether there were any.
func (a *aggregate) keepHolders(keep func(*holder) bool) bool {
	before := len(a.holders)
	a.holders = slices.DeleteFunc(a.holders, func(h holder) bool { return !keep(&h) })
	if before > 0 && len(a.holders) == 0 {
		a.lane.held--
	}
	return len(a.holders) < before
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
func (a *aggregate) enqueue(it *Item) {
	at := len(a.queue)
	if cap(a.queue) == 0 {
		a.queue = a.one[:0]
	}
	if !it.late || it.row.Holds {
		for at > int(a.inFlight) && a.queue[at-1].row.Seq > it.row.Seq {
			at--
		}
	}
	a.queue = slices.Insert(a.queue, at, it)
}

// remove takes an item that is not with a worker any more out of the queue.
func (a *aggregate) remove(it *Item) {
	if len(a.queue) > 0 && a.queue[0] == it { // the common case
		a.queue[0] = nil
		a.queue = a.queue[1:]
		return
	}
	if at := slices.Index(a.queue, it); at >= 0 {
		a.queue = slices.Delete(a.queue, at, at+1)
	}
}
