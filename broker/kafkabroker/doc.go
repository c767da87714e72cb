// Package kafkabroker publishes events to Kafka and consumes them from there.
//
//	b, err := kafkabroker.Open(ctx, "kafka://localhost:9092", kafkabroker.Config{})
//	…
//	sink, err := b.Sink(kafkabroker.SinkConfig{})
//	r, err := relay.New(db, sink, relay.Config{})
//
//	source, err := b.Source(kafkabroker.SourceConfig{Group: "billing", Topics: []string{"orders"}})
//	err = source.Run(ctx, group)
//
// # What travels
//
// An event is one record of its topic. The key is the event's RoutingKey, or else its aggregate, so all events of an aggregate are in one partition. The record's
// headers are the CloudEvents attributes ("ce_id", "ce_type", …), the event's own headers ("waybill_name"), "content-type" and "publish_id"; its value is the payload.
//
// # What Kafka promises
//
// A record is confirmed when all replicas that are in sync have it (acks=all). How many those are at least is the topic's min.insync.replicas: with 1, its default, a
// broker that dies can take confirmed records with it; use 2 of 3. The producer is idempotent: what the client has to send twice is there once. Kafka drops
// no other duplicates: that is the inbox's part. There are no Kafka transactions.
//
// # Order
//
// Events of one aggregate are in their partition in the order in which they were written to the outbox: one follows when the one before it is confirmed. This holds
// as long as the number of partitions stays the same, and the RoutingKey of an aggregate does. A partition belongs to one member of a group, so
// order holds for any number of processes.
//
// # Commits
//
// A source commits, for every partition, all before the first record that is not done. A process that dies hands out again what was done behind
// that one. When a partition goes to another member, records in hand are finished and committed first, for up to 40 s.
//
// # What errors mean
//
// | what the broker reports | class | why |
// |---|---|---|
// | MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE | dead | it was sent alone, and will not shrink |
// | INVALID_RECORD, INVALID_TIMESTAMP | dead | it was sent alone, and the topic does not take it as it is |
// | INVALID_TOPIC_EXCEPTION | dead | the name is made from the event |
// | UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID | down (topic) | somebody will make it |
// | TOPIC_AUTHORIZATION_FAILED | down (topic) | the account may not write there, whatever the event |
// | NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND | down (topic) | fewer replicas than min.insync.replicas; they come back |
// | OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED | down (broker) | the producer is of no more use, and is replaced |
// | CLUSTER_AUTHORIZATION_FAILED, SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE | down (broker) | the account is wrong, not the event |
// | any other error that Kafka calls retriable | down (broker) | no leader, no room, too busy: it says that it is for now |
// | not confirmed in time | down (broker) | it may have the message, or not |
// | closed | down (broker) | the client connects again by itself, unless the broker was closed |
// | connection lost, refused or silent | down (broker) | nobody has refused the event |
//
// Anything else is a failed attempt.
package kafkabroker
