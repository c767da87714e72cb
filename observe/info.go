package observe

import (
	"time"

	"github.com/waybillhq/waybill"
)

// WriteInfo is the argument of [Hooks.Write].
type WriteInfo struct {
	Event waybill.Event
}

// HotEnqueuedInfo is the argument of [Hooks.HotEnqueued].
type HotEnqueuedInfo struct {
	Events int
}

// HotDroppedInfo is the argument of [Hooks.HotDropped].
type HotDroppedInfo struct {
	Events int
	Reason Drop
}

// ColdEnqueuedInfo is the argument of [Hooks.ColdEnqueued].
type ColdEnqueuedInfo struct {
	Events int
}

// QueueDepthsInfo is the argument of [Hooks.QueueDepths].
type QueueDepthsInfo struct {
	// Hot are events that this process has just committed and that are ready.
	// Cold are events that were read from the tables and wait for their
	// delivery.
	Hot, Cold int
	// Bytes is the size of the events in memory, waiting or in flight.
	Bytes int
}

// DeliverInfo is the argument of [Hooks.Deliver].
type DeliverInfo struct {
	Batch []waybill.Delivery
	// Destination is the name of the destination; empty for a relay with one
	// sink.
	Destination string
}

// DeliverDoneInfo is the argument of the function that [Hooks.Deliver] returns.
type DeliverDoneInfo struct {
	// Results has one result per delivery of the batch; nil is success.
	Results []error
}

// DeliveredInfo is the argument of [Hooks.Delivered].
type DeliveredInfo struct {
	Delivery *waybill.Delivery
	// Took is the time in the sink.
	Took time.Duration
	// Age is the time since the event was written; 0 if unknown.
	Age time.Duration
	// Destination is the name of the destination; empty for a relay with one
	// sink.
	Destination string
}

// FailedInfo is the argument of [Hooks.Failed].
type FailedInfo struct {
	Delivery *waybill.Delivery
	// Class shows whether the attempt counts.
	Class waybill.Class
	Err   error
	// Took is the time in the sink.
	Took time.Duration
	// Destination is the name of the destination; empty for a relay with one
	// sink.
	Destination string
}

// DiedInfo is the argument of [Hooks.Died].
type DiedInfo struct {
	Delivery *waybill.Delivery
	Err      error
	// Destination is the name of the destination; empty for a relay with one
	// sink.
	Destination string
}

// UnroutedInfo is the argument of [Hooks.Unrouted].
type UnroutedInfo struct {
	Event *waybill.Event
}

// PausedInfo is the argument of [Hooks.Paused].
type PausedInfo struct {
	// Destination is the destination of the relay's sink. A relay with several
	// destinations puts the name of the destination in front of it: "billing",
	// or "billing: OrderPlaced" if the sink of billing has destinations of its
	// own.
	Destination string
	// Paused is false when the destination is available again.
	Paused bool
}

// ReadInfo is the argument of [Hooks.Read].
type ReadInfo struct {
	// Kind is the kind of the read.
	Kind string
	Rows int
	Took time.Duration
	Err  error
}

// SettledInfo is the argument of [Hooks.Settled].
type SettledInfo struct {
	Events int
	Took   time.Duration
	Err    error
}

// LanesInfo is the argument of [Hooks.Lanes].
type LanesInfo struct {
	Owned, Total int
}

// LagInfo is the argument of [Hooks.Lag].
type LagInfo struct {
	// Oldest is the age of the oldest event; 0 if there is none.
	Oldest time.Duration
}

