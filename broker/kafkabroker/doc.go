// Package kafkabroker publishes events to Kafka and consumes them from there.
//
//	url := "kafka://localhost:9092"
//	b, err := kafkabroker.Open(ctx, url, kafkabroker.Config{})
//	…
//	sink, err := b.Sink(kafkabroker.SinkConfig{})
//	r, err := relay.New(db, sink, relay.Config{})
//
//	source, err := b.Source(kafkabroker.SourceConfig{
//		Group: "billing", Topics: []string{"orders"},
//	})
//	err = source.Run(ctx, group)
//
// # Messages
//
// An event is one record of its topic. The key is the event's RoutingKey, or
// else its aggregate, so all events of an aggregate are in one partition. The
// record's headers are the CloudEvents attributes ("ce_id", "ce_type", …), the
// event's own headers ("waybill_name"), "content-type" and "publish_id". The
// record's value is the payload.
//
// # Durability
//
// A record is confirmed when all in-sync replicas have it (acks=all). The
// topic's min.insync.replicas sets their minimum number: with 1, its default, a
// broker that dies can lose confirmed records; use 2 of 3. The producer is
// idempotent: a record that the client sends twice is stored once. Kafka drops
// no other duplicates; the inbox does. The package does not use Kafka
// transactions.
//
// # Order
//
// Events of one aggregate are in their partition in the order in which they
// were written to the outbox: each is sent after the previous one is confirmed.
// The order holds as long as the number of partitions and the RoutingKey of the
// aggregate do not change. A partition belongs to one member of a group, so the
// order holds for any number of processes.
//
// # Commits
//
// A source commits, for every partition, the offset of the first record that is
// not done. After a crash, records that were done behind that one are delivered
// again. When a partition goes to another member, records in flight are
// finished and committed first, for up to 40 s.
//
// # Errors
//
// | broker error | class | reason |
// |---|---|---|
// | MESSAGE_TOO_LARGE, RECORD_LIST_TOO_LARGE | permanent | it was sent alone; its size does not change |
// | INVALID_RECORD, INVALID_TIMESTAMP | permanent | it was sent alone; the topic does not accept it |
// | INVALID_TOPIC_EXCEPTION | permanent | the name comes from the event |
// | UNKNOWN_TOPIC_OR_PARTITION, UNKNOWN_TOPIC_ID | unavailable (topic) | the topic has yet to be created |
// | TOPIC_AUTHORIZATION_FAILED | unavailable (topic) | the account has no write access |
// | NOT_ENOUGH_REPLICAS, NOT_ENOUGH_REPLICAS_AFTER_APPEND | unavailable (topic) | fewer in-sync replicas than min.insync.replicas; temporary |
// | OUT_OF_ORDER_SEQUENCE_NUMBER, UNKNOWN_PRODUCER_ID, INVALID_PRODUCER_EPOCH, INVALID_PRODUCER_ID_MAPPING, PRODUCER_FENCED | unavailable (broker) | the producer is unusable and is replaced |
// | CLUSTER_AUTHORIZATION_FAILED, SASL_AUTHENTICATION_FAILED, UNSUPPORTED_SASL_MECHANISM, ILLEGAL_SASL_STATE | unavailable (broker) | the account is at fault, not the event |
// | any other error that Kafka calls retriable | unavailable (broker) | no leader, no room, too busy: temporary, according to Kafka |
// | not confirmed in time | unavailable (broker) | the broker may or may not have the message |
// | closed | unavailable (broker) | the client reconnects by itself, unless the broker was closed |
// | connection lost, refused or silent | unavailable (broker) | the event was not rejected |
//
// Any other error is a failed attempt.
package kafkabroker
