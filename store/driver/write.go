package driver

import (
	"context"
	"database/sql"

	"github.com/waybillhq/waybill"
)

// Outbox is the part of a store that package outbox needs.
type Outbox[T any] interface {
	Beginner[T]
	Appender[T]
	Resolver
	Local
}

// Beginner starts transactions.
type Beginner[T any] interface {
	// Begin starts a transaction. Canceling ctx aborts only the start: the
	// session's own methods end the transaction.
	Begin(ctx context.Context, opts *sql.TxOptions) (Session[T], error)
}

// Session is a transaction that a store began and will end. Only one goroutine
// at a time may use it, except for Owns.
type Session[T any] interface {
	// Tx returns the transaction for the caller's use. Where the type allows
	// it, its Commit and Rollback fail with [waybill.ErrTxOwned].
	Tx() T
	// Owns reports whether tx is this transaction or a savepoint in it. It is
	// safe for concurrent use.
	Owns(tx T) bool
	// Commit ends the transaction. accepted are the events that were written in
	// it; with check, the session determines which of them a rollback to a
	// savepoint removed, even if that costs a statement.
	//
	// An error that wraps [waybill.ErrUncertain] means that the outcome is
	// unknown; any other error means that the transaction was rolled back. In
	// both cases the session is over.
	Commit(ctx context.Context, accepted []waybill.ID, check bool) (CommitInfo, error)
	// Rollback ends the transaction without a trace. It has no effect on a
	// session that is over. An error that wraps [waybill.ErrUncertain] means
	// that the caller had already ended the transaction; whether it committed
	// is unknown.
	Rollback(ctx context.Context) error
}

// CommitInfo describes the events of a committed transaction.
type CommitInfo struct {
	// Undone are accepted events without rows: a rollback to a savepoint
	// removed them.
	Undone []waybill.ID
	// Checked means that Undone is complete. A session that sees every
	// statement of its transaction always knows; a session over a [*sql.Tx],
	// which hides the statements, knows only if it was asked to check.
	Checked bool
}

// Deferrer is implemented by a [Session] that can delay events until the next
// round trip of their transaction and send them before the caller's next
// statement, a savepoint, or the commit.
type Deferrer[T any] interface {
	// Defer accepts events for the transaction tx, which the session owns. It
	// retains evs. After the database has accepted the events, it calls
	// accepted with one [AppendResult] per event, before the caller's own
	// statement returns or during Commit.
	Defer(ctx context.Context, tx T, evs []waybill.Event, accepted func([]AppendResult)) error
}

// AppendResult is the result of a write for one event.
type AppendResult struct {
	// ID is the event's own id if it was written; otherwise the event was
	// absorbed, and ID is the id of the pending event with its dedup key. A
	// [Deferrer] may leave that id zero, because it does not query it.
	ID waybill.ID
	// Lane is the lane of the written event.
	Lane int
}

// Appender writes events in a transaction of the caller.
type Appender[T any] interface {
	// Append inserts the events now, in their order, and returns one
	// AppendResult per event. The events are valid, and the outbox has filled
	// in their defaults. It writes all events or none: after an error the
	// transaction contains none of them and can only be rolled back.
	//
	// It never commits, and rejects a transaction that has ended:
	// [waybill.ErrTxDone].
	Append(ctx context.Context, tx T, evs []waybill.Event) ([]AppendResult, error)
}

// SQLTx is the part of a [*sql.Tx] that libraries with a hidden transaction
// still expose.
type SQLTx interface {
	ExecContext(ctx context.Context, query string, args ...any) (sql.Result, error)
	QueryContext(ctx context.Context, query string, args ...any) (*sql.Rows, error)
	Commit() error
	Rollback() error
}

// SQLAppender is an [Appender] for transactions that only resemble a [*sql.Tx].
type SQLAppender interface {
	AppendSQL(ctx context.Context, tx SQLTx, evs []waybill.Event) ([]AppendResult, error)
}

// Resolver finds the outcome of a write.
type Resolver interface {
	// Committed reports whether the event with this id was committed, in
	// whatever state the event is now. If the answer is unknown, because the
	// transaction may still be open on a lost connection or the trace of a
	// delivered event may be purged, the error wraps [waybill.ErrUncertain].
	Committed(ctx context.Context, id waybill.ID) (bool, error)
}

// Local connects the writers and relays of one process that use the same
// tables.
type Local interface {
	// Local returns the hub of the store, always the same one, never nil. The
	// hub also identifies the database when transactions are joined.
	Local() *Hub
}
