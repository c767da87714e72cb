// Package rabbitbroker publishes events to RabbitMQ (AMQP 0-9-1) and consumes
// them from there.
//
//	url := "amqp://guest:guest@localhost:5672/"
//	b, err := rabbitbroker.Open(ctx, url, rabbitbroker.Config{})
//	…
//	sink, err := b.Sink(rabbitbroker.SinkConfig{Create: true})
//	r, err := relay.New(db, sink, relay.Config{})
//
//	source, err := b.Source(rabbitbroker.SourceConfig{
//		Queue: "billing",
//		Bind:  []rabbitbroker.Binding{{Exchange: "orders", Key: "#"}},
//	})
//	err = source.Run(ctx, group)
//
// # Messages
//
// An event is one persistent message. Its topic is the exchange, and its
// RoutingKey, or else its type, is the routing key. With [SinkConfig.ToQueues]
// the topic is a queue. The message-id is the publish id: the event's id, or a
// another id for each replay. The headers are the CloudEvents attributes in the
// AMQP binding ("cloudEvents:id", …) and the event's own headers
// ("waybill:name"); content-type, type and timestamp are properties.
//
// # Confirmation
//
// An event is delivered only when the broker has confirmed it. Messages are
// mandatory: a message that reaches no queue is returned, and is not delivered.
// While the broker blocks the connection, because it is short of memory or
// disk, nothing is sent. The sink disconnects from a broker that is silent for
// too long.
//
// # Order
//
// Events of one aggregate are published one after another, each after the
// previous one is confirmed. A queue keeps the order. Several consumers of one
// queue do not, unless only one is active at a time, which is how this package
// declares queues (except with [SourceConfig.Shared]).
//
// # Errors
//
// | broker error | class | reason |
// |---|---|---|
// | returned: no queue is bound (312 NO_ROUTE) | unavailable (topic) | a queue has yet to be bound; the event must not be lost |
// | nack | unavailable (topic) | a queue is full, or the broker could not store the message |
// | 404 NOT_FOUND, 403 ACCESS_REFUSED, 405 RESOURCE_LOCKED, 406 PRECONDITION_FAILED | unavailable (topic) | the exchange is missing, differs from its declaration, or denies access to the account |
// | connection.blocked | unavailable (broker) | the broker is short of memory or disk |
// | 311 CONTENT_TOO_LARGE, frame larger than permitted | permanent | larger than max_message_size |
// | any other exception | unavailable (broker) | the connection or channel is closed; the event was not rejected |
// | connection lost, refused or silent | unavailable (broker) | the event was not rejected |
package rabbitbroker
