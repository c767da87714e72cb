package waybill

import "errors"

// The conditions that callers act on, one variable each; match them with [errors.Is].
var (
	// ErrNoTx: an event was written where no transaction is at hand. Nothing was inserted.
	ErrNoTx = errors.New("waybill: no transaction")
	// ErrTxDone: the transaction that was handed in has already ended, or was ended by the server. Nothing was inserted.
	ErrTxDone = errors.New("waybill: the transaction has ended")
	// ErrTxOwned: Commit or Rollback was called on the handle that InTx gave out. InTx ends its own transaction;
	// return an error to roll it back.
	ErrTxOwned = errors.New("waybill: the transaction belongs to InTx")
	// ErrNested: an operation whose success must mean "committed" was called inside a transaction that is still open.
	ErrNested = errors.New("waybill: not inside another transaction")
	// ErrUncertain: it cannot be known, now, whether a transaction committed.
	ErrUncertain = errors.New("waybill: it is uncertain whether the transaction committed")
	// ErrInProgress: somebody else is at work on the same event or key.
	ErrInProgress = errors.New("waybill: in progress")
	// ErrNotDue: a failed event waits for its next attempt.
	ErrNotDue = errors.New("waybill: not due yet")
	// ErrConflict: the same id or key came with another content.
	ErrConflict = errors.New("waybill: same key, other content")
	// ErrDead: the event has used up its attempts, or can never succeed.
	ErrDead = errors.New("waybill: dead")
	// ErrLeaseLost: the work took longer than its lease, and somebody else has taken it over.
	ErrLeaseLost = errors.New("waybill: lease lost")
	// ErrNoHandler: nothing is registered for an event of this type. It is dead at once, unless the relay waits for
	// handlers that a rolling deploy may bring.
	ErrNoHandler = errors.New("waybill: no handler")
	// ErrSettled is what a sink returns for a delivery that it has itself recorded as done, in a transaction of the
	// outbox's database. It means success.
	ErrSettled = errors.New("waybill: settled by the sink")
	// ErrReplayed is what a consumer group returns for a suspect ([Delivery.Suspect]) whose effect
	// was committed earlier. It means success.
	ErrReplayed = errors.New("waybill: applied before")
	// ErrOtherRelay: a relay of another name is at work on this outbox; one outbox has one relay.
	ErrOtherRelay = errors.New("waybill: another relay serves this outbox")
	// ErrOtherSink: the outbox remembers that its events go elsewhere. A relay must be told to take
	// the outbox over.
	ErrOtherSink = errors.New("waybill: the events of this outbox go elsewhere")
)
