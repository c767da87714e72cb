package store

import (
	"errors"
	"time"

	"github.com/waybillhq/waybill"
)

// ErrRelayLive means that the operation would remove rows that a running relay
// uses.
var ErrRelayLive = errors.New("store: a relay is running on this outbox")

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

// Membership is the set of live nodes and lane owners at one moment of the
// database's clock.
type Membership struct {
	Nodes []Node
	Lanes []LaneState
}

// LaneState is a lane and its owner.
type LaneState struct {
	Lane int
	// Owner is zero for a lane that was released.
	Owner waybill.ID
	// Live means that the owner's lease is valid.
	Live bool
	// Epoch counts acquisitions.
	Epoch int64
}
