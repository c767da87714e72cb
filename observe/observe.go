// Package observe defines the hooks for metrics, traces and headers. Any field
// of [Hooks] may be nil; a nil hook costs nothing.
package observe

import "context"

// Hooks are the callbacks of an observer, like httptrace.ClientTrace. Hooks may
// be called concurrently and must not block: some run on the relay's main
// goroutine. The argument of a hook is a struct, which later versions may
// extend.
type Hooks struct {
	// Write is called for every event that is written, after the outbox's own
	// BeforeWrite hooks and before the event is validated. The headers that
	// Write returns are added to the event, unless the event has a header of
	// the same name: they carry the trace context. Write must not change the
	// event's payload and headers.
	Write func(ctx context.Context, info WriteInfo) map[string]string

	// HotEnqueued counts events that a commit of this process announced and
	// that the relay took into memory.
	HotEnqueued func(info HotEnqueuedInfo)
	// HotDropped counts events that a commit of this process announced and that
	// the relay did not take into memory; the relay reads them from the table.
	// Every announced event is either enqueued or dropped.
	HotDropped func(info HotDroppedInfo)
	// ColdEnqueued counts events that the relay took into memory after reading
	// them from the tables. An event that the relay drops from memory because
	// another one of its aggregate failed is read and counted again.
	ColdEnqueued func(info ColdEnqueuedInfo)
	// QueueDepths is the number of events that wait in the relay's memory, by
	// path.
	QueueDepths func(info QueueDepthsInfo)

	// Deliver is called around every call of a sink. The sink receives the
	// returned context; the returned function, if not nil, is called with the
	// results. Deliver must not change or retain the deliveries.
	Deliver func(ctx context.Context, info DeliverInfo) (context.Context, func(info DeliverDoneInfo))
	// Delivered counts events whose delivery succeeded.
	Delivered func(info DeliveredInfo)
	// Failed counts failed deliveries that the relay will retry.
	Failed func(info FailedInfo)
	// Died counts events that became dead letters.
	Died func(info DiedInfo)
	// Unrouted counts events that no destination of a relay takes. They are
	// done.
	Unrouted func(info UnroutedInfo)
	// Paused reports that a relay has found a destination unavailable, or
	// available again. Pauses that an operator ends are in Destinations.
	Paused func(info PausedInfo)

	// Read is called after every read of a relay.
	Read func(info ReadInfo)
	// Settled is called after every settlement of a relay.
	Settled func(info SettledInfo)
	// Lanes is the number of lanes that this relay owns, and the total number
	// of lanes.
	Lanes func(info LanesInfo)
	// Lag is the age of the oldest event in the relay's memory. While the
	// tables cannot be read, Lag grows from the last successful read: an
	// unknown lag is not reported as 0. Lag is not reported before the first
	// read.
	Lag func(info LagInfo)
	// Backlog is the number of waiting events in the outbox, reported after
	// each count. Events that wait for one of several destinations are in
	// Destinations.
	Backlog func(info BacklogInfo)
	// Destinations is the state of all registered destinations, reported after
	// each count of their backlogs.
	Destinations func(info DestinationsInfo)
	// Purged counts rows that retention has removed.
	Purged func(info PurgedInfo)
	// Consumed counts events that a consumer group has applied, now or earlier.
	Consumed func(info ConsumedInfo)
	// ConsumeFailed counts failed attempts of a consumer group that will be
	// retried; ConsumeDied counts its dead letters.
	ConsumeFailed func(info ConsumeFailedInfo)
	ConsumeDied   func(info ConsumeDiedInfo)
	// Groups is the state of the consumer groups, reported after each count,
	// including groups that do not store their events.
	Groups func(info GroupsInfo)

	// KeyRan counts runs under an idempotency key. KeyRepeated counts requests
	// that received the answer of an earlier run. KeyRefused counts rejected
	// requests.
	KeyRan      func(info KeyRanInfo)
	KeyRepeated func(info KeyRepeatedInfo)
	KeyRefused  func(info KeyRefusedInfo)
	// KeyUnkept counts answers that were sent and could not be stored. Repeated
	// requests are rejected; after the lease of the run has expired, one of
	// them may run again, unless the store recorded that the answer is lost.
	KeyUnkept func(info KeyUnkeptInfo)
	// Keys is the state of the idempotency keys, reported after each count.
	Keys func(info KeysInfo)

	// Received counts messages that a broker's source has passed to its
	// consumer, including redeliveries.
	Received func(info ReceivedInfo)
	// DeadLettered counts messages that a source has moved to its dead-letter
	// destination.
	DeadLettered func(info DeadLetteredInfo)

	// Reconciled is called after every run of a reconciliation job.
	Reconciled func(info ReconciledInfo)

	// Replayed counts dead letters that an operator replayed; Discarded counts
	// those that an operator discarded.
	Replayed  func(info ReplayedInfo)
	Discarded func(info DiscardedInfo)
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
