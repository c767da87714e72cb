// Package pulsarbroker publishes events to Apache Pulsar and consumes them from
// there.
//
//	url := "pulsar://localhost:6650"
//	b, err := pulsarbroker.Open(ctx, url, pulsarbroker.Config{})
//	…
//	sink, err := b.Sink(pulsarbroker.SinkConfig{
//		Subscriptions: []string{"billing"},
//	})
//	r, err := relay.New(db, sink, relay.Config{})
//
//	source, err := b.Source(pulsarbroker.SourceConfig{
//		Subscription: "billing", Topics: []string{"orders"},
//	})
//	err = source.Run(ctx, group)
//
// # Messages
//
// An event is one message. The key is the event's RoutingKey, or its aggregate.
// The properties are the CloudEvents attributes ("ce_id", …), the event's own
// headers ("waybill_name"), "content-type" and "publish_id". The event time is
// OccurredAt.
//
// # Confirmation
//
// An event is delivered when the broker has sent a receipt with the message id.
// A receipt without a message id (−1:−1) does not count: a broker with
// deduplication sends it also for a message that it failed to store. A producer
// that does not answer is closed, because the client would resend its messages
// later, when the relay no longer expects them.
//
// Pulsar keeps a message only for existing subscriptions of its topic, or for
// the topic's retention time. A topic with neither accepts events, confirms
// them and discards them: see [SinkConfig.Subscriptions].
//
// # Order
//
// Events of one aggregate are published one after another, each after the
// previous one is confirmed, with a key that keeps them in one partition. A
// subscription of type Failover assigns each partition to one consumer; one of
// type Key_Shared assigns each key to one consumer.
//
// # Errors
//
// | broker error | class | reason |
// |---|---|---|
// | larger than MaxMessageSize | permanent | its size does not change |
// | InvalidTopicName | permanent | it comes from the event |
// | receipt without a message id (-1:-1) | defer | the broker treats it as a duplicate of a message that it may never have stored |
// | TopicNotFound | unavailable (topic) | the topic has yet to be created |
// | TopicTerminated | unavailable (topic) | an operator has terminated it and must decide where its events go |
// | ProducerBlockedQuotaExceeded | unavailable (topic) | the backlog is full: the consumers do not keep up |
// | AuthorizationError, NotAllowedError | unavailable (topic) | the account has no access, or a policy forbids it |
// | IncompatibleSchema | unavailable (topic) | the topic requires a schema |
// | ProducerClosed, ProducerFenced, ProducerBusy | unavailable (topic) | a new producer is created |
// | ProducerQueueIsFull, ClientMemoryBufferIsFull | defer | other messages are in flight |
// | any other error of the server | unavailable (broker) | not ready, too many requests, no metadata, no storage: temporary |
// | connection lost, refused or silent | unavailable (broker) | the event was not rejected |
package pulsarbroker
