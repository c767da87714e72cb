// Package waybill makes "change the database and tell the world" one act.
//
// A service that changes its database and then sends a message does two things, and a crash between them loses
// the message or sends one that never happened. Waybill writes the message, an [Event], into the caller's own
// database transaction (package outbox), so that it exists if and only if that transaction committed; a relay
// delivers it afterwards, at least once and in order per aggregate; and an inbox at the other end applies it once.
//
// This package holds the words that all the others share and does no I/O: the [Event] and its [ID], typed
// definitions ([Define]), what a receiver is handed ([Delivery]), where an event came from ([Origin]), events
// raised by aggregates ([Log]), the classes of delivery errors ([Classify]) and the conditions that callers match
// with [errors.Is].
package waybill
