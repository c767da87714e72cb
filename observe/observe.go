// Package observe names the points of the flow at which metrics, traces and headers plug in. Any field of [Hooks] may be
// nil; what is nil costs nothing.
package observe

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
)

// Hooks is what an observer wants to be told, like httptrace.ClientTrace. Functions may be called concurrently and must
// not block: some run on the goroutine that keeps a relay going.
type Hooks struct {
	// Write is called for every event that is written, after the outbox's own BeforeWrite hooks and before the event is
	// checked. The headers it returns are added to the event, unless it has one of the same name: trace context travels
	// this way. The event's payload and headers must not be changed.
	Write func(ctx context.Context, ev waybill.Event) map[string]string

	// HotEnqueued counts events that a commit of this process handed to its relay, and that the relay took in hand.
	HotEnqueued func(n int)
	// HotDropped counts events that a commit of this process told its relay of in vain; they are read from the table. Every event that a
	// relay is told of is either enqueued or dropped.
	HotDropped func(n int, why Drop)
	// ColdEnqueued counts events that a relay took in hand because a read of the tables brought them. One that it has to put back, because
	// another of its aggregate failed, is read and counted again.
	ColdEnqueued func(n int)
	// QueueDepths is how many events wait in the relay's memory, by the path they came.
	QueueDepths func(hot, cold int)

	// Deliver is called around every call of a sink. The context that it returns is handed to the sink; the function, if
	// it is not nil, is called with the results. The deliveries must not be changed or kept.
	Deliver func(ctx context.Context, batch []waybill.Delivery) (context.Context, func(results []error))
	// Delivered counts events whose delivery succeeded. took is the time in the sink; age is how long ago the event was
	// written, 0 if that is not known.
	Delivered func(d *waybill.Delivery, took, age time.Duration)
	// Failed counts deliveries that did not succeed and will be tried again; class says whether the attempt counts.
	Failed func(d *waybill.Delivery, class waybill.Class, err error, took time.Duration)
	// Died counts events that became dead letters.
	Died func(d *waybill.Delivery, err error)
	// Paused says that a destination is down (true) or back (false).
	Paused func(destination string, paused bool)

	// Read is called after every read of a relay, with what kind of read it was.
	Read func(kind string, rows int, took time.Duration, err error)
	// Settled is called after every settlement of a relay.
	Settled func(n int, took time.Duration, err error)
	// Lanes is how many lanes this relay owns, and how many there are.
	Lanes func(owned, total int)
	// Lag is the age of the oldest event that the relay has in memory; 0 if there is none. While the tables cannot be read it grows
	// from the last read that succeeded: what is not known is not 0. It is not told before the first read.
	Lag func(oldest time.Duration)
	// Backlog is what waits in the tables, whenever somebody counted it.
	Backlog func(b Backlog)
	// Purged counts rows that retention has removed, by what they were: "delivered", "dead", "written".
	Purged func(what string, n int)
	// Consumed counts events that a consumer group has applied, or had applied before.
	Consumed func(group string, ev *waybill.Event, took time.Duration, replayed bool)
	// ConsumeFailed counts attempts of a consumer group that did not succeed and will be made again; ConsumeDied, events it has given up.
	ConsumeFailed func(group string, ev *waybill.Event, err error, took time.Duration)
	ConsumeDied   func(group string, ev *waybill.Event, err error)
	// Groups is how the consumer groups stand, whenever they are counted: also those that do not keep their events.
	Groups func(groups []Group)

	// KeyRan counts runs of what an idempotency key stands for; err is how it ended. KeyRepeated counts requests that got the answer of an
	// earlier run. KeyRefused counts requests that were refused, with the reason: [waybill.ErrInProgress], [waybill.ErrConflict],
	// [waybill.ErrUncertain], or what the store said.
	KeyRan      func(operation string, took time.Duration, err error)
	KeyRepeated func(operation string)
	KeyRefused  func(operation string, why error)
	// KeyUnkept counts answers that were sent and could not be stored. Repeats are refused; once the lease of the run is over one may run
	// again, unless the store could at least record that the answer is lost.
	KeyUnkept func(operation string, err error)
	// Keys is how the idempotency keys stand, whenever somebody counted.
	Keys func(k Keys)

	// Received counts messages that a broker's source has handed to its consumer: what became of each, its redeliveries among them.
	Received func(source string, class waybill.Class, redelivered bool, took time.Duration)
	// DeadLettered counts messages that a source has moved to its dead-letter destination.
	DeadLettered func(source string, err error)

	// Reconciled is called after every run of a reconciliation job.
	Reconciled func(job string, r Reconciled)

	// Replayed counts dead letters that an operator replayed; Discarded, those that were thrown away.
	Replayed  func(n int)
	Discarded func(n int)
}

// Backlog is what waits in the tables.
type Backlog struct {
	// Ready events wait for their first delivery, Failed ones for another, Scheduled ones for their time.
	Ready, Failed, Scheduled int64
	// Dead letters wait for an operator.
	Dead int64
	// Holding counts events that hold their aggregate back.
	Holding int64
	// MaxAttempts is the highest number of attempts of a pending event.
	MaxAttempts int
	// Oldest is the age of the oldest ready event.
	Oldest time.Duration
	// Captured says that change data capture reads the outbox: ready events are
	// there to be read, stay for as long as the outbox keeps them, and wait for no
	// delivery.
	Captured bool
}

// Group is how a consumer group stands.
type Group struct {
	Group string
	// Processing attempts are under way, Failed events wait for another one, Dead ones for an operator.
	Processing, Failed, Dead int64
	// HighestAttempts is of a failed event.
	HighestAttempts int
	// OldestDue is for how long a failed event has been due.
	OldestDue time.Duration
}

// Keys is how the idempotency keys stand.
type Keys struct {
	// Processing attempts are under way, Failed keys may be used again, Uncertain ones wait for an operator.
	Processing, Failed, Uncertain int64
	// Lapsed counts attempts whose lease has run out: their process died.
	Lapsed int64
}

// Reconciled is what a run of a reconciliation job did.
type Reconciled struct {
	// Found is missing, Sent was written again, Failed could not be; Skipped was sent before and is still on its way.
	Found, Sent, Failed, Skipped int
	Took                         time.Duration
	// Err is what ended the run early.
	Err error
}

// Drop is why an event did not take the hot path.
type Drop int

// The reasons.
const (
	// Full: the hot queue was full.
	DropQueueFull Drop = iota
	// Elsewhere: another node owns the event's lane.
	DropNotOwned
	// NotDue: the event is delayed.
	DropNotDue
	// ReadFirst: a read of the table was faster than the writer's word.
	DropAlreadyRead
	// Waits: it stands behind another of its aggregate that waits, or its destination is down.
	DropBlocked
	// Missing: its row was not found: it was taken back by a rollback to a savepoint, or somebody else has delivered it.
	DropRowMissing
	// Stopped: the relay stopped.
	DropStopped
)

// String returns the reason in lower case.
func (d Drop) String() string {
	switch d {
	case DropQueueFull:
		return "full"
	case DropNotOwned:
		return "elsewhere"
	case DropNotDue:
		return "not due"
	case DropAlreadyRead:
		return "read first"
	case DropBlocked:
		return "waits"
	case DropRowMissing:
		return "missing"
	case DropStopped:
		return "stopped"
	}
	return "unknown"
}
