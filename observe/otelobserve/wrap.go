package otelobserve

import (
	"context"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybillhq/waybill"
)

// Sink receives deliveries: a consumer group, a bus, a mux, or a relay's sink.
type Sink interface {
	Deliver(ctx context.Context, batch []waybill.Delivery) []error
}

// Group is a consumer group, as a bus accepts it.
type Group interface {
	Sink
	Name() string
	Handles(aggregateType, eventType string) bool
}

// Wrap adds a span "process" around the consumer's handling of an event, in the
// event's trace: the trace of its headers, or the trace that the context is
// already in. The consumer's handler finds the span in its context, and events
// that the handler writes continue that trace.
//
// A context can be in one trace only. The traced events of a batch are
// therefore passed to the consumer one by one, and the events between them
// together: with sampling, most events are still batched. A sink that stops an
// aggregate at its first failure cannot do so across several calls, so a relay
// treats a wrapped sink like any other and passes it one event of an aggregate
// at a time.
func (o *Observer) Wrap(s Sink) Sink {
	c := o.consumer(s)
	if _, serial := s.(interface{ Serial() }); serial {
		return serialConsumer{c}
	}
	return c
}

// WrapGroup is [Observer.Wrap] for a consumer group; the result is a consumer
// group, and the spans contain its name.
func (o *Observer) WrapGroup(g Group) Group {
	c := o.consumer(g)
	c.attrs = append(c.attrs, attribute.String("messaging.consumer.group.name", g.Name()))
	return groupConsumer{consumer: c, group: g}
}

func (o *Observer) consumer(s Sink) *consumer { return &consumer{o: o, sink: s} }

type consumer struct {
	o     *Observer
	sink  Sink
	attrs []attribute.KeyValue
}

// serialConsumer wraps a sink that handles the events of a batch one after
// another.
type serialConsumer struct{ *consumer }

// Serial marks the sink as serial for a relay.
func (serialConsumer) Serial() {}

type groupConsumer struct {
	*consumer
	group Group
}

// Name returns the group's name.
func (g groupConsumer) Name() string { return g.group.Name() }

// Handles returns the result of the group.
func (g groupConsumer) Handles(aggregateType, eventType string) bool {
	return g.group.Handles(aggregateType, eventType)
}

// Destination returns the destination that the consumer reports.
func (c *consumer) Destination(ev *waybill.Event) string {
	if d, ok := c.sink.(interface {
		Destination(ev *waybill.Event) string
	}); ok {
		return d.Destination(ev)
	}
	return ""
}

// Deliver passes the batch on in order: a traced event alone, the events
// between two traced ones together.
func (c *consumer) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	if len(batch) == 1 {
		inner, span := c.begin(ctx, &batch[0])
		return c.traced(inner, span, batch)
	}
	results := make([]error, 0, len(batch))
	hand := func(part []waybill.Delivery, errs []error) bool {
		results = append(results, errs...)
		return len(errs) == len(part)
	}
	first := 0 // first event that has not been passed on
	for i := range batch {
		inner, span := c.begin(ctx, &batch[i])
		if !span.IsRecording() {
			continue
		}
		if between := batch[first:i]; len(between) > 0 && !hand(between, c.sink.Deliver(ctx, between)) {
			span.End()
			return results // too few or too many: the caller settles nothing
		}
		if own := batch[i : i+1]; !hand(own, c.traced(inner, span, own)) {
			return results
		}
		first = i + 1
	}
	if last := batch[first:]; len(last) > 0 {
		hand(last, c.sink.Deliver(ctx, last))
	}
	return results
}

// begin starts the span of an event. Its parent is the context's span if that
// span is in the event's trace, as for a relay that delivers to a consumer in
// its own process.
func (c *consumer) begin(ctx context.Context, d *waybill.Delivery) (context.Context, trace.Span) {
	own := c.o.Extract(ctx, &d.Event)
	if here := trace.SpanContextFromContext(ctx); here.IsValid() && here.TraceID() == trace.SpanContextFromContext(own).TraceID() {
		own = ctx
	}
	attrs := append(c.o.attributes(process, &d.Event), attribute.Int("waybill.attempt", d.Attempt))
	attrs = append(attrs, c.attrs...)
	return c.o.tracer.Start(own, process+" "+destination(&d.Event), trace.WithSpanKind(trace.SpanKindConsumer), trace.WithAttributes(attrs...))
}

// traced passes one event on and ends its span in every case.
func (c *consumer) traced(ctx context.Context, span trace.Span, own []waybill.Delivery) (errs []error) {
	defer func() {
		if len(errs) == 1 {
			c.o.end(span, errs[0])
			return
		}
		c.o.end(span, errResults) // another length, or a panic on its way up
	}()
	return c.sink.Deliver(ctx, own)
}
