package driver

import (
	"context"
	"errors"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// Relay is the part of a store that a relay needs.
type Relay interface {
	Lanes
	Reader
	Seeker
	Settler
	Local
}

// Lanes assigns lanes to nodes. A lane has one owner at a time, recorded with
// an epoch and a random token that both change at every acquisition. All
// methods commit synchronously: an epoch that a crash rolled back could be
// assigned twice.
type Lanes interface {
	// Heartbeat makes the node live for lease from now, by the database's
	// clock, and returns the state of all lanes and the live nodes. If a node
	// with another relay name is live, it returns [waybill.ErrOtherRelay] and
	// changes nothing. The node's report, at most [MaxNodeReport] bytes
	// without NUL, replaces the one of its last heartbeat; the nodes of the
	// result have none. A store without [Rollups] ignores the node's Rollup.
	Heartbeat(ctx context.Context, node store.Node, lease time.Duration) (store.Membership, error)
	// Acquire acquires those of the lanes that are free: released, or owned by
	// a node that is not live. It waits for running settlements. window is the
	// maximum number of events that the owner will have in flight; it is stored
	// for the next owner.
	Acquire(ctx context.Context, node store.Node, lanes []int, window int) ([]Lease, error)
	// Release releases lanes and skips leases that are no longer held. dirty
	// means that deliveries may still be running: the next owner must treat the
	// lane like one whose owner died.
	Release(ctx context.Context, leases []Lease, dirty bool) error
	// Leave removes the node; lanes that it still owns are free at once, as
	// dirty.
	Leave(ctx context.Context, node store.Node) error
}

// Lease is the right to deliver the events of a lane: the fence of every
// settlement.
type Lease struct {
	Lane  int
	Epoch int64
	Token waybill.ID
	// Unclean means that the last owner did not release the lane cleanly: it
	// may have delivered up to Window events without settling them.
	Unclean bool
	Window  int
}

// Reader reads events for a relay. Reads take no locks and change nothing; the
// settlement proves that the reader owns the lanes. A read sees the
// transactions that are committed when it starts, independent of the reader's
// own transactions.
//
// The reads that return a [Page] return [ErrPageTooLarge] if its rows are too
// large together: a relay bounds its memory in bytes.
type Reader interface {
	// Fetch returns ready rows after each cursor, in the order of their seq, at
	// most limit per lane. An UpTo of 0 means no upper bound.
	Fetch(ctx context.Context, from []Cursor, limit int) (Page, error)
	// Sweep returns references to the ready rows in (After, UpTo], without
	// their contents, in order, at most limit per lane. A transaction may
	// commit late with a seq that Fetch has already passed: Sweep finds such
	// rows.
	Sweep(ctx context.Context, from []Cursor, limit int) ([]RowRef, error)
	// Load returns ready rows by key, in the order of lane and seq, and skips
	// keys whose rows are gone.
	Load(ctx context.Context, keys []store.Key) (Page, error)
	// Due returns deferred rows of these lanes that are due, the longest due
	// first, then by seq. Its page contains the time at which the next row of
	// these lanes is due.
	Due(ctx context.Context, lanes []int, limit int) (Page, error)
	// OpenWriters returns the transactions that may still commit a row before
	// existing ones.
	OpenWriters(ctx context.Context) (WriterState, error)
}

// WriterState are the open transactions that have drawn a seq or may have.
type WriterState struct {
	// HighSeq is a seq: every transaction that drew it or a lower one had ended
	// when OpenWriters ran, or is in Open. Later reads see everything that the
	// ended transactions committed.
	HighSeq int64
	// Issued is the highest seq that was ever issued. It decreases only if the
	// sequence went back: after a crash, a failover or a restore. Deleting rows
	// does not change it.
	Issued int64
	// Open identifies the open transactions; none of them had committed when
	// OpenWriters ran. Names are not reused.
	Open []string
	// Unknown means that this account lacks the permission, or that the answer
	// is currently unavailable.
	Unknown bool
}

// Seeker reads particular events for a relay. As with [Reader], reads lock and
// change nothing, and return [ErrPageTooLarge].
type Seeker interface {
	// Holds returns the deferred and dead rows of these lanes that block their
	// aggregate, in the order of lane and seq.
	Holds(ctx context.Context, lanes []int) ([]Hold, error)
	// FetchAggregate returns ready rows of one aggregate in the cursor's range,
	// in the order of their seq, at most limit.
	FetchAggregate(ctx context.Context, agg store.Aggregate, from Cursor, limit int) (Page, error)
	// FetchPriority returns ready rows with a priority above 0 after each
	// cursor, in the order of their seq, at most limit per lane. A row of an
	// aggregate is returned only if no row of its aggregate with priority 0
	// lies between the cursor and that row, and only together with the earlier
	// rows of its aggregate that have a priority. A store may omit rows behind
	// many other rows with a priority, and the later ones of many rows of one
	// aggregate. The page names the lanes without any row with a priority.
	FetchPriority(ctx context.Context, from []Cursor, limit int) (Page, error)
}

// AggregateOf returns the aggregate of an event; zero if the event is
// unordered.
func AggregateOf(ev *waybill.Event) store.Aggregate {
	if ev.AggregateID == "" {
		return store.Aggregate{}
	}
	return store.Aggregate{Tenant: ev.TenantID, Type: ev.AggregateType, ID: ev.AggregateID}
}

// RowRef is a reference to a row, with its aggregate.
type RowRef struct {
	store.Key
	Aggregate store.Aggregate
	// Tenant is the tenant of the event, which may be unordered. Sweep sets it.
	Tenant string
}

// Hold is a row that blocks its aggregate.
type Hold struct {
	store.Key
	Aggregate store.Aggregate
	// Dead means that the row is a dead letter and not deferred.
	Dead bool
}

// Cursor is a range of a lane: After is excluded, UpTo included.
type Cursor struct {
	Lane  int
	After int64
	UpTo  int64
}

// MaxPageBytes is the maximum size of the rows of one page.
const MaxPageBytes = 8 << 20

// ErrPageTooLarge means that the rows of a read exceed [MaxPageBytes]. The
// caller repeats the read with a lower limit.
var ErrPageTooLarge = errors.New("driver: the rows of the page are too large together")

// RowSize returns the size of a row's payload and headers in bytes.
func RowSize(row *store.Row) int {
	size := len(row.Event.Payload)
	for name, value := range row.Event.Headers {
		size += len(name) + len(value)
	}
	return size
}

// Page holds rows and the database's time of the read.
type Page struct {
	Rows []store.Row
	Now  time.Time
	// Next is, for [Reader.Due], the time at which the next row is due; zero if
	// there is none.
	Next time.Time
	// Plain are, for [Seeker.FetchPriority], the lanes that have no row with a
	// priority in the range of their cursor. Rows that the page omits count: a
	// lane may be missing from both the rows and Plain.
	Plain []int
	// RowsScanned is, for [Seeker.FetchPriority], the approximate number of
	// rows per lane that the store scanned: the cost of the read.
	RowsScanned int

	bytes int
}

// Add adds a row to the page. It returns [ErrPageTooLarge] if the rows exceed
// [MaxPageBytes] together; a page of one row may be larger.
func (p *Page) Add(row store.Row) error {
	p.Rows = append(p.Rows, row)
	p.bytes += RowSize(&row)
	if p.bytes > MaxPageBytes && len(p.Rows) > 1 {
		return ErrPageTooLarge
	}
	return nil
}

// Settler records the results of deliveries.
type Settler interface {
	// Settle records results under the fence, atomically: for every lane whose
	// lease is still held, all of its results; for every other lane, none. It
	// locks the lanes' rows from the check to the commit, so that a takeover
	// waits. Settle skips rows that do not exist any more, because an operator
	// discarded them.
	Settle(ctx context.Context, s Settlement) (Settled, error)
}

// Settlement is a batch of results.
type Settlement struct {
	// Leases are the fences of all lanes named below.
	Leases []Lease
	// Done are delivered events. The row moves to the history, or is deleted
	// when History is false.
	Done    []Result
	History bool
	// Retry are deferred events. The row moves to, or stays in, the table of
	// delayed events.
	Retry []Result
	// Dead are dead-lettered events. The row moves to the dead letters. A
	// settlement with dead letters commits synchronously; others need not,
	// because losing one only means delivering again.
	Dead []Result
	// Divert copies events of Done to the backlogs of destinations, in the same
	// statement: only those whose row was moved, and only to destinations that
	// are registered. A store without [Backlogs] never gets any.
	Divert []Diversion
	// Durable makes the settlement commit synchronously in any case.
	Durable bool
}

// Result is the result of one event.
type Result struct {
	Lane int
	ID   waybill.ID
	// Seq is the row's seq if known, or 0: a hint for the store. The id
	// decides.
	Seq int64
	// Late means that the row was read from the delayed events and not from the
	// ready ones. A store that searches only there saves a lookup; a store that
	// searches both tables may ignore Late. Done uses it.
	Late bool
	// Replay is the replay number of the row when it was read. Retry and Dead
	// skip a row that an operator has replayed since, which happens when the
	// response of a settlement that dead-lettered the event was lost and the
	// settlement is repeated.
	Replay int
	// Attempts is the new number of attempts. Retry and Dead use it.
	Attempts int
	// Delay is the time until the next attempt, by the database's clock. Retry
	// uses it.
	Delay time.Duration
	// Holds means that the event blocks later events of its aggregate. Retry
	// and Dead use it.
	Holds bool
	// Error is the error of the attempt; see [CutError]. Retry and Dead use it.
	Error string
}

// Finisher records deliveries as done inside a transaction of the caller: the
// outbox row is removed if and only if the transaction commits. Sinks that
// write to the same database use it.
type Finisher[T any] interface {
	// Finish checks the fence of every delivery's claim, locks the lanes' rows
	// until the transaction ends, and then does the same as [Settler.Settle]
	// for Done, with history if the claim says so. Call Finish last: a client
	// that stops between Finish and the commit blocks a takeover. If any fence
	// is not held, Finish returns [waybill.ErrLeaseLost], nothing has changed,
	// and the transaction must be rolled back. Finish skips rows that do not
	// exist any more.
	Finish(ctx context.Context, tx T, done []waybill.Delivery) error
}

// FinisherAtCommit may be implemented by a [Finisher] whose transactions can
// finish deliveries in the round trip of the commit.
type FinisherAtCommit[T any] interface {
	// FinishAtCommit is [Finisher.Finish] at the end of its transaction: the
	// deliveries are finished when the transaction commits. If any fence is not
	// held then, the commit fails with [waybill.ErrLeaseLost] and leaves
	// nothing. FinishAtCommit reports false if the transaction does not support
	// it.
	FinishAtCommit(ctx context.Context, tx T, done []waybill.Delivery) (bool, error)
}

// Settled is the result of a settlement.
type Settled struct {
	// Held are the lanes whose lease was still held. A missing lane is lost:
	// drop its work.
	Held []int
	// Moved are the events that were moved or deleted.
	Moved []waybill.ID
}

// Watcher is implemented by stores that can notify a relay of writes by other
// processes. It is optional: polling is always sufficient.
type Watcher interface {
	// Watch calls woken, which does not block, whenever another process may
	// have committed events, until ctx ends. It recovers from connection
	// failures by itself.
	Watch(ctx context.Context, woken func())
}
