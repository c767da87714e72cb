// Package waybill is a transactional outbox, inbox and idempotency keys for Go.
//
// A service that changes its database and then publishes a message performs a
// dual write: a crash between the two steps loses the message, or publishes one
// whose change was rolled back. Waybill writes the message, an [Event], in the
// caller's own database transaction (package outbox), so that the event exists
// if and only if that transaction commits. A relay then delivers the event at
// least once and in order per aggregate, and an inbox on the consumer's side
// applies it once.
//
// This package defines the types that all other packages share and does no I/O:
// the [Event] and its [ID], typed definitions ([Define]), the [Delivery] that a
// sink receives, the [Origin] of an event, the [Log] of an aggregate's events,
// the classes of delivery errors ([Classify]) and the errors that callers match
// with [errors.Is].
package waybill
