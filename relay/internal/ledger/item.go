package ledger

import (
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Item is an event in the relay's memory, from the time when it is taken until
// the relay has processed a read that began after the event's settlement. The
// item keeps the event from being taken again.
type Item struct {
	lane *lane
	agg  *aggregate // nil: unordered
	row  *store.Row

	state     state
	hot       bool    // holds a slot of the commit queue
	announced bool    // a commit of this process announced it
	late      bool    // its row is in delayed
	suspect   bool    // may have crashed a process: its attempt is counted before the delivery
	counted   bool    // row.Attempts includes the current attempt
	place     *places // of a suspect that may give its place back; else nil
	attempts  int     // as they will be stored
	dest      string
	probe     bool       // checks whether its destination is available again
	behind    *aggregate // its row is due, but deferred behind another row of this aggregate
	waits     bool       // counts as waiting in memory
	other     bool       // was taken ahead of the crowd
	size      int        // of its row, in bytes
	// diverts are the backlogs to which the settlement of a done event copies
	// its row.
	diverts []driver.Diversion
	counts  int // its part of the bytes in memory
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

// states is the number of states.
const states = int(dropped) + 1

func (s state) String() string {
	return [...]string{"waiting", "queued", "parked", "in flight", "finished", "settled", "dropped"}[s]
}

// allowed are the changes of an item's state.
var allowed = [states][states]bool{
	waiting: {
		waiting:  true, // it waits for something else
		queued:   true, // it is the next event of its aggregate
		parked:   true, // its destination is unavailable
		inFlight: true, // with the event in front of it, or a suspect's turn
		finished: true, // deferred, dead without a delivery, or a suspect whose attempt is being counted
		dropped:  true,
	},
	queued: {
		waiting:  true, // its destination became unavailable, or another event comes first
		inFlight: true,
		finished: true, // dead without a delivery
		dropped:  true,
	},
	parked: {
		waiting: true, // a suspect, whose attempt is counted first, or another event comes first
		queued:  true,
		dropped: true,
	},
	inFlight: {
		waiting:  true, // not delivered
		parked:   true, // its destination is unavailable
		finished: true,
		settled:  true, // the sink has settled it
		dropped:  true, // the lane is lost
	},
	finished: {
		waiting: true, // the attempt of a suspect is counted
		settled: true,
	},
}

// Strict makes a forbidden change of an item's state panic. Test packages set
// it. Without it the ledger reports the change, and the engine drops the lane.
var Strict bool

// move changes the state of an item. It is the only place that does.
func (g *Ledger) move(it *Item, to state) {
	if !allowed[it.state][to] {
		if Strict {
			panic(fmt.Sprintf("ledger: event %s of lane %d: %s becomes %s", it.row.ID, it.lane.number, it.state, to))
		}
		g.facts = append(g.facts, Violation{Lane: it.lane.number, From: it.state.String(), To: to.String()})
	}
	it.state = to
	g.account(it)
}

// Row returns the item's row. Only the ledger changes it.
func (it *Item) Row() *store.Row { return it.row }

// Lane returns the number of the item's lane.
func (it *Item) Lane() int { return it.lane.number }

// Place returns the place of the event, under the lease under which it was
// taken.
func (it *Item) Place() Place { return Place{Lease: it.lane.lease, Seq: it.row.Seq} }

// Divert has the settlement of the event copy its row to the backlogs of
// destinations that have not received the event. It is called before
// [Ledger.DeliveryEnded], with a result that means success.
func (it *Item) Divert(to []driver.Diversion) { it.diverts = to }

// hopeless returns why the event must not be delivered, or nil: its row cannot
// be decoded, or it has failed for good at the destination before.
func (it *Item) hopeless() error {
	switch {
	case it.row.Err != nil:
		return fmt.Errorf("the row cannot be decoded: %w", it.row.Err)
	case it.row.Final:
		return errors.New(it.row.LastError)
	}
	return nil
}

// Suspect reports whether the event may have crashed a process.
func (it *Item) Suspect() bool { return it.suspect }

func (it *Item) id() waybill.ID { return it.row.ID }

// isNext reports whether no other event of the item's aggregate has to be
// delivered first, or is in flight.
func (it *Item) isNext() bool {
	return it.agg == nil || it.agg.inFlight == 0 && len(it.agg.queue) > 0 && it.agg.queue[0] == it
}

// Attempt returns the number of the delivery, counted from 1.
func (it *Item) Attempt() int {
	if it.counted || it.row.Final {
		return it.row.Attempts
	}
	return it.row.Attempts + 1
}

// Delivery returns the delivery for the sink.
func (it *Item) Delivery() waybill.Delivery {
	return waybill.Delivery{
		Event: it.row.Event, Attempt: it.Attempt(), Replay: it.row.Replay, Claim: it.lane.claim,
		Position: waybill.Position{Lane: it.lane.number, Epoch: it.lane.lease.Epoch, Seq: it.row.Seq},
	}
}

// result returns the item's entry in a settlement.
func (it *Item) result() driver.Result {
	return driver.Result{Lane: it.lane.number, ID: it.row.ID, Seq: it.row.Seq, Late: it.late, Replay: it.row.Replay, Attempts: it.attempts}
}

// IsOverdue reports whether the lane of the item is being released, and the
// time for that is over.
func (it *Item) IsOverdue(now time.Time) bool {
	return it.lane.draining && !now.Before(it.lane.drainBy)
}
