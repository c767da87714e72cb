package store

import (
	"context"
	"time"

	"github.com/waybillhq/waybill"
)

// Relay is what a relay needs of a store.
type Relay interface {
	Lanes
	Reader
	Seeker
	Settler
	Local
}

// Lanes is who may deliver what. A lane has one owner at a time, recorded with an epoch and a random token that both
// change at every acquisition. All methods commit synchronously: an epoch that a crash took back could be given twice.
type Lanes interface {
	// Heartbeat makes the node live for lease from now, by the database's clock, and returns the state of all lanes
	// and the nodes that are live. A live node of another relay name is [waybill.ErrOtherRelay], and nothing changes.
	Heartbeat(ctx context.Context, node Node, lease time.Duration) (Membership, error)
	// Acquire takes those of the lanes that are free: released, or owned by a node that is not live. It waits for
	// settlements under way. window is how many events the owner will have in hand at most, kept for whoever takes
	// over from it.
	Acquire(ctx context.Context, node Node, lanes []int, window int) ([]Lease, error)
	// Release gives lanes up. Leases that are not held any more are passed over. dirty says that work may still be
	// going on: the next owner must treat the lane like one whose owner died.
	Release(ctx context.Context, leases []Lease, dirty bool) error
	// Leave removes the node; what it still owns is free at once, as dirty.
	Leave(ctx context.Context, node Node) error
}

// Node is one running relay.
type Node struct {
	// ID is made anew for every run.
	ID waybill.ID
	// Relay is the relay's name; one outbox has one.
	Relay string
}

// Membership is who is there, as of one moment of the database's clock.
type Membership struct {
	Nodes []Node
	Lanes []LaneState
}

// LaneState is a lane and its owner.
type LaneState struct {
	Lane int
	// Owner is zero for a lane that was released.
	Owner waybill.ID
	// Live says that the owner's lease is running.
	Live bool
	// Epoch counts acquisitions.
	Epoch int64
}

// Lease is the right to deliver the events of a lane: the fence of every settlement.
type Lease struct {
	Lane  int
	Epoch int64
	Token waybill.ID
	// Unclean says that the last owner did not release the lane in good order: it may have delivered up to Window
	// events that it did not settle.
	Unclean bool
	Window  int
}

// Reader is how a relay finds events. Reading takes no locks and changes nothing; that the reader owns the lanes is
// proven by the settlement. No read is affected by the reader's own transactions: each sees what is committed when it
// starts.
type Reader interface {
	// Fetch returns ready rows after each cursor, in the order of their seq, at most limit per lane. A cursor's UpTo
	// of 0 has no bound.
	Fetch(ctx context.Context, from []Cursor, limit int) (Page, error)
	// Sweep returns which ready rows there are in (After, UpTo], without their contents, in order, at most limit per
	// lane. A transaction may commit late with a seq that the fast read has passed: this is how it is found.
	Sweep(ctx context.Context, from []Cursor, limit int) ([]RowRef, error)
	// Load returns ready rows by key, in the order of lane and seq; keys whose rows are gone are passed over.
	Load(ctx context.Context, keys []Key) (Page, error)
	// Due returns rows put off whose time has come, of these lanes, the longest due first, then by seq. Its page says
	// when the next row of these lanes is due.
	Due(ctx context.Context, lanes []int, limit int) (Page, error)
	// WriterState tells which transactions may still commit a row in front of others.
	OpenWriters(ctx context.Context) (WriterState, error)
}

// WriterState are the transactions that have drawn a seq, or may have, and have not ended.
type WriterState struct {
	// Drawn is a seq: whoever drew it, or one before it, had ended when this was asked, or is in Open. What an ended one committed is
	// seen by every read that begins later.
	HighSeq int64
	// Issued is the highest seq that was ever handed out. It falls only when
	// the sequence went back: after a crash, a failover or a restore. Rows
	// that are deleted do not change it.
	Issued int64
	// Open names the transactions; none of them had committed when this was asked. A name is not used again.
	Open []string
	// Unknown says that this account may not ask, or that there is no answer at the moment.
	Unknown bool
}

// Seeker is how a relay looks for particular events. As with [Reader], nothing is locked or changed.
type Seeker interface {
	// Holds returns the rows of these lanes, put off or dead, that hold their aggregate back, in the order of lane and
	// seq.
	Holds(ctx context.Context, lanes []int) ([]Hold, error)
	// Follow returns ready rows of one aggregate in the cursor's stretch, in the order of their seq, at most limit.
	FetchAggregate(ctx context.Context, agg Aggregate, from Cursor, limit int) (Page, error)
	// Urgent returns ready rows after each cursor that have a priority above 0, in the order of
	// their seq, at most limit per lane. A row of an aggregate is returned only if no row of its
	// aggregate with a priority of 0 lies between the cursor and it, and then with those in front
	// of it that have one. A store may leave out what lies behind many other rows with a
	// priority, and the later ones of many rows of one aggregate.
	FetchPriority(ctx context.Context, from []Cursor, limit int) (Page, error)
}

