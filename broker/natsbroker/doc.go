// Package natsbroker publishes to NATS JetStream, and consumes from it.
//
//	b, err := natsbroker.Open(ctx, "nats://localhost:4222", natsbroker.Config{Stream: "orders", Subjects: []string{"orders.>"}, Create: true})
//	…
//	sink, err := b.Sink()
//	r, err := relay.New(db, sink, relay.Config{})                                  // publish
//	src, err := b.Source(natsbroker.SourceConfig{Name: "billing"})
//	err = src.Run(ctx, group)                                                      // consume
//
// # Publishing
//
// The event's Topic is the subject. Messages are CloudEvents in binary mode, with the publish id as Nats-Msg-Id. Many are under way at a time, and each
// counts as published when its PubAck is there. While the connection is lost nothing is buffered: events wait in the outbox, where they are safe.
// A subject that no stream listens to is down, not dead: a stream is made by somebody, and the events can wait for it.
//
// A PubAck means that the server has the message. That it is on the disk takes a server with "sync_interval: always", or replicas; package natsembed
// runs the former.
//
// # Consuming
//
// A source is a durable pull consumer with explicit acknowledgement. Acks are confirmed by the server. What fails is put off: for a short delay in memory, for
// a long one by NakWithDelay. The message's delivery count is the delivery's Attempt. Dead letters go to a stream of their own.
//
// Messages of one aggregate are handled in order as long as one process at a time runs the source. JetStream spreads the messages of a durable consumer over all who
// pull from it, whatever their subject: to share the work and keep the order, give each process subjects of its own, with {aggregatetype} or a
// partition number in them. When a process ends without saying so, its successor waits for what it had, for at most AckWait, before it takes anything newer; a
// message that was put off for longer than that may be overtaken.
package natsbroker