// BacklogInfo is the argument of [Hooks.Backlog].
type BacklogInfo struct {
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

// DestinationsInfo is the argument of [Hooks.Destinations].
type DestinationsInfo struct {
	// Destinations are all registered destinations. One that was reported
	// earlier and is missing was removed.
	Destinations []Destination
}

// Destination is the state of one of several destinations, as the tables have
// it. Only relays can report whether the destination is available: see
// [Hooks.Paused].
type Destination struct {
	Name string
	// Paused means that no relay passes events to the destination until an
	// operator resumes it. An operator has paused it, or a relay did after many
	// dead letters in a row. PausedFor is how long it has been paused.
	Paused    bool
	PausedFor time.Duration
	// Behind is the number of lanes that have events in the backlog of the
	// destination. Later events of these lanes go to the backlog, too.
	Behind int
	// Ready events of the backlog wait for their turn, Failed ones for a retry,
	// Scheduled ones for their time.
	Ready, Failed, Scheduled int64
	// Dead letters of the destination wait for an operator.
	Dead int64
	// Holding counts events of the backlog that block their aggregate at this
	// destination.
	Holding int64
	// MaxAttempts is the highest number of attempts of an event of the backlog.
	MaxAttempts int
	// Oldest is the time since the oldest event of the backlog that is not dead
	// was written; 0 if there is none.
	Oldest time.Duration
}

// PurgedInfo is the argument of [Hooks.Purged].
type PurgedInfo struct {
	// Kind is the kind of the rows: "delivered", "dead", "written", "inbox" or
	// "keys".
	Kind string
	Rows int
}

// ConsumedInfo is the argument of [Hooks.Consumed].
type ConsumedInfo struct {
	Group string
	Event *waybill.Event
	Took  time.Duration
	// Replayed means that the group had applied the event earlier.
	Replayed bool
}

// ConsumeFailedInfo is the argument of [Hooks.ConsumeFailed].
type ConsumeFailedInfo struct {
	Group string
	Event *waybill.Event
	Err   error
	Took  time.Duration
}

// ConsumeDiedInfo is the argument of [Hooks.ConsumeDied].
type ConsumeDiedInfo struct {
	Group string
	Event *waybill.Event
	Err   error
}

// GroupsInfo is the argument of [Hooks.Groups].
type GroupsInfo struct {
	Groups []Group
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

// KeyRanInfo is the argument of [Hooks.KeyRan].
type KeyRanInfo struct {
	Operation string
	Took      time.Duration
	// Err is the error of the run; nil if it succeeded.
	Err error
}

// KeyRepeatedInfo is the argument of [Hooks.KeyRepeated].
type KeyRepeatedInfo struct {
	Operation string
}

// KeyRefusedInfo is the argument of [Hooks.KeyRefused].
type KeyRefusedInfo struct {
	Operation string
	// Err is the reason: [waybill.ErrInProgress], [waybill.ErrConflict],
	// [waybill.ErrUncertain], or the error of the store.
	Err error
}

// KeyUnkeptInfo is the argument of [Hooks.KeyUnkept].
type KeyUnkeptInfo struct {
	Operation string
	Err       error
}

// KeysInfo is the argument of [Hooks.Keys].
type KeysInfo struct {
	// Processing attempts are running, Failed keys may be used again, Uncertain
	// ones wait for an operator.
	Processing, Failed, Uncertain int64
	// Lapsed counts attempts whose lease has expired: their process died.
	Lapsed int64
}

// ReceivedInfo is the argument of [Hooks.Received].
type ReceivedInfo struct {
	Source string
	// Class is the class of the consumer's result.
	Class       waybill.Class
	Redelivered bool
	// Took is the time in the consumer.
	Took time.Duration
}

// DeadLetteredInfo is the argument of [Hooks.DeadLettered].
type DeadLetteredInfo struct {
	Source string
	Err    error
}

// ReconciledInfo is the argument of [Hooks.Reconciled].
type ReconciledInfo struct {
	Job string
	// Found counts missing events, Sent those that were written again, Failed
	// those that could not be written, Skipped those that were sent before and
	// are still in flight.
	Found, Sent, Failed, Skipped int
	Took                         time.Duration
	// Err is the error that ended the run early.
	Err error
}

// ReplayedInfo is the argument of [Hooks.Replayed].
type ReplayedInfo struct {
	Events int
}

// DiscardedInfo is the argument of [Hooks.Discarded].
type DiscardedInfo struct {
	Events int
}
