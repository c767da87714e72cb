// Package observe defines the hooks for metrics, traces and headers. Any field
// of [Hooks] may be nil; a nil hook costs nothing.
package observe

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
)

// Hooks are the callbacks of an observer, like httptrace.ClientTrace. Hooks may
// be called concurrently and must not block: some run on the relay's main
// goroutine.
type Hooks struct {
	// Write is called for every event that is written, after the outbox's own
	// BeforeWrite hooks and before the event is validated. The headers that
	// Write returns are added to the event, unless the event has a header of
	// the same name: they carry the trace context. Write must not change the
	// event's payload and headers.
	Write func(ctx context.Context, ev waybill.Event) map[string]string

	// HotEnqueued counts events that a commit of this process announced and
	// that the relay took into memory.
	HotEnqueued func(n int)
	// HotDropped counts events that a commit of this process announced and that
	// the relay did not take into memory; the relay reads them from the table.
	// Every announced event is either enqueued or dropped.
	HotDropped func(n int, why Drop)
	// ColdEnqueued counts events that the relay took into memory after reading
	// them from the tables. An event that the relay drops from memory because
	// another one of its aggregate failed is read and counted again.
	ColdEnqueued func(n int)
	// QueueDepths is the number of events that wait in the relay's memory, by
	// path.
	QueueDepths func(hot, cold int)

	// Deliver is called around every call of a sink. The sink receives the
	// returned context; the returned function, if not nil, is called with the
	// results. Deliver must not change or retain the deliveries.
	Deliver func(ctx context.Context, batch []waybill.Delivery) (context.Context, func(results []error))
	// Delivered counts events whose delivery succeeded. took is the time in the
	// sink; age is the time since the event was written, 0 if unknown.
	Delivered func(d *waybill.Delivery, took, age time.Duration)
	// Failed counts failed deliveries that the relay will retry; class tells
	// whether the attempt counts.
	Failed func(d *waybill.Delivery, class waybill.Class, err error, took time.Duration)
	// Died counts events that became dead letters.
	Died func(d *waybill.Delivery, err error)
	// Paused reports that a destination is paused (true) or available again
	// (false).
	Paused func(destination string, paused bool)

	// Read is called after every read of a relay, with the kind of the read.
	Read func(kind string, rows int, took time.Duration, err error)
	// Settled is called after every settlement of a relay.
	Settled func(n int, took time.Duration, err error)
	// Lanes is the number of lanes that this relay owns, and the total number
	// of lanes.
	Lanes func(owned, total int)
	// Lag is the age of the oldest event in the relay's memory; 0 if there is
	// none. While the tables cannot be read, Lag grows from the last successful
	// read: an unknown lag is not reported as 0. Lag is not reported before the
	// first read.
	Lag func(oldest time.Duration)
	// Backlog is the number of waiting events in the tables, reported after
	// each count.
	Backlog func(b Backlog)
	// Purged counts rows that retention has removed, by their kind:
	// "delivered", "dead", "written".
	Purged func(what string, n int)
	// Consumed counts events that a consumer group has applied, now or earlier.
	Consumed func(group string, ev *waybill.Event, took time.Duration, replayed bool)
	// ConsumeFailed counts failed attempts of a consumer group that will be
	// retried; ConsumeDied counts its dead letters.
	ConsumeFailed func(group string, ev *waybill.Event, err error, took time.Duration)
	ConsumeDied   func(group string, ev *waybill.Event, err error)
	// Groups is the state of the consumer groups, reported after each count,
	// including groups that do not store their events.
	Groups func(groups []Group)

	// KeyRan counts runs under an idempotency key; err is the result of the
	// run. KeyRepeated counts requests that received the answer of an earlier
	// run. KeyRefused counts rejected requests, with the reason:
	// [waybill.ErrInProgress], [waybill.ErrConflict], [waybill.ErrUncertain],
	// or the error of the store.
	KeyRan      func(operation string, took time.Duration, err error)
	KeyRepeated func(operation string)
	KeyRefused  func(operation string, why error)
	// KeyUnkept counts answers that were sent and could not be stored. Repeated
	// requests are rejected; after the lease of the run has expired, one of
	// them may run again, unless the store recorded that the answer is lost.
	KeyUnkept func(operation string, err error)
	// Keys is the state of the idempotency keys, reported after each count.
	Keys func(k Keys)

	// Received counts messages that a broker's source has passed to its
	// consumer, with the class of each result, including redeliveries.
	Received func(source string, class waybill.Class, redelivered bool, took time.Duration)
	// DeadLettered counts messages that a source has moved to its dead-letter
	// destination.
	DeadLettered func(source string, err error)

	// Reconciled is called after every run of a reconciliation job.
	Reconciled func(job string, r Reconciled)

	// Replayed counts dead letters that an operator replayed; Discarded counts
	// those that an operator discarded.
	Replayed  func(n int)
	Discarded func(n int)
}

// Backlog is the number of waiting events in the tables.
type Backlog struct {
	// Ready events wait for their first delivery, Failed ones for a retry,
	// Scheduled ones for their time.
	Ready, Failed, Scheduled int64
	// Dead letters wait for an operator.
	Dead int64
	// Holding counts events that block their aggregate.
	Holding int64
	// MaxAttempts is the highest number of attempts of a pending event.
	MaxAttempts int
	// Oldest is the age of the oldest ready event.
	Oldest time.Duration
	// Captured means that change data capture reads the outbox: ready events
	// stay until retention removes them and wait for no delivery.
	Captured bool
}

// Group is the state of a consumer group.
type Group struct {
	Group string
	// Processing attempts are running, Failed events wait for a retry, Dead
	// ones for an operator.
	Processing, Failed, Dead int64
	// HighestAttempts is the highest number of attempts of a failed event.
	HighestAttempts int
	// OldestDue is the longest time that a failed event has been due.
	OldestDue time.Duration
}

// Keys is the state of the idempotency keys.
type Keys struct {
	// Processing attempts are running, Failed keys may be used again, Uncertain
	// ones wait for an operator.
	Processing, Failed, Uncertain int64
	// Lapsed counts attempts whose lease has expired: their process died.
	Lapsed int64
}

// Reconciled is the result of one run of a reconciliation job.
type Reconciled struct {
	// Found counts missing events, Sent those that were written again, Failed
	// those that could not be written, Skipped those that were sent before and
	// are still in flight.
	Found, Sent, Failed, Skipped int
	Took                         time.Duration
	// Err is the error that ended the run early.
	Err error
}

// Drop is the reason why an event did not take the hot path.
type Drop int

// The reasons.
const (
	// DropQueueFull: the hot queue was full.
	DropQueueFull Drop = iota
	// DropNotOwned: another node owns the event's lane.
	DropNotOwned
	// DropNotDue: the event is delayed.
	DropNotDue
	// DropAlreadyRead: a read of the table returned the event before the writer
	// announced it.
	DropAlreadyRead
	// DropBlocked: an earlier event of the aggregate blocks the event, or its
	// destination is unavailable.
	DropBlocked
	// DropRowMissing: the row was not found, because a rollback to a savepoint
	// removed it or another relay delivered the event.
	DropRowMissing
	// DropStopped: the relay stopped.
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
