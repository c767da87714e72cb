package waybill

import "errors"

// The conditions that callers act on; match them with [errors.Is].
var (
	// ErrNoTx: an event was written without a transaction. Nothing was
	// inserted.
	ErrNoTx = errors.New("waybill: no transaction")
	// ErrTxDone: the caller or the server has already ended the transaction.
	// Nothing was inserted.
	ErrTxDone = errors.New("waybill: the transaction has ended")
	// ErrTxOwned: Commit or Rollback was called on the transaction handle of
	// InTx. InTx ends its own transaction; return an error to roll it back.
	ErrTxOwned = errors.New("waybill: the transaction belongs to InTx")
	// ErrNested: an operation that must commit before it returns was called
	// inside an open transaction.
	ErrNested = errors.New("waybill: already inside a transaction")
	// ErrUncertain: whether a transaction committed is currently unknown.
	ErrUncertain = errors.New("waybill: uncertain whether the transaction committed")
	// ErrInProgress: another process or goroutine is handling the same event or
	// key.
	ErrInProgress = errors.New("waybill: in progress")
	// ErrNotDue: a failed event waits for its next attempt.
	ErrNotDue = errors.New("waybill: not due yet")
	// ErrConflict: an id or key was reused with different content.
	ErrConflict = errors.New("waybill: same key, different content")
	// ErrDead: the event has used up its attempts or can never succeed.
	ErrDead = errors.New("waybill: dead")
	// ErrLeaseLost: the work took longer than its lease, and another owner has
	// taken it over.
	ErrLeaseLost = errors.New("waybill: lease lost")
	// ErrNoHandler: no handler is registered for the event's type. The event
	// becomes a dead letter at once, unless the relay waits for handlers that a
	// rolling deploy may add.
	ErrNoHandler = errors.New("waybill: no handler")
	// ErrSettled is returned by a sink for a delivery that the sink has
	// recorded as done in a transaction of the outbox's database. It means
	// success.
	ErrSettled = errors.New("waybill: settled by the sink")
	// ErrReplayed is returned by a consumer group for a suspect
	// ([Delivery.Suspect]) whose effect was committed earlier. It means
	// success.
	ErrReplayed = errors.New("waybill: applied before")
	// ErrOtherRelay: a relay with another name is running on this outbox; an
	// outbox has one relay.
	ErrOtherRelay = errors.New("waybill: another relay serves this outbox")
	// ErrOtherSink: the outbox is recorded as delivering to another sink. A
	// relay must be configured to take the outbox over.
	ErrOtherSink = errors.New("waybill: the outbox delivers to another sink")
)
