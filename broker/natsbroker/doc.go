// Package natsbroker publishes events to NATS JetStream and consumes them from
// there.
//
//	b, err := natsbroker.Open(ctx, "nats://localhost:4222", natsbroker.Config{
//		Stream: "orders", Subjects: []string{"orders.>"}, Create: true,
//	})
//	…
//	sink, err := b.Sink(natsbroker.SinkConfig{})
//	r, err := relay.New(db, sink, relay.Config{}) // publish
//
//	source, err := b.Source(natsbroker.SourceConfig{Durable: "billing"})
//	err = source.Run(ctx, group) // consume
//
// # Publishing
//
// The event's Topic is the subject. Messages are CloudEvents in binary mode,
// with the publish id as Nats-Msg-Id. Many messages are in flight at a time,
// and each counts as published when its PubAck arrives. Nothing is buffered
// while the connection is lost: the events wait in the outbox. A subject
// without a stream is unavailable, not dead: the events wait until the stream
// is created.
//
// A PubAck means that the server has the message. The message is on disk only
// if the server has "sync_interval: always", or replicas; package natsembed
// runs a server with the former.
//
// # Consuming
//
// A source is a durable pull consumer with explicit acknowledgment. The server
// confirms acknowledgments. Failed messages are deferred: in memory for a short
// delay, by NakWithDelay for a long one. The message's delivery count is the
// delivery's Attempt. Dead letters go to a separate stream.
//
// Messages of one aggregate are handled in order as long as one process at a
// time runs the source. JetStream distributes the messages of a durable
// consumer over all processes that pull from it, whatever their subjects: to
// share the work and keep the order, give each process separate subjects, with
// {aggregatetype} or a partition number in them. After a crash, the successor
// waits for the messages of the crashed process, for at most AckWait, before it
// takes newer ones; a message that was deferred for longer than that may be
// overtaken.
package natsbroker