// Aggregate is what events are ordered by. The zero Aggregate is that of unordered events.
type Aggregate struct {
	Tenant, Type, ID string
}

// AggregateOf returns the aggregate of an event; the zero one if the event is unordered.
func AggregateOf(ev *waybill.Event) Aggregate {
	if ev.AggregateID == "" {
		return Aggregate{}
	}
	return Aggregate{Tenant: ev.TenantID, Type: ev.AggregateType, ID: ev.AggregateID}
}

// IsZero reports whether a is the aggregate of unordered events.
func (a Aggregate) IsZero() bool { return a.ID == "" }

// RowRef is a row and its aggregate.
type RowRef struct {
	Key
	Aggregate Aggregate
}

// Hold is a row that holds its aggregate back.
type Hold struct {
	Key
	Aggregate Aggregate
	// Dead says that it is a dead letter, and not put off.
	Dead bool
}

// Cursor is a stretch of a lane: After is excluded, UpTo included.
type Cursor struct {
	Lane  int
	After int64
	UpTo  int64
}

// Key names a row.
type Key struct {
	Lane int
	Seq  int64
	ID   waybill.ID
}

// Page is rows, and the database's clock when they were read.
type Page struct {
	Rows []Row
	Now  time.Time
	// Next is, for [Reader.Due], when the next row that is not due yet will be; zero if there is none.
	Next time.Time
	// Looked is, for [Seeker.Urgent], about how many rows of a lane the store went through to
	// find these: what the look has cost.
	RowsScanned int
}

// Row is an event as it stands in a table.
type Row struct {
	Key
	Event waybill.Event
	// CreatedAt is when it was written, by the database's clock.
	CreatedAt time.Time
	// DueAt is when it may be delivered; zero: at once.
	DueAt time.Time
	// Attempts is how often it was tried; Replay, how often an operator replayed it.
	Attempts int
	Replay   int
	// Holds says that later events of its aggregate wait for it.
	Holds bool
	// LastError is what the last attempt met.
	LastError string
	// Err is why the row cannot be decoded; Event holds what could be read.
	Err error
}

// Settler records what became of events.
type Settler interface {
	// Settle records results under the fence, in one step: for every lane whose lease is still held, all of its
	// results; for every other lane, none. It holds the lanes' rows locked from the check to the commit, so that a
	// take-over waits for it. A row that is not there any more is passed over: an operator discarded it.
	Settle(ctx context.Context, s Settlement) (Settled, error)
}

// Settlement is a batch of results.
type Settlement struct {
	// Leases are the fences of all lanes named below.
	Leases []Lease
	// Done: delivered. The row moves to the history, or is deleted when History is false.
	Done    []Result
	History bool
	// Retry: put off. The row moves to, or stays in, the table of delayed events.
	Retry []Result
	// Dead: given up. The row moves to the dead letters. A settlement with any commits synchronously; others need not:
	// losing one only means delivering again.
	Dead []Result
	// Durable makes the settlement commit synchronously whatever it holds.
	Durable bool
}

// Result is what became of one event.
type Result struct {
	Lane int
	ID   waybill.ID
	// Seq is the row's, as far as it is known, or 0: where a store may look first. The id decides.
	Seq int64
	// Late says that the row was read from the delayed events, and not from the ready ones. A store that looks for it
	// there only saves itself a search; one that looks in both places need not care. Done uses it.
	Late bool
	// Replay is the row's, as it was read. Retry and Dead pass over a row that an operator has replayed since: the answer to a
	// settlement that made it a dead letter was lost, and the settlement is repeated.
	Replay int
	// Attempts is the new count. Retry and Dead use it.
	Attempts int
	// Delay is how long to wait, by the database's clock. Retry uses it.
	Delay time.Duration
	// Holds says that later events of the aggregate wait for this one. Retry and Dead use it.
	Holds bool
	// Error is what went wrong; see [CutError]. Retry and Dead use it.
	Error string
}

// Finisher records deliveries as done inside a transaction of the caller: the outbox row goes if and only if what else
// the transaction does commits. Sinks that write to the same database use it.
type Finisher[T any] interface {
	// Finish checks the fence of every delivery's claim, holding the lanes' rows locked until the transaction ends, and
	// then does what [Settler.Settle] does for Done, with history where the claim says so. Call it last: a client that
	// stops between it and the commit blocks a take-over. If any fence is not held it is [waybill.ErrLeaseLost], nothing
	// has changed, and the transaction must be rolled back. A row that is not there any more is passed over.
	Finish(ctx context.Context, tx T, done []waybill.Delivery) error
}

// Settled says what a settlement changed.
type Settled struct {
	// Held are the lanes whose lease was still held. A lane that is missing here is lost: drop its work.
	Held []int
	// Moved are the events that were moved or deleted.
	Moved []waybill.ID
}

// Watcher is a store that can tell a relay when other processes have written. A relay does without it: polling is always
// enough.
type Watcher interface {
	// Watch calls woken, which does not block, whenever another process may have committed events, until ctx ends. It
	// mends what breaks by itself.
	Watch(ctx context.Context, woken func())
}
