// Package relay delivers the events that were committed to an outbox. Every
// event is delivered at least once. The events of one aggregate are delivered
// one after another, in the order in which they were written. Any number of
// nodes can share the work.
//
//	r, err := relay.New(db, sink, relay.Config{})
//	…
//	err = r.Run(ctx) // until ctx ends; then it drains
//
// # Ownership
//
// An outbox is divided into lanes; all events of an aggregate are in one lane.
// A lane has one owner at a time: nodes renew a lease with heartbeats, take a
// fair share of the lanes, hand lanes over in good order, and take over the
// lanes of crashed nodes. The owner reads its lanes with plain queries, so an
// event costs one insert, in the transaction that wrote it, and one delete,
// batched. Every settlement checks, under a lock, that the relay still owns the
// lane: an owner that was paused can repeat a delivery, but never overwrite
// what its successor has recorded.
//
// # Order
//
// Deliveries of one aggregate never overlap. A failed event is deferred and
// holds back its own aggregate, and nothing else. When its attempts are used
// up, the event becomes a dead letter, and the aggregate either continues or
// waits for an operator ([Block]).
//
// # Results
//
// The relay classifies a sink's error with [waybill.Classify]. An ordinary
// error is retried after a backoff, [waybill.Permanent] makes the event a dead
// letter at once, and [waybill.Later] defers the event without spending an
// attempt. [waybill.Unavailable] reports that the destination is unavailable:
// the relay spends no attempt of any event, and probes the destination until it
// is available again. An outage therefore never turns good events into dead
// letters.
//
// # After a crash
//
// Events that were in flight on a node when it crashed are delivered again by
// the next owner. One of these events may have caused the crash, so they are
// suspects: they are delivered in groups that grow from one event, and each
// attempt is counted before it is made. Events of a group that crashed are
// delivered alone. An event that kills its process therefore ends as a dead
// letter, and its neighbors do not.
//
// # Hot and cold path
//
// On the hot path, writers of the same process notify the relay of their
// commits in memory, and the relay delivers these events at once. On the cold
// path, the relay finds events by reading the tables; that finds every event,
// including those that the hot path has no room for. At rates of thousands of
// events per second the relay only reads the tables: a notification per event
// would cost the writers more than it saves.
package relay
