// Package payload transforms payloads between the write and the consumer:
// [Gzip] compresses them, [Encrypt] encrypts them, and [ClaimCheck] keeps large
// ones in a blob store.
//
// A [Pipeline] is a list of transforms. Its [Pipeline.Hook] seals the payloads
// of an outbox; the consumer opens them with the same list:
//
//	handler.Mux     mux.Use(p.Middleware)
//	inbox.Group     inbox.Options{Open: p.Open}
//	any sink        p.Sink(sink)
//	other code      p.Open(ctx, ev)
//
// The outbox, the relay and the broker see sealed payloads only. The header
// waybill-encoding lists the transforms that were applied, so that a pipeline
// opens payloads that were written with fewer transforms, with older keys, or
// with none.
package payload
