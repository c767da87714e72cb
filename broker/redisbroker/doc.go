// Package redisbroker publishes events to Redis Streams and consumes them from
// there.
//
//	url := "redis://localhost:6379/0"
//	b, err := redisbroker.Open(ctx, url, redisbroker.Config{})
//	…
//	sink, err := b.Sink(redisbroker.SinkConfig{})
//	r, err := relay.New(db, sink, relay.Config{})
//
//	source, err := b.Source(redisbroker.SourceConfig{
//		Group: "billing", Streams: []string{"orders"},
//	})
//	err = source.Run(ctx, group)
//
// # Messages
//
// An event is one entry of the stream that its topic names. The entry's fields
// are the CloudEvents attributes ("ce_id", "ce_type", …), the event's own
// headers ("waybill_name"), "content-type", "publish_id", and the payload in
// "data". The entries of a batch are sent in one pipeline, and Redis confirms
// each with its entry id.
//
// # Durability
//
// A confirmed entry is in memory. Whether it survives a crash depends on the
// configuration of Redis: appendonly yes, with appendfsync always for events
// that must not be lost, and maxmemory-policy noeviction. This package never
// trims a stream; see [SourceConfig.DeleteAcked] for streams with one group.
// Redis drops no duplicates; the inbox does.
//
// # Order
//
// Entries of one aggregate are in the stream in the order in which they were
// written to the outbox, and one consumer handles them one after another.
// Several consumers of one group share a stream entry by entry, so two of them
// may handle the same aggregate concurrently. If order matters, run one
// consumer per stream, and several streams.
//
// # Errors
//
// | broker error | class | reason |
// |---|---|---|
// | OOM, MISCONF, LOADING, MASTERDOWN, READONLY, CLUSTERDOWN, TRYAGAIN, NOREPLICAS, BUSY, UNKILLABLE, max number of clients | unavailable (broker) | the server accepts no writes now |
// | MOVED, ASK | unavailable (topic) | the stream's slot moves to another node of the cluster |
// | NOAUTH, WRONGPASS | unavailable (broker) | the account is at fault, not the event |
// | NOPERM, WRONGTYPE | unavailable (topic) | the account has no write access, or the key is not a stream |
// | bulk length | permanent | larger than proto-max-bulk-len |
// | connection lost, refused or silent | unavailable (broker) | the event was not rejected |
//
// Any other error is a failed attempt.
package redisbroker
