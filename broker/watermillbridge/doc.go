// Package watermillbridge joins Waybill and Watermill: any message.Publisher is a sink for the
// relay, any message.Subscriber a source for the inbox, the outbox is a message.Publisher, and any
// source a message.Subscriber. So brokers that Watermill knows and Waybill does not (SNS and SQS,
// Google Pub/Sub and others) work with the outbox's promises on this side of them; and handlers
// that were written for Watermill's router work with the brokers that Waybill knows.
//
//	sink, err := watermillbridge.NewSink(publisher, watermillbridge.SinkConfig{})
//	r, err := relay.New(db, sink, relay.Config{})
//
//	pub, err := watermillbridge.NewPublisher(box, watermillbridge.PublisherConfig{}) // writes into the transaction of the message's context
//
// # What travels
//
// The message's UUID is the publish id: the event's, or one of its own for a deliberate replay. Its metadata are CloudEvents attributes
// ("ce_id", "ce_type", …) and the event's own headers ("waybill_name"), as on Kafka.
//
// A message that was published through [Publisher] comes out of [Sink] and [Subscriber] with its
// own UUID and metadata, beside the attributes; a deliberate replay has a UUID of its own
// ("UUID-r1"). An attribute whose name the metadata of such a message take
// ("ce_type") is in "_waybill_ce_type" then, where [Source] and [EventOf] find
// it. "ce_id" and "ce_specversion" are always the attributes: the message's own
// are in "waybill_ce_id" and "waybill_ce_specversion". Metadata must not begin
// with "_waybill_".
//
// A handler may copy the metadata of a message that it consumed to a message
// that it makes. That is a new event, because it has another UUID; see
// [EventOf].
//
// # What errors mean
//
// Watermill's Publish takes no context, and its errors have no classes. What says that the other side was not reached is
// [waybill.Unavailable]; anything else is a failed attempt, unless [SinkConfig.Classify] knows better. A publisher that answers before
// its broker has confirmed (Watermill calls that asynchronous) loses events, here as anywhere: configure it to wait.
package watermillbridge
