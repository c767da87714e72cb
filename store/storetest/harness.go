package storetest

import (
	"context"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
)

// DB is a store under test: the write side, the relay side, the operator's, and the consumer's.
type DB[T any] interface {
	store.Outbox[T]
	store.Finisher[T]
	store.Relay
	store.Operator
	store.Inbox[T]
	store.Keys[T]
	store.Jobs[T]
	store.HistoryAudit
	store.SinkGuard
}

// Harness is a kind of store, and how a test gets hold of one.
type Harness[T any] struct {
	// Name is the store's column in the matrix: "memstore", "sqlitestore", "mysqlstore" (on MySQL),
	// "mysqlstore/mariadb", "pgstore", "pgstore/sql", or a name of your own.
	Name string
	// Features is what the store can show. A behaviour that needs a feature which is off is a "no" in the matrix.
	Features Features
	// SkipLarge leaves out the checks that write thousands of rows or tens of megabytes. It is for a
	// second way to connect to a store whose suite runs in full elsewhere.
	SkipLarge bool
	// Open returns a store over fresh, empty, migrated tables. It registers with t.Cleanup whatever must be closed or
	// dropped. The suite calls it a handful of times, never concurrently; most tests share one instance, one after
	// another, and a test that failed leaves its instance to nobody.
	Open func(t *testing.T) Instance[T]
}

// Features is what a store can show. A feature that is on makes the functions of [Instance] that are named with it
// required.
type Features struct {
	// PlainSQL: other producers can insert with plain SQL. Needs Instance.InsertPlain.
	PlainSQL bool
	// SavepointAPI: the driver's transactions have savepoints in their API. Needs Instance.Savepoint. Without it, and
	// with SavepointSQL, the suite's savepoints are all made with SQL text.
	SavepointAPI bool
	// SavepointSQL: savepoints can be made with SQL text. Needs Instance.Exec.
	SavepointSQL bool
	// SecondStore: several store values, each with a hub of its own, can share tables, as several processes do. Needs
	// Instance.Second.
	SecondStore bool
	// LateCommits: two transactions that write can be open at the same time, and an event has its seq from the moment it
	// is written, so that a row may appear below a seq that was already read. Needs ForeignTx.
	LateCommits bool
	// ForeignTx: events can be written into transactions that the store did not begin. Needs Instance.Begin.
	ForeignTx bool
	// StoredHeaders: the stored text of headers can be overwritten. Needs Instance.SetHeaders.
	StoredHeaders bool
	// OneLane: the store has one lane, and can have no other number of them.
	OneLane bool
	// OneWriter: one transaction that writes is open at a time; whoever begins another waits for its end.
	OneWriter bool
}

// Instance is one store over tables of its own. A function that is optional may be nil.
//
// Reads, that is, the store's own methods of [store.Reader] and [store.Resolver], and Count, must work while a transaction
// is open that has written.
type Instance[T any] struct {
	// DB is the store.
	DB DB[T]
	// Second returns another store value over the same tables, as another process would have it: with its own hub.
	// Optional; see Features.SecondStore.
	Second func() DB[T]

	// Insert puts one row into a business table, inside tx, and Count returns how many committed rows with that note
	// there are. They are nil for a store that has no tables; then only events are looked at.
	Insert func(ctx context.Context, tx T, note string) error
	Count  func(ctx context.Context, note string) (int, error)

	// Begin starts a transaction that somebody else commits, not through the store. Optional; see Features.ForeignTx.
	Begin func(ctx context.Context) (Foreign[T], error)

	// Commit and Rollback call the method of that name on a handle that InTx gave out, as careless code would. When they
	// are nil the suite finds the methods Commit() error or Commit(context.Context) error by itself.
	Commit   func(ctx context.Context, tx T) error
	Rollback func(ctx context.Context, tx T) error

	// Savepoint runs fn inside a savepoint of tx, by the driver's API: it hands fn the handle to use there, releases the
	// savepoint if fn returns nil, and otherwise rolls back to it and returns fn's error. The transaction can go on either
	// way. Optional; see Features.SavepointAPI.
	Savepoint func(ctx context.Context, tx T, fn func(tx T) error) error
	// Exec runs SQL text in tx: SAVEPOINT x, ROLLBACK TO SAVEPOINT x, RELEASE SAVEPOINT x. Optional; see
	// Features.SavepointSQL.
	Exec func(ctx context.Context, tx T, sql string) error

	// InsertPlain inserts one event with plain SQL as docs/sql.md shows it, naming only the columns whose values are
	// not empty, and commits. Optional; see Features.PlainSQL.
	InsertPlain func(ctx context.Context, p Plain) error

	// SetHeaders overwrites the stored text of the headers of a pending row, committed: "" (an empty text, not NULL,
	// where the column can hold it), "null", or garbage. Where the column is of a JSON type that refuses a text, store
	// what comes closest that is not a flat object of strings. Optional; see Features.StoredHeaders.
	SetHeaders func(ctx context.Context, id waybill.ID, text string) error

	// Pending returns all rows that are ready or put off, due or not. Optional: without it the suite sees rows that are
	// put off only once they are due.
	Pending func(ctx context.Context) ([]store.Row, error)

	// ExpireNode makes the node's lease end now, by the database's clock. Optional: without it the suite renews the lease
	// for a millisecond and waits until it is over.
	ExpireNode func(ctx context.Context, id waybill.ID) error
}

// Foreign is a transaction that the store did not begin. Rollback after Commit is harmless: the suite ends every one with
// it.
type Foreign[T any] struct {
	Tx       T
	Commit   func() error
	Rollback func() error
}

// Plain is what a producer in another language inserts. What is empty is left to the column's default, which means that
// its column is not named in the statement.
type Plain struct {
	Type          string
	AggregateType string
	AggregateID   string
	TenantID      string
	Payload       []byte
}
