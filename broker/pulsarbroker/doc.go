// Package pulsarbroker publishes events to Apache Pulsar and consumes them from there.
//
//	b, err := pulsarbroker.Open(ctx, "pulsar://localhost:6650", pulsarbroker.Config{})
//	…
//	sink, err := b.Sink(pulsarbroker.SinkConfig{Subscriptions: []string{"billing"}})
//	r, err := relay.New(db, sink, relay.Config{})
//
//	source, err := b.Source(pulsarbroker.SourceConfig{Subscription: "billing", Topics: []string{"orders"}})
//	err = source.Run(ctx, group)
//
// # What travels
//
// An event is one message. Its key is the event's RoutingKey, or its aggregate; its properties are the CloudEvents attributes ("ce_id", …), the
// event's own headers ("waybill_name"), "content-type" and "publish_id"; its event time is OccurredAt.
//
// # Confirmed
//
// An event is delivered when the broker has sent a receipt that says where the message is. A receipt that names no message (−1:−1) is none: a broker that drops
// duplicates sends it also for what it has failed to store. A producer that does not answer is closed, because the client would send later what nobody waits for.
//
// Pulsar keeps a message for the subscriptions that a topic has, or for as long as its retention policy says, and nothing else. A topic without either takes
// events, confirms them and forgets them: see [SinkConfig.Subscriptions].
//
// # Order
//
// Events of one aggregate are published one after another, each after the one before it was confirmed, by a key that keeps them in one partition. A subscription
// of type Failover hands each partition to one consumer, one of type Key_Shared each key.
//
// # What errors mean
//
// | what the broker reports | class | why |
// |---|---|---|
// | larger than MaxMessageSize | dead | it will not shrink |
// | InvalidTopicName | dead | it is made from the event |
// | receipt without a message id (-1:-1) | uncounted | the broker took it for a duplicate of what it may never have stored |
// | TopicNotFound | down (topic) | somebody will make it |
// | TopicTerminated | down (topic) | an operator has ended it, and will say where its events go |
// | ProducerBlockedQuotaExceeded | down (topic) | the backlog is full: its consumers do not keep up |
// | AuthorizationError, NotAllowedError | down (topic) | not for this account, or against a policy |
// | IncompatibleSchema | down (topic) | the topic demands a schema |
// | ProducerClosed, ProducerFenced, ProducerBusy | down (topic) | another one is made |
// | ProducerQueueIsFull, ClientMemoryBufferIsFull | uncounted | others are under way |
// | any other error of the server | down (broker) | not ready, too many requests, no metadata, no storage: for now |
// | connection lost, refused or silent | down (broker) | nobody has refused the event |
package pulsarbroker
