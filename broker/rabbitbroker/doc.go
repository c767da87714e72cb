// Package rabbitbroker publishes events to RabbitMQ (AMQP 0-9-1) and consumes them from there.
//
//	b, err := rabbitbroker.Open(ctx, "amqp://guest:guest@localhost:5672/", rabbitbroker.Config{})
//	…
//	sink, err := b.Sink(rabbitbroker.SinkConfig{Declare: true})
//	r, err := relay.New(db, sink, relay.Config{})
//
//	source, err := b.Source(rabbitbroker.SourceConfig{Queue: "billing", Bind: []rabbitbroker.Binding{{Exchange: "orders", Key: "#"}}})
//	err = source.Run(ctx, group)
//
// # What travels
//
// An event is one persistent message. Its topic is the exchange and its RoutingKey the routing key, or its type where it has none
// ([SinkConfig.ToQueues]: the topic is a queue). The message-id is the publish id: the event's, or one of its own for a deliberate replay. The headers are the
// CloudEvents attributes in AMQP's binding ("cloudEvents:id", …) and the event's own headers ("waybill:name"); content-type, type and timestamp
// are properties.
//
// # Confirmed
//
// An event is delivered when the broker has confirmed it, and not before. Messages are mandatory: one that no queue gets is returned, and is not delivered.
// While the broker has blocked the connection (it is short of memory or disk), nothing is sent. A broker that is silent for too long is disconnected from.
//
// # Order
//
// Events of one aggregate are published one after another, each after the one before it was confirmed. A queue keeps the order; several
// consumers of one queue do not, unless one is active at a time, which is how a queue is declared here ([SourceConfig.Shared] says otherwise).
//
// # What errors mean
//
// | what the broker reports | class | why |
// |---|---|---|
// | returned: no queue is bound (312 NO_ROUTE) | down (topic) | somebody has yet to bind one; losing it is not the answer |
// | nack | down (topic) | a queue is full, or the broker could not take it |
// | 404 NOT_FOUND, 403 ACCESS_REFUSED, 405 RESOURCE_LOCKED, 406 PRECONDITION_FAILED | down (topic) | the exchange is not there, or not as it should be, or not for this account |
// | connection.blocked | down (broker) | short of memory or disk |
// | 311 CONTENT_TOO_LARGE, frame larger than permitted | dead | larger than max_message_size |
// | any other exception | down (broker) | the connection or channel is closed; nobody has refused the event |
// | connection lost, refused or silent | down (broker) | nobody has refused the event |
package rabbitbroker
