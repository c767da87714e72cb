package store

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

// Operator is what looking at an outbox and mending it needs of a store.
type Operator interface {
	Inspector
	DeadLetters
	Maintainer
}

// Inspector is how an operator looks. Reading takes no locks and changes nothing.
type Inspector interface {
	// Stats counts what there is.
	Stats(ctx context.Context) (Stats, error)
	// Count returns how many rows of a state fit the filter.
	Count(ctx context.Context, state State, f Filter) (int64, error)
	// List returns rows of a state that fit the filter, in the order of their seq, after a seq, at most limit.
	List(ctx context.Context, state State, f Filter, after int64, limit int) ([]Record, error)
	// Find returns an event wherever it is; no record if it is nowhere.
	Find(ctx context.Context, id waybill.ID) ([]Record, error)
}

// DeadLetters is how an operator decides about events. All methods commit synchronously, take events by id in any number, pass
// over ids that are not there any more, and return the ids of what they changed: doing a thing twice changes nothing.
type DeadLetters interface {
	// Replay moves dead letters to the delayed events, due now, attempts 0, replay number one more, with the same id and
	// seq. Ordered ones hold their aggregate until they are delivered; a hold of the dead letter passes over in the same
	// step. A dead letter with a dedup key takes it again, or is refused if a pending event has it.
	Replay(ctx context.Context, ids []waybill.ID) (Replayed, error)
	// Discard deletes dead letters.
	Discard(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error)
	// Unblock ends the holds of dead letters and of events put off; the events stay where they are.
	Unblock(ctx context.Context, ids []waybill.ID) ([]waybill.ID, error)
}

// Maintainer is how an outbox is kept in shape. Ages are measured by the database's clock.
type Maintainer interface {
	// Purge deletes at most limit rows that have been delivered, or dead, for longer than age, the oldest first, and
	// returns how many. Any other state is an error. Purging delivered rows notes how far back the history reaches.
	Purge(ctx context.Context, state State, age time.Duration, limit int) (int, error)
	// PurgeWritten deletes at most limit ready rows that were written longer ago than age, and, if they were delayed, became
	// due longer ago: for outboxes that are read by change data capture and have no relay. It frees their dedup keys. Delayed
	// rows stay: nothing has read them. While a relay is live it is [ErrRelayLive], and nothing changes.
	PurgeWritten(ctx context.Context, age time.Duration, limit int) (int, error)
	// MakeReady makes at most limit delayed events ready whose time has come, the longest due first, and returns how many: change
	// data capture reads the ready ones only. An event keeps its id, its seq and its dedup key; its attempts are forgotten.
	// While a relay is live it is [ErrRelayLive], and nothing changes. MakeReady may run on several nodes at a time.
	MakeReady(ctx context.Context, limit int) (int, error)
	// Tidy does what else is to be done from time to time: partitions of days to come are made and those of days that
	// ended before the age are dropped, leftovers are removed. A negative age drops no partition. Tidy is idempotent, and
	// may run on several nodes at a time.
	Tidy(ctx context.Context, age time.Duration) error
	// SetLanes changes the number of lanes: it moves every pending and dead row to its new lane, and raises every epoch.
	// While a relay is live it is [ErrRelayLive]. Writers may go on: the
	// tables refuse a lane of the old number, and the writer follows.
	SetLanes(ctx context.Context, n int) error
}

// ErrRelayLive says that what was asked for would pull rows from under a relay that is running.
var ErrRelayLive = errors.New("store: a relay is running on this outbox")

// State is where an event stands, which is the table it is in.
type State int

// The states.
const (
	// Ready: waiting for its first delivery.
	Ready State = iota
	// Delayed: put off, because it is scheduled, has failed, or was replayed.
	Delayed
	// Dead: given up.
	Dead
	// Delivered: kept in the history.
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

// Filter chooses rows; what is empty fits all.
type Filter struct {
	Type, AggregateType, AggregateID, TenantID string
	// NoTenant: only rows that belong to no tenant, whatever TenantID says.
	NoTenant bool
	// Holding: only rows that hold their aggregate back.
	Holding bool
	// Failed: only rows that were tried at least once.
	Failed bool
	// Untried: only rows that were never tried, whatever Failed says.
	Untried bool
}

// Record is an event and where it stands.
type Record struct {
	Row
	State State
	// EndedAt is when it was delivered or given up; zero for one that is pending.
	EndedAt time.Time
}

// Replayed says what a replay did.
type Replayed struct {
	IDs []waybill.ID
	// Refused are dead letters whose dedup key a pending event has.
	Refused []Refusal
}

// Refusal is a dead letter that could not be replayed, and the pending event that has its dedup key.
type Refusal struct {
	ID, Holder waybill.ID
}

// Stats is what there is, as of one moment.
type Stats struct {
	// Now is the database's clock.
	Now time.Time
	// Ready, Scheduled, Failed and Dead count rows: ready, put off and never tried, put off after a failure, dead.
	Ready, Scheduled, Failed, Dead int64
	// Holding counts rows that hold their aggregate back.
	Holding int64
	// Oldest is when the oldest event that is ready was written; zero if there is none.
	Oldest time.Time
	// MaxAttempts is the highest number of attempts of a pending event.
	MaxAttempts int
	// Membership is which relays are live, and who owns what.
	Membership
}
