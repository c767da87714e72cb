// Package redisbroker publishes events to Redis Streams and consumes them from there.
//
//	b, err := redisbroker.Open(ctx, "redis://localhost:6379/0", redisbroker.Config{})
//	…
//	sink, err := b.Sink(redisbroker.SinkConfig{})
//	r, err := relay.New(db, sink, relay.Config{})
//
//	source, err := b.Source(redisbroker.SourceConfig{Group: "billing", Streams: []string{"orders"}})
//	err = source.Run(ctx, group)
//
// # What travels
//
// An event is one entry of the stream that its topic names. The entry's fields are the CloudEvents attributes ("ce_id", "ce_type", …), the event's
// own headers ("waybill_name"), "content-type", "publish_id", and the payload in "data". The entries of a batch travel in one pipeline, and each is confirmed
// by Redis's answer, its id.
//
// # What Redis promises
//
// An entry that was confirmed is in memory. Whether it survives a crash is a matter of Redis's own configuration: appendonly yes, with appendfsync
// always for what must not be lost, and maxmemory-policy noeviction. This package never trims a stream; see [SourceConfig.DeleteAcked]
// for streams that have one group. Redis drops no duplicates: that is the inbox's part.
//
// # Order
//
// Entries of one aggregate are in the stream in the order in which they were written to the outbox, and one consumer handles them one after another. Several
// consumers of one group share a stream entry by entry, so two of them may be at the same aggregate: where order matters, run one consumer
// per stream, and several streams.
//
// # What errors mean
//
// | what the broker reports | class | why |
// |---|---|---|
// | OOM, MISCONF, LOADING, MASTERDOWN, READONLY, CLUSTERDOWN, TRYAGAIN, NOREPLICAS, BUSY, UNKILLABLE, max number of clients | down (broker) | the server takes nothing now |
// | NOAUTH, WRONGPASS | down (broker) | the account is wrong, not the event |
// | NOPERM, WRONGTYPE | down (topic) | the stream is not to be written to by this account, or is no stream |
// | bulk length | dead | larger than proto-max-bulk-len |
// | connection lost, refused or silent | down (broker) | nobody has refused the event |
//
// Anything else is a failed attempt.
package redisbroker
