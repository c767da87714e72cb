package drivertest

import (
	"context"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// Harness describes a store and how to open it.
type Harness[T any] struct {
	// Name is the name of the store in the log.
	Name string
	// Features are the features of the store. A behavior that needs a missing
	// feature is [Unsupported] in the report.
	Features Features
	// SkipLarge skips the checks that write thousands of rows or tens of
	// megabytes. It is for a second way to connect to a store whose suite runs
	// in full elsewhere.
	SkipLarge bool
	// Open returns a store over fresh, empty, migrated tables. It registers all
	// cleanup with t.Cleanup. This suite calls Open a few times, never
	// concurrently; most tests share one instance, one after another, and the
	// instance of a failed test is not reused. The suites of the relay, the
	// inbox, the keys and the jobs call it once per check, concurrently.
	Open func(t *testing.T) Instance[T]
}

// Features are the features of a store. An enabled feature requires the
// functions of [Instance] that its comment names.
type Features struct {
	// PlainSQL: other producers can insert with plain SQL. Needs
	// Instance.InsertPlain.
	PlainSQL bool
	// SavepointAPI: the driver's transactions have savepoints in their API.
	// Needs Instance.Savepoint. Without it, and with SavepointSQL, the suite
	// creates all savepoints with SQL text.
	SavepointAPI bool
	// SavepointSQL: savepoints can be created with SQL text. Needs
	// Instance.Exec.
	SavepointSQL bool
	// SecondStore: several store values, each with its own hub, can share
	// tables, as several processes do. Needs Instance.Second.
	SecondStore bool
	// LateCommits: two writing transactions can be open concurrently, and an
	// event gets its seq at its write, so that a row may appear below a seq
	// that was already read. Needs ForeignTx.
	LateCommits bool
	// ForeignTx: events can be written into transactions that the store did not
	// begin. Needs Instance.Begin.
	ForeignTx bool
	// StoredHeaders: the stored text of headers can be overwritten. Needs
	// Instance.SetHeaders.
	StoredHeaders bool
	// OneLane: the store has exactly one lane, which cannot be changed.
	OneLane bool
	// OneWriter: only one writing transaction is open at a time; the next one
	// waits for its end.
	OneWriter bool
}

// Instance is one store over its own tables. Optional functions may be nil.
//
// Reads (the store's own methods of [driver.Reader] and [driver.Resolver],
// Count, Pending and Find) must work while a transaction that has written is
// open.
type Instance[T any] struct {
	// DB is the store. The suites of single roles need only these roles.
	DB driver.Roles[T]
	// Second returns another store value over the same tables, with its own
	// hub, like that of another process. Optional; see Features.SecondStore.
	Second func() driver.Roles[T]

	// Insert adds one row to a business table, inside tx, and Count returns the
	// number of committed rows with that note. They are nil for a store without
	// tables; then the suite checks events only.
	Insert func(ctx context.Context, tx T, note string) error
	Count  func(ctx context.Context, note string) (int, error)

	// Begin starts a transaction that is committed outside the store. Optional;
	// see Features.ForeignTx.
	Begin func(ctx context.Context) (Foreign[T], error)

	// Commit and Rollback call the method of that name on the handle of InTx,
	// as faulty code would. If they are nil, the suite uses the methods
	// Commit() error or Commit(context.Context) error.
	Commit   func(ctx context.Context, tx T) error
	Rollback func(ctx context.Context, tx T) error

	// Savepoint runs fn inside a savepoint of tx, with the driver's API: it
	// passes fn the handle to use there, releases the savepoint if fn returns
	// nil, and otherwise rolls back to it and returns fn's error. The
	// transaction can continue in both cases. Optional; see
	// Features.SavepointAPI.
	Savepoint func(ctx context.Context, tx T, fn func(tx T) error) error
	// Exec runs SQL text in tx: SAVEPOINT x, ROLLBACK TO SAVEPOINT x, RELEASE
	// SAVEPOINT x. Optional; see Features.SavepointSQL.
	Exec func(ctx context.Context, tx T, sql string) error

	// InsertPlain inserts one event with plain SQL as documented in
	// docs/sql.md, naming only the columns whose values are not empty, and
	// commits. Optional; see Features.PlainSQL.
	InsertPlain func(ctx context.Context, p Plain) error

	// SetHeaders overwrites the stored text of the headers of a pending row,
	// committed: "" (an empty text, not NULL, where the column can hold it),
	// "null", or garbage. If the column has a JSON type that rejects a text,
	// store the closest value that is not a flat object of strings. Optional;
	// see Features.StoredHeaders.
	SetHeaders func(ctx context.Context, id waybill.ID, text string) error

	// Pending returns all committed rows that are ready or delayed, due or not,
	// in any order. DueAt is zero in a ready row. Mandatory for RunOutbox if
	// the store has no role Relay; otherwise optional: without it the suite
	// sees delayed rows only once they are due.
	Pending func(ctx context.Context) ([]store.Row, error)
	// Lanes is the number of lanes of a store without the role Relay. Defaults
	// to 1.
	Lanes int
	// Find returns an event in any state; no record if the event does not
	// exist. Mandatory for RunRelay if the store has no role OutboxAdmin.
	Find func(ctx context.Context, id waybill.ID) ([]store.Record, error)

	// ExpireNode makes the node's lease expire now, by the database's clock.
	// Optional: without it the suite renews the lease for a millisecond and
	// waits until it has expired.
	ExpireNode func(ctx context.Context, id waybill.ID) error
}

// Foreign is a transaction that the store did not begin. Rollback after Commit
// has no effect: the suite ends every transaction with it.
type Foreign[T any] struct {
	Tx       T
	Commit   func() error
	Rollback func() error
}

// Plain is the insert of a producer in another language. Empty fields are left
// to the column's default: the statement does not name the column.
type Plain struct {
	Type          string
	AggregateType string
	AggregateID   string
	TenantID      string
	Payload       []byte
}
