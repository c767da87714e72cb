// Package watermillbridge connects Waybill and Watermill: any message.Publisher
// is a sink for the relay, any message.Subscriber is a source for the inbox,
// the outbox is a message.Publisher, and any source is a message.Subscriber.
// Brokers that Watermill supports and Waybill does not (SNS and SQS, Google
// Pub/Sub and others) thus get the guarantees of the outbox on the publishing
// side, and handlers for Watermill's router work with the brokers of Waybill.
//
//	sink, err := watermillbridge.NewSink(publisher, watermillbridge.SinkConfig{})
//	r, err := relay.New(db, sink, relay.Config{})
//
//	// pub writes into the transaction of the message's context.
//	cfg := watermillbridge.PublisherConfig{}
//	pub, err := watermillbridge.NewPublisher(box, cfg)
//
// # Messages
//
// The message's UUID is the publish id: the event's id, or another id for each
// replay. The metadata are CloudEvents attributes ("ce_id", "ce_type", …) and
// the event's own headers ("waybill_name"), as on Kafka.
//
// A message that was published through [Publisher] leaves [Sink] and
// [Subscriber] with its own UUID and metadata, in addition to the attributes; a
// replay has another UUID ("UUID-r1"). If the metadata of such a message use
// the name of an attribute ("ce_type"), the attribute moves to
// "_waybill_ce_type", where [Source] and [EventOf] find it. "ce_id" and
// "ce_specversion" are always the attributes: the message's own are in
// "waybill_ce_id" and "waybill_ce_specversion". Names of metadata must not
// begin with "_waybill_".
//
// A handler may copy the metadata of a consumed message to a message that it
// creates. The result is a new event, because its UUID differs; see [EventOf].
//
// # Errors
//
// Watermill's Publish takes no context, and its errors have no classes.
// Connection errors become [waybill.Unavailable]; any other error is a failed
// attempt, unless [SinkConfig.Classify] gives it another class. A publisher
// that returns before its broker has confirmed (asynchronous, in Watermill's
// terms) loses events: configure the publisher to wait.
package watermillbridge
