package waybill

import "context"

// Sink receives events: a relay delivers the events of an outbox to one, and
// the source of a broker passes its messages to one. Brokers, webhooks, handler
// muxes, consumer groups and buses are sinks.
//
// Deliver takes a batch and returns one result per delivery, in the same order:
// nil for a delivered event, an error otherwise. [Classify] defines what errors
// mean. If the number of results is wrong, no event of the batch is settled.
// Deliver is called from several goroutines. Two events of one aggregate are
// never in the same batch, nor in two concurrent calls, unless the sink is a
// relay.OrderedSink. The context ends when the caller's lease ends, or when its
// DrainTimeout has passed after it was stopped; an error that the sink returns
// after that spends no attempt. A sink must not retain the batch.
type Sink interface {
	Deliver(ctx context.Context, batch []Delivery) []error
}
