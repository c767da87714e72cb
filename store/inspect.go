package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

// Operator is the part of a store for inspecting and repairing an outbox.
type Operator interface {
	Inspector
	DeadLetters
	Maintainer
}

// Inspector reads an outbox. Reads take no locks and change nothing.
type Inspector interface {
	// Stats counts the rows of the outbox.
	Stats(ctx context.Context) (Stats, error)
	// Count returns the number of rows in a state that match the filter.
	Count(ctx context.Context, state State, f Filter) (int64, error)
	// List returns rows in a state that match the filter, in the order of their
	// seq, after a seq, at most limit.
	List(ctx context.Context, state State, f Filter, after int64, limit int) ([]Record, error)
	// Find returns an event in any state; no record if the event does not
	// exist.
	Find(ctx context.Context, id waybill.ID) ([]Record, error)
}

// DeadLetters changes dead letters. All methods commit synchronously, accept
// any number of ids, skip ids that do not exist, and return the ids of the
// changed events: a second call changes nothing.
type DeadLetters interface {
	// Replay moves dead letters to the delayed events: due now, no attempts,
	// replay number one higher, same id and seq. An ordered event blocks its
	// aggregate until it is delivered; a dead letter's hold is carried over in
	// the same step. A dead letter with a dedup key takes the key again, and is
	// rejected if a pending event has that key.
	Replay(ctx context.Context, ids []waybill.ID) (Replayed, error)
	// Discard deletes dead letters.
	Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error)
	// Unblock ends the holds of dead letters and deferred events; the events
	// stay in their tables.
	Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error)
}

// Maintainer maintains an outbox. Ages are measured by the database's clock.
type Maintainer interface {
	// Purge deletes at most limit rows that have been delivered, or dead, for
	// longer than age, the oldest first, and returns the number of deleted
	// rows. Any other state is an error. Purging delivered rows records the
	// time since which the history is complete.
	Purge(ctx context.Context, state State, age time.Duration, limit int) (int, error)
	// PurgeWritten deletes at most limit ready rows that were written longer
	// ago than age and, if delayed, became due longer ago than age: for
	// outboxes that change data capture reads and that have no relay. It frees
	// their dedup keys. Delayed rows stay, because change data capture has not
	// read them. While a relay is live it returns [ErrRelayLive] and changes
	// nothing.
	PurgeWritten(ctx context.Context, age time.Duration, limit int) (int, error)
	// MakeReady makes at most limit delayed events ready that are due, the
	// longest due first, and returns their number: change data capture reads
	// ready events only. An event keeps its id, its seq and its dedup key; its
	// attempts are reset. While a relay is live it returns [ErrRelayLive] and
	// changes nothing. MakeReady may run on several nodes concurrently.
	MakeReady(ctx context.Context, limit int) (int, error)
	// Tidy runs periodic maintenance: it creates partitions for future days,
	// drops partitions of days that ended longer ago than age, and removes
	// leftovers. A negative age drops no partition. Tidy is idempotent and may
	// run on several nodes concurrently.
	Tidy(ctx context.Context, age time.Duration) error
	// SetLanes changes the number of lanes: it moves every pending and dead row
	// to its new lane, and raises every epoch. While a relay is live it returns
	// [ErrRelayLive]. Writers may continue: the tables reject lanes of the old
	// number, and the writer adapts.
	SetLanes(ctx context.Context, n int) error
}

// ErrRelayLive means that the operation would remove rows that a running relay
// uses.
var ErrRelayLive = errors.New("store: a relay is running on this outbox")

// State is the state of an event, which is the table of its row.
type State int

// The states.
const (
	// Ready: the event waits for its first delivery.
	Ready State = iota
	// Delayed: the event is deferred, because it is scheduled, has failed, or
	// was replayed.
	Delayed
	// Dead: the event is a dead letter.
	Dead
	// Delivered: the event is in the history.
	Delivered
)

// String returns the state's name in lower case.
func (s State) String() string {
	switch s {
	case Ready:
		return "ready"
	case Delayed:
		return "delayed"
	case Dead:
		return "dead"
	case Delivered:
		return "delivered"
	}
	return fmt.Sprintf("state(%d)", int(s))
}

// Filter selects rows; empty fields match everything.
type Filter struct {
	Type, AggregateType, AggregateID, TenantID string
	// NoTenant selects only rows without a tenant, whatever TenantID is.
	NoTenant bool
	// Holding selects only rows that block their aggregate.
	Holding bool
	// Failed selects only rows with at least one attempt.
	Failed bool
	// Untried selects only rows without an attempt, whatever Failed is.
	Untried bool
}

// Record is an event and its state.
type Record struct {
	Row
	State State
	// EndedAt is the time of the delivery or dead-lettering; zero for a pending
	// event.
	EndedAt time.Time
}

// Replayed is the result of a replay.
type Replayed struct {
	IDs []waybill.ID
	// Refused are dead letters whose dedup key belongs to a pending event.
	Refused []Refusal
}

// Refusal is a dead letter that could not be replayed, and the pending event
// that has its dedup key.
type Refusal struct {
	ID, Holder waybill.ID
}

// Stats are the counts of an outbox at one moment.
type Stats struct {
	// Now is the database's clock.
	Now time.Time
	// Ready, Scheduled, Failed and Dead count rows: ready, deferred without an
	// attempt, deferred after a failure, dead.
	Ready, Scheduled, Failed, Dead int64
	// Holding counts rows that block their aggregate.
	Holding int64
	// Oldest is the write time of the oldest ready event; zero if there is
	// none.
	Oldest time.Time
	// MaxAttempts is the highest number of attempts of a pending event.
	MaxAttempts int
	// Membership holds the live relays and the owners of the lanes.
	Membership
}
