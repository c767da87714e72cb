// Package broker is what all message brokers have in common: the form in which an event travels, the names of topics, and how a
// source runs a consumer. The brokers themselves are packages below this one; each is a sink for the relay and a source for the inbox.
//
//	b, err := natsbroker.Open(ctx, url, natsbroker.Config{Stream: "orders"})
//	…
//	r, err := relay.New(db, b.Sink(), relay.Config{})      // publish
//	err = b.Source("billing").Run(ctx, group)              // consume
//
// # What travels
//
// A [Codec] writes an event as a CloudEvents 1.0 message in binary mode, in the binding of each protocol, with Waybill's own fields as
// extension attributes, so that a consumer in any language can read them. It reads what it has written, and what other CloudEvents
// producers have. See [Codec] for the attributes.
//
// # One id
//
// The event's id is the same in the outbox, in the message and in the consumer's inbox. What brokers compare to drop duplicates is
// [Message.PublishID]: the event id, except for a deliberate replay, which has one of its own, so that it is not swallowed.
//
// # Sources
//
// A [Source] hands messages to a [Consumer] and acknowledges one when its result says that it is done: for an inbox group that is after
// the commit. A [Receiver] does that for every broker; see there what results mean. Messages of one aggregate are handled one after another.
package broker
