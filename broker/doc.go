// Package broker holds the parts that all message brokers share: the form of a
// message, topic names, and the loop that feeds a consumer from a source. The
// brokers are packages below this one. Each broker is a sink for the relay and
// a source for the inbox.
//
//	b, err := natsbroker.Open(ctx, url, natsbroker.Config{Stream: "orders"})
//	…
//	sink, err := b.Sink(natsbroker.SinkConfig{})
//	…
//	r, err := relay.New(db, sink, relay.Config{}) // publish
//	…
//	source, err := b.Source(natsbroker.SourceConfig{Durable: "billing"})
//	…
//	err = source.Run(ctx, group) // consume
//
// # Messages
//
// A [Codec] encodes an event as a CloudEvents 1.0 message in binary mode, in
// the binding of each protocol, with Waybill's own fields as extension
// attributes, so that a consumer in any language can read them. A codec decodes
// its own messages and those of other CloudEvents producers. See [Codec] for
// the attributes.
//
// # Ids
//
// The event's id is the same in the outbox, in the message and in the
// consumer's inbox. Brokers deduplicate by [Message.PublishID]: the event id,
// except that every replay has another publish id, so that the broker does not
// drop the replay as a duplicate.
//
// # Sources
//
// A [Source] hands messages to a [waybill.Sink] and acknowledges a message when
// its result is done; an inbox group returns that result after its commit. A
// message with a temporary failure is deferred, and blocks later messages of
// its aggregate. A message with a permanent failure, or that cannot be decoded,
// is moved to the dead-letter destination. Messages of one aggregate are
// handled one after another.
//
// Package driver, below this one, is for authors of brokers, and package
// drivertest has their conformance suite.
package broker
