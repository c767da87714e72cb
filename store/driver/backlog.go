package driver

import (
	"context"
	"errors"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

const (
	// MaxDestinations is the maximum number of destinations of an outbox.
	MaxDestinations = 31
	// MaxDestinationName is the maximum length of a destination's name, in
	// bytes.
	MaxDestinationName = 64
)

var (
	// ErrNoDestination means that no destination is registered under the name.
	ErrNoDestination = errors.New("driver: unknown destination")
	// ErrTooManyDestinations means that no number is left for another
	// destination.
	ErrTooManyDestinations = errors.New("driver: too many destinations")
)

// Backlogs is the part of a store that a relay with several destinations needs.
// An event stays in the outbox until it was passed to each of its destinations.
// The settlement that takes it out of the outbox copies it to the backlog of
// every destination that has not received it: see [Settlement.Divert].
//
// The rows of a backlog have the lanes and seqs of the outbox. The owner of a
// lane owns the lane in every backlog, and the lane's lease is the fence of all
// settlements. A backlog is empty while its destination keeps up.
type Backlogs interface {
	// AddDestinations registers the destinations that are not registered yet,
	// with the lowest free numbers, and returns all registered destinations in
	// the order of their numbers. It is safe to call concurrently. It returns
	// [ErrTooManyDestinations] and registers none if there is no number
	// left for one of them.
	AddDestinations(ctx context.Context, names ...string) ([]store.Destination, error)
	// PauseDestination pauses a destination, for a reason of at most 4000
	// bytes. It reports false if the destination is paused already, and returns
	// [ErrNoDestination] if it is not registered. PauseDestination and
	// ResumeDestination commit synchronously.
	PauseDestination(ctx context.Context, name, reason string) (bool, error)
	// ResumeDestination ends the pause of a destination. It reports false if
	// the destination is not paused, and returns [ErrNoDestination] if it
	// is not registered.
	ResumeDestination(ctx context.Context, name string) (bool, error)
	// ProbeDestination asks the running relays to try an unavailable
	// destination now: it sets ProbeAt of the destination to the database's
	// time. It returns [ErrNoDestination] if the destination is not
	// registered.
	ProbeDestination(ctx context.Context, name string) error
	// RemoveDestination deletes a destination and all rows of its backlog, and
	// returns the number of these rows. It returns [ErrNoDestination] if
	// the destination is not registered. While a relay is live it returns
	// [store.ErrRelayLive] and changes nothing. The deletion is one
	// transaction.
	RemoveDestination(ctx context.Context, name string) (int64, error)
	// Backlog returns the backlog of the destination with a number. It does not
	// access the database. Settlements of a destination that is not registered
	// move nothing.
	Backlog(number int) Backlog
}

// Backlog holds the events that one destination has yet to receive. Its rows
// are ready, delayed or dead, as those of the outbox, and never delivered: a
// row is deleted when the destination has received the event.
//
// The roles have the meaning that they have for the outbox, with these
// differences:
//
//   - Ready rows have Attempts, Replay, LastError, DueAt and Final: the first
//     attempts may have been made before the event was diverted.
//   - Seqs are drawn by the outbox, and rows may appear with seqs below those
//     of existing rows. OpenWriters reports no open transactions, and
//     [math.MaxInt64] as HighSeq and as Issued.
//   - Settle deletes done rows. With Settlement.History it sets the delivery
//     time of their rows in the history, if these exist, to now. Dedup keys are
//     neither taken nor freed. Divert is empty.
//   - Stats has no lanes and no nodes.
//   - Discard does not change what the history covers: the outbox has recorded
//     the event.
type Backlog interface {
	Reader
	Seeker
	Settler
	Inspector
	DeadLetters

	// Occupied returns the lanes that have a row that is ready or delayed, or a
	// dead letter that blocks its aggregate, in the order of their numbers.
	Occupied(ctx context.Context) ([]int, error)
	// PurgeDead deletes at most limit dead letters that have been dead for
	// longer than age, the oldest first, and returns their number.
	PurgeDead(ctx context.Context, age time.Duration, limit int) (int, error)
	// Refill copies delivered events from the history into the backlog, as
	// ready rows with their lanes and seqs, no attempts, and a replay number
	// that is one higher. It copies at most limit events that match, in the
	// order of delivery time and id, beginning after the cursor. Events that
	// have a row in this backlog, in any state, are skipped. Each call is one
	// transaction and commits synchronously.
	Refill(ctx context.Context, q HistoryQuery, after HistoryCursor, limit int) (Refilled, error)
	// CountHistory returns the number of delivered events that match.
	CountHistory(ctx context.Context, q HistoryQuery) (int64, error)
}

// HistoryQuery selects delivered events. Zero fields match everything.
type HistoryQuery struct {
	// Since and Until select by the time of the delivery: at or after Since,
	// and before Until.
	Since, Until time.Time
	// Types, AggregateTypes and Tenants select events that have one of the
	// values. An empty tenant selects events without a tenant.
	Types, AggregateTypes, Tenants []string
	// AggregateID selects the events of aggregates with this id.
	AggregateID string
}

// HistoryCursor is a place in the history: deliveries at At match only if their
// id is greater than ID. The zero cursor is the beginning.
type HistoryCursor struct {
	At time.Time
	ID waybill.ID
}

// Refilled is the result of a refill.
type Refilled struct {
	// Matched is the number of events that matched, and Copied the number of
	// those that were copied.
	Matched, Copied int
	// Next is the cursor of the next call. There are no more events if Matched
	// is less than the limit.
	Next HistoryCursor
}

// Diversion moves a done event to the backlog of a destination that has not
// received it: its row there is ready.
type Diversion struct {
	// Destination is the number of the destination.
	Destination int
	// ID is the id of an event in Settlement.Done.
	ID waybill.ID
	// Attempts is the number of attempts at this destination.
	Attempts int
	// Delay is the time until the next attempt, by the database's clock; 0
	// means none: DueAt of the row is zero then.
	Delay time.Duration
	// Final means that the event has failed for good: the relay makes the row a
	// dead letter when its turn comes.
	Final bool
	// Error is the error of the last attempt; see [CutError].
	Error string
}

// Restorer is implemented by stores whose database can be restored from a
// backup. A backup may be older than positions that were issued since; they
// must not be issued again for other events.
type Restorer interface {
	// Restored raises the epoch of every lane by [RestoreEpochs] and the
	// sequence of the outbox by [RestoreSeqs], releases all lanes as dirty, and
	// removes all nodes. While a relay is live it returns [store.ErrRelayLive]
	// and changes nothing, unless force is set: the nodes of a restored backup
	// may look alive until their leases have ended. It commits synchronously.
	Restored(ctx context.Context, force bool) error
}

// RestoreEpochs and RestoreSeqs are larger than the numbers of epochs and seqs
// that an outbox can use between a backup and its restoration.
const (
	RestoreEpochs = 1 << 20
	RestoreSeqs   = 1 << 40
)
