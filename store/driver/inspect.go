package driver

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// OutboxAdmin is the part of a store for inspecting and repairing an outbox.
type OutboxAdmin interface {
	Inspector
	DeadLetters
	Maintainer
}

// Inspector reads an outbox. Reads take no locks and change nothing.
type Inspector interface {
	// Stats counts the rows of the outbox.
	Stats(ctx context.Context) (store.Stats, error)
	// Count returns the number of rows in a state that match the filter.
	Count(ctx context.Context, state store.State, f store.Filter) (int64, error)
	// List returns rows in a state that match the filter, in the order of their
	// seq, after a seq, at most limit.
	List(ctx context.Context, state store.State, f store.Filter, after int64, limit int) ([]store.Record, error)
	// Find returns an event in any state; no record if the event does not
	// exist.
	Find(ctx context.Context, id waybill.ID) ([]store.Record, error)
}

// Members is implemented by stores that read the live nodes and the owners of
// lanes without counting rows, which can take long. It is optional: callers
// find it by a type assertion on [OutboxAdmin], and call Stats otherwise.
type Members interface {
	// Members returns the fields Now and Membership of [Inspector.Stats].
	Members(ctx context.Context) (store.Stats, error)
}

// Recent is implemented by stores that list the newest delivered events without
// reading the others: a history has no index on seq, because every delivery
// would have to update it. It is optional: callers find it by a type assertion
// on [OutboxAdmin], and call List otherwise.
type Recent interface {
	// ListRecent returns delivered events that match the filter and whose ids
	// are lower than before, the highest id first, at most limit. The zero id
	// is higher than all.
	//
	// It searches only the highest scan ids below before, or all with a scan of
	// 0. floor is the lowest id of those, or zero if there are no more.
	ListRecent(ctx context.Context, f store.Filter, before waybill.ID, limit, scan int) (found []store.Record, floor waybill.ID, err error)
}

// Bounded is implemented by stores, and by their backlogs, that can stop
// counting dead letters: a page about a million of them must not read a million
// rows. It is optional: callers find it by a type assertion on [OutboxAdmin]
// and on [Backlog], and count all otherwise.
type Bounded interface {
	// StatsUpTo is Stats of [Inspector], except that Dead is at most most: it
	// is then most or more.
	StatsUpTo(ctx context.Context, most int64) (store.Stats, error)
	// CountCausesUpTo is CountCauses of [Causes], except that the dead
	// letters of each cause are at most most: they are then most or more, and
	// First and Last those of the lowest and the highest seq. Of more than a
	// thousand causes, it counts a thousand.
	CountCausesUpTo(ctx context.Context, limit int, most int64) ([]CauseCount, error)
}

// BeforeID returns the argument before of [Recent.ListRecent] as an id that
// databases compare: the highest id instead of zero.
func BeforeID(before waybill.ID) waybill.ID {
	if !before.IsZero() {
		return before
	}
	for i := range before {
		before[i] = 0xff
	}
	return before
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
	Replay(ctx context.Context, ids []waybill.ID) (store.Replayed, error)
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
	Purge(ctx context.Context, state store.State, age time.Duration, limit int) (int, error)
	// PurgeWritten deletes at most limit ready rows that were written longer
	// ago than age and, if delayed, became due longer ago than age: for
	// outboxes that change data capture reads and that have no relay. It frees
	// their dedup keys. Delayed rows stay, because change data capture has not
	// read them. While a relay is live it returns [store.ErrRelayLive] and
	// changes nothing.
	PurgeWritten(ctx context.Context, age time.Duration, limit int) (int, error)
	// MakeReady makes at most limit delayed events ready that are due, the
	// longest due first, and returns their number: change data capture reads
	// ready events only. An event keeps its id, its seq and its dedup key; its
	// attempts are reset. While a relay is live it returns [store.ErrRelayLive]
	// and changes nothing. MakeReady may run on several nodes concurrently.
	MakeReady(ctx context.Context, limit int) (int, error)
	// Tidy runs periodic maintenance: it creates partitions for future days,
	// drops partitions of days that ended longer ago than age, and removes
	// leftovers. A negative age drops no partition. Tidy is idempotent and may
	// run on several nodes concurrently.
	Tidy(ctx context.Context, age time.Duration) error
	// SetLanes changes the number of lanes: it moves every pending and dead row
	// to its new lane, and raises every epoch. While a relay is live it returns
	// [store.ErrRelayLive]. Writers may continue: the tables reject lanes of
	// the old number, and the writer adapts.
	SetLanes(ctx context.Context, n int) error
}
