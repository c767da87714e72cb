// Package relay delivers what was committed to an outbox: every event at least once, the events of one aggregate one after
// another in the order they were written, quickly, by any number of nodes.
//
//	r, err := relay.New(db, sink, relay.Config{})
//	…
//	err = r.Run(ctx) // until ctx ends; then it finishes what it has in hand
//
// # Ownership
//
// An outbox is divided into lanes; an aggregate's events are all in one. A lane has one owner at a time: nodes renew a lease
// with heartbeats, take a fair share of the lanes, hand them over in good order, and take over those of nodes that died. The
// owner reads its lanes with plain queries, so an event costs one insert, in the transaction that wrote it, and one delete,
// batched. Every settlement checks, under a lock, that the lane is still owned: an owner that was paused can repeat
// a delivery, never overwrite what its successor has recorded.
//
// # Order
//
// Deliveries of one aggregate never overlap. One that fails is put off and holds back its own aggregate, and nothing else. When
// its attempts are used up it becomes a dead letter, and the aggregate goes on, or waits for an operator ([Block]).
//
// # What results mean
//
// A sink's error is classified by [waybill.Classify]: an ordinary error is tried again after a backoff, [waybill.Permanent] is
// dead at once, [waybill.Later] spends no attempt. [waybill.Unavailable] says that the destination is down: nothing is held
// against the events, and the destination is probed until it is back. So an outage never turns good events into dead letters.
//
// # After a crash
//
// What a node had in hand when it died is delivered again by the next owner. In case one of those events is what it died of, they
// go one at a time, and each attempt is counted before it is made: an event that kills its process ends as a dead letter.
//
// # Hot and cold
//
// Writers of the same process tell the relay of their commits, in memory: such events are delivered at once. Everything else, and
// whatever that path has no room for, is found by reading the tables, which is always enough. While thousands of events a second
// come they are all read: a word about each would cost the writers more than it saves.
package relay
