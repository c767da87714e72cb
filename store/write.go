package store

import (
	"context"
	"database/sql"

	"github.com/waybillhq/waybill"
)

// Outbox is what package outbox needs of a store.
type Outbox[T any] interface {
	Beginner[T]
	Appender[T]
	Resolver
	Local
}

// Beginner starts transactions.
type Beginner[T any] interface {
	// Begin starts a transaction. Ending ctx aborts the start, and nothing after it: the session's own methods end it.
	Begin(ctx context.Context, opts *sql.TxOptions) (Session[T], error)
}

// Session is one transaction that a store began and will end. It is used by one goroutine at a time, but for Owns.
type Session[T any] interface {
	// Tx returns the transaction for the caller's use. It is guarded where the type allows it: its Commit and Rollback
	// fail with [waybill.ErrTxOwned].
	Tx() T
	// Owns reports whether tx is this transaction or a savepoint in it. It is safe for concurrent use.
	Owns(tx T) bool
	// Commit ends the transaction. accepted are the events that it has taken so far; with check, the session finds out
	// which of them a rollback to a savepoint took back, even if that costs a statement.
	//
	// An error that wraps [waybill.ErrUncertain] means that nobody knows; any other error means that the transaction
	// was rolled back. Either way the session is over.
	Commit(ctx context.Context, accepted []waybill.ID, check bool) (CommitInfo, error)
	// Rollback ends the transaction without a trace. It is harmless on a session that is over. An error that wraps
	// [waybill.ErrUncertain] means that the transaction was ended by somebody else, who knows which way.
	Rollback(ctx context.Context) error
}

// CommitInfo is what is known about the events of a transaction that committed.
type CommitInfo struct {
	// Undone are accepted events whose rows are not there: a rollback to a savepoint took them back.
	Undone []waybill.ID
	// Checked says that Undone is complete. A session that has seen every statement of its transaction knows without
	// asking; one over a [*sql.Tx], which it cannot see into, knows only what it was told to check.
	Checked bool
}

// Deferrer is what a [Session] also is when it can let events wait for the next round trip of their transaction and
// send them in front of whatever comes next: the caller's next statement, a savepoint, or the commit.
type Deferrer[T any] interface {
	// Defer takes events for the transaction tx, which the session owns. It keeps evs. When the database has taken
	// them it calls accepted with one [AppendResult] per event, before the caller's own statement returns or during Commit.
	Defer(ctx context.Context, tx T, evs []waybill.Event, accepted func([]AppendResult)) error
}

// AppendResult says where an event went.
type AppendResult struct {
	// ID is the event's own id if it was written; else it was absorbed, and this is the id of the pending event that
	// has its dedup key. A [Deferrer] may leave that one zero: it does not ask who it was.
	ID waybill.ID
	// Lane is the lane that it was written to.
	Lane int
}

// Appender writes events into somebody's transaction.
type Appender[T any] interface {
	// Append inserts the events now, in their order, and returns one Placed per event. The events are complete and
	// valid ([waybill.Event.Complete]). All or none: after an error the transaction has none of them and can only be
	// rolled back.
	//
	// It never commits, and refuses a transaction that has ended: [waybill.ErrTxDone].
	Append(ctx context.Context, tx T, evs []waybill.Event) ([]AppendResult, error)
}

// SQLTx is as much of a [*sql.Tx] as libraries that hide theirs still show.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// SQLAppender is an [Appender] for transactions that are only nearly a [*sql.Tx].
type SQLAppender interface {
	AppendSQL(ctx context.Context, tx SQLTx, evs []waybill.Event) ([]AppendResult, error)
}

// Resolver finds out what became of a write.
type Resolver interface {
	// Committed reports whether the event with this id was committed, whatever has become of it since. Where it cannot
	// know, because the transaction may still be open on a connection that was lost, or because the trace of a
	// delivered event may be gone, the error wraps [waybill.ErrUncertain].
	Committed(ctx context.Context, id waybill.ID) (bool, error)
}

// Local is how the writers and relays of one process that use the same tables find each other.
type Local interface {
	// Local returns the hub of the store; always the same one. It is also the identity of "the same database" when
	// transactions join.
	Local() *Hub
}
