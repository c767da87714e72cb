package memstore

import (
	"container/heap"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// rowSet holds the rows of the outbox, or of a destination's backlog, which has
// no history. The tables' mutex guards it.
type rowSet struct {
	rows   map[waybill.ID]*record // all events
	queues []queue                // lane → its pending rows
	follow map[store.Aggregate]*series
	// Deferred or dead, blocking its aggregate.
	holding map[waybill.ID]*record
	buried  series // dead letters, by time of death
	history series // delivered events, by time of delivery
	count   [states]int64
}

// states is the number of [store.State] values.
const states = int(store.Delivered) + 1

func newRowSet(lanes int) rowSet {
	return rowSet{
		rows: make(map[waybill.ID]*record), queues: newQueues(lanes), follow: make(map[store.Aggregate]*series),
		holding: make(map[waybill.ID]*record), buried: series{order: byEnded, ended: true}, history: series{order: byEnded, ended: true},
	}
}

func (s *rowSet) has(lane int) bool { return lane >= 0 && lane < len(s.queues) }

// put files a record by its state.
func (s *rowSet) put(r *record) {
	s.rows[r.ID] = r
	s.count[r.state]++
	if r.Holds {
		s.holding[r.ID] = r
	}
	switch r.state {
	case store.Ready, store.Delayed:
		s.enqueue(r)
	case store.Dead:
		s.buried.add(r)
	case store.Delivered:
		s.history.add(r)
	}
}

// enqueue files a pending record in its lane.
func (s *rowSet) enqueue(r *record) {
	q := &s.queues[r.Lane]
	if r.state == store.Delayed {
		heap.Push(&q.later, r)
		return
	}
	q.ready.add(r)
	if urgent(r) {
		q.urgent.add(r)
	}
	if agg := driver.AggregateOf(&r.Event); !agg.IsZero() {
		r.group = s.follow[agg]
		if r.group == nil {
			r.group = &series{order: bySeq}
			s.follow[agg] = r.group
		}
		r.group.add(r)
	}
}

// remove takes a record out of the set.
func (s *rowSet) remove(r *record) {
	delete(s.rows, r.ID)
	s.unfile(r)
}

// unfile removes a record from the table of its state.
func (s *rowSet) unfile(r *record) {
	r.left = true
	if r.Holds {
		delete(s.holding, r.ID)
	}
	s.count[r.state]--
	switch r.state {
	case store.Dead:
		s.buried.drop()
		return
	case store.Delivered:
		s.history.drop()
		return
	case store.Ready, store.Delayed:
	}
	s.queues[r.Lane].drop(r)
	s.ungroup(r)
}

// ungroup removes a record that has left from the ready records of its
// aggregate.
func (s *rowSet) ungroup(r *record) {
	if g := r.group; g != nil {
		if len(g.rows) == g.gone+1 {
			delete(s.follow, driver.AggregateOf(&r.Event))
		} else {
			g.drop()
		}
	}
}

// move replaces a record by one in another state, which change derives from the
// old row.
func (s *rowSet) move(r *record, to store.State, change func(next *record)) {
	s.unfile(r)
	next := &record{Row: r.Row, state: to}
	next.DueAt, next.Event.AvailableAt, next.Final = time.Time{}, time.Time{}, false
	change(next)
	s.put(next)
}

// relane moves pending and dead rows to their lanes of n.
func (s *rowSet) relane(n int) {
	s.queues = newQueues(n)
	clear(s.follow)
	pending := make([]*record, 0, s.count[store.Ready]+s.count[store.Delayed])
	for _, r := range s.rows {
		if r.state == store.Delivered {
			continue
		}
		r.Lane = laneAmong(n, r)
		if r.pending() {
			pending = append(pending, r)
		}
	}
	slices.SortFunc(pending, bySeq)
	for _, r := range pending {
		s.enqueue(r)
	}
}

// laneAmong returns the lane of an event among n lanes when their number has
// changed.
func laneAmong(n int, r *record) int {
	if r.Event.Ordered() {
		return driver.LaneOf(r.Event.TenantID, r.Event.AggregateType, r.Event.AggregateID, n)
	}
	return driver.LaneOf("", "", r.ID.String(), n)
}

// deferUntil sets the due time of a record.
func (r *record) deferUntil(until time.Time) {
	r.DueAt = until.Truncate(time.Microsecond)
	r.Event.AvailableAt = r.DueAt
}

// those returns the matching records with these ids, in the order of seq.
func (s *rowSet) those(ids []waybill.ID, meant func(*record) bool) []*record {
	var found []*record
	for _, id := range ids {
		if r := s.rows[id]; r != nil && meant(r) {
			found = append(found, r)
		}
	}
	slices.SortFunc(found, bySeq)
	return slices.Compact(found)
}

// dead returns the dead letters among ids, in the order of seq.
func (s *rowSet) dead(ids []waybill.ID) []*record {
	return s.those(ids, func(r *record) bool { return r.state == store.Dead })
}

// revive makes a dead letter due, with a higher replay number.
func (s *rowSet) revive(r *record, now time.Time) {
	s.move(r, store.Delayed, func(next *record) {
		next.Attempts, next.Holds = 0, r.Event.Ordered()
		next.Replay++
		next.deferUntil(now)
	})
}

// unblock ends the holds of rows, and returns the ids of those that held.
func (s *rowSet) unblock(ids []waybill.ID) []waybill.ID {
	held := s.those(ids, func(r *record) bool { return r.Holds })
	for _, r := range held {
		r.Holds = false
		delete(s.holding, r.ID)
	}
	return idsOf(held)
}

// purge removes at most limit records of a series that ended before a time, the
// oldest first, and returns their number.
func (s *rowSet) purge(from *series, cutoff time.Time, limit int) int {
	var old []*record
	for r := range from.all {
		if len(old) >= limit || !r.ended.Before(cutoff) {
			break
		}
		old = append(old, r)
	}
	for _, r := range old {
		s.remove(r)
	}
	return len(old)
}
