package sim

import (
	"fmt"
	"slices"
	"time"

	"github.com/waybillhq/waybill"
)

// state is the state of an event in the model.
type state int

const (
	written    state = iota // in an open transaction
	rolledBack              // its transaction ended without it
	pending                 // committed, to be delivered
	delivered               // settled as done
	dead
	discarded
	filtered // of a destination that does not take the event
)

var stateNames = []string{"written", "rolled back", "pending", "delivered", "dead", "discarded", "filtered"}

func (s state) String() string { return stateNames[s] }

// event is the model of one event: what the calls of the product said about it.
type event struct {
	no       int
	id       waybill.ID
	agg      *aggregate // nil if unordered
	dest     string
	wroteAt  time.Duration
	commitAt time.Duration
	delay    time.Duration // asked for by the writer
	dueAt    time.Time     // the earliest delivery
	poison   bool
	told     state // what the outbox told its hook: pending or rolledBack

	state    state
	everDead bool
	attempts int // in its row
	replay   int
	// The epoch and the replay number of the settlement as done.
	doneEpoch  int64
	doneReplay int
	lostAt     time.Time // when a restart last lost a settlement of it
	unsure     bool      // a settlement of it was applied late
	// counted is the lease under which the event's attempt was counted before
	// its delivery: it is a suspect.
	counted lease
	// takenBack is the lease under which a settlement that was applied late has
	// taken such a count back: the owner does not know.
	takenBack lease

	// at are the models of the event at each destination. parent is the event
	// that such a model belongs to, and place its part of the model.
	at     []*event
	parent *event
	place

	tries    [maxCopies]int // calls of each sink with it
	got      [maxCopies]int // times that each sink got it
	flights  []*flight
	outcomes []*outcome
	kills    int // processes that died while they delivered it
	handled  int // calls of the handler
	repeats  int // copies of its message that the broker added
	effects  int // committed effects of the consumer group
}

// maxCopies is the maximum number of sinks that get an event.
const maxCopies = 4

func (ev *event) String() string {
	if ev.parent != nil {
		return fmt.Sprintf("%v at destination %d", ev.parent, ev.to)
	}
	if ev.agg == nil {
		return fmt.Sprintf("event %d (unordered)", ev.no)
	}
	return fmt.Sprintf("event %d (aggregate %d)", ev.no, ev.agg.no)
}

// lease is the lease of a process on a lane.
type lease struct {
	p     *process
	epoch int64
}

// flight is a delivery that has begun and not returned.
type flight struct {
	p       *process
	epoch   int64
	at      time.Duration
	to      int  // the destination
	direct  bool // from the outbox to one of several destinations
	crashed bool // the process died during the delivery
	// inWindow: a later owner of the lane took it over while the event was
	// among the first rows, which are suspects.
	inWindow bool
}

// outcome is the result of the last delivery of an event by a process.
type outcome struct {
	p       *process
	epoch   int64
	replay  int
	attempt int
	class   waybill.Class
	delay   time.Duration
	undone  bool // the relay must ignore the result
	settled bool // a settlement has used the result
	direct  bool // from the outbox to one of several destinations
	// last is the last settlement of the event by this process.
	last *settledAs
}

// fresh reports whether the result is to be settled under an epoch. An
// unavailable destination leaves the row as it is.
func (o *outcome) fresh(epoch int64) bool {
	return !o.settled && o.attempt > 0 && !o.undone && o.class != waybill.ClassUnavailable && o.epoch == epoch
}

// settledAs is how a settlement recorded an event.
type settledAs struct {
	kind     string
	attempts int
	delay    time.Duration
	text     string
}

func (ev *event) outcomeOf(p *process) *outcome {
	for _, o := range ev.outcomes {
		if o.p == p {
			return o
		}
	}
	return nil
}

// resultOf notes the result of a delivery by a process.
func (ev *event) resultOf(p *process, d *waybill.Delivery, err error, undone bool) *outcome {
	o := ev.outcomeOf(p)
	if o == nil {
		o = &outcome{}
		ev.outcomes = append(ev.outcomes, o)
	}
	class, delay := waybill.Classify(err)
	*o = outcome{
		p: p, epoch: d.Position.Epoch, replay: d.Replay, attempt: d.Attempt, class: class, delay: delay, undone: undone, last: o.last,
	}
	return o
}

// landed removes a flight. A suspect whose delivery has a result is not suspect
// any more.
func (ev *event) landed(p *process, d *waybill.Delivery, f *flight, o *outcome) {
	decided := o.class == waybill.ClassDone || o.class == waybill.ClassRetry || o.class == waybill.ClassPermanent
	cleared := ev.counted == (lease{p, d.Position.Epoch}) && decided && !o.undone
	ev.flights = slices.DeleteFunc(ev.flights, func(x *flight) bool { return x == f || cleared && x.epoch < d.Position.Epoch })
}
