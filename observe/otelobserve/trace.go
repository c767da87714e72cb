package otelobserve

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
)

// The operations, as named by the semantic conventions for messaging.
const (
	create  = "create"
	send    = "send"
	process = "process"
)

// write counts the event and creates the span whose context the event carries.
// An event that already has a trace context, such as a forwarded one, keeps it.
func (o *Observer) write(ctx context.Context, info observe.WriteInfo) map[string]string {
	ev := &info.Event
	o.add(o.in.written, 1, o.eventType(o.series.delivery.to(""), ev.Type))
	if o.carries(ev) {
		return nil
	}
	ctx, span := o.tracer.Start(ctx, create+" "+destination(ev),
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(o.attributes(create, ev)...))
	span.End() // the caller's span covers the write itself
	headers := propagation.MapCarrier{}
	o.propagator.Inject(ctx, headers)
	return headers
}

// carries reports whether the event has a header of the propagator.
func (o *Observer) carries(ev *waybill.Event) bool {
	for _, name := range o.fields {
		if _, ok := ev.Headers[name]; ok {
			return true
		}
	}
	return false
}

// destination is the event's topic, which defaults to its type.
func destination(ev *waybill.Event) string {
	if ev.Topic == "" {
		return ev.Type
	}
	return ev.Topic
}

func (o *Observer) attributes(operation string, ev *waybill.Event) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 10)
	attrs = append(attrs, o.system,
		attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.operation.type", operation),
		attribute.String("messaging.destination.name", destination(ev)),
		attribute.Int("messaging.message.body.size", len(ev.Payload)),
		attribute.String("waybill.event.type", ev.Type),
	)
	if !ev.ID.IsZero() { // a write may not have assigned an id yet
		attrs = append(attrs, attribute.String("messaging.message.id", ev.ID.String()))
	}
	if ev.CorrelationID != "" {
		attrs = append(attrs, attribute.String("messaging.message.conversation_id", ev.CorrelationID))
	}
	return attrs
}

// Extract returns a context in which new spans belong to the event's trace.
// [Observer.Wrap] calls Extract for consumers; use it for events that arrive in
// another way.
func (o *Observer) Extract(ctx context.Context, ev *waybill.Event) context.Context {
	if len(ev.Headers) == 0 {
		return ctx
	}
	return o.propagator.Extract(ctx, propagation.MapCarrier(ev.Headers))
}

// deliver creates a span for every event in the event's own trace. For a single
// event, the sink receives the context of its span. A context can be in one
// trace only, so the sink receives several events with the context of a batch
// span, which has its own trace and links to the spans of the events. All spans
// have the name of the destination, if the relay has several.
func (o *Observer) deliver(ctx context.Context, info observe.DeliverInfo) (context.Context, func(observe.DeliverDoneInfo)) {
	batch := info.Batch
	o.in.dispatchBatch.Record(background, int64(len(batch)), o.series.delivery.to(info.Destination).plain.get().record...)
	if len(batch) == 1 {
		ctx, span := o.send(ctx, &batch[0], info.Destination)
		if !span.IsRecording() {
			return ctx, nil
		}
		return ctx, func(done observe.DeliverDoneInfo) {
			if len(done.Results) == 1 {
				o.end(span, done.Results[0])
				return
			}
			o.end(span, errResults)
		}
	}
	spans, links := o.sendEach(ctx, batch, info.Destination)
	if len(spans) == 0 { // no span is recorded
		return ctx, nil
	}
	attrs := withDestination([]attribute.KeyValue{
		o.system,
		attribute.String("messaging.operation.name", send),
		attribute.String("messaging.operation.type", send),
		attribute.Int("messaging.batch.message_count", len(batch)),
	}, info.Destination)
	ctx, whole := o.tracer.Start(ctx, send+" batch", trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindClient), trace.WithLinks(links...),
		trace.WithAttributes(attrs...))
	return ctx, func(done observe.DeliverDoneInfo) {
		for i, span := range spans {
			if len(done.Results) == len(batch) {
				o.end(span, done.Results[i])
			} else {
				o.end(span, errResults)
			}
		}
		whole.End()
	}
}

// errResults is the status of spans of a call whose results do not match its
// events. The relay logs the details.
var errResults = waybill.Unavailable(resultsError{})

type resultsError struct{}

func (resultsError) Error() string { return "the sink's answer has another length than the batch" }

// sendEach starts the spans of a batch, except spans that are not recorded.
func (o *Observer) sendEach(ctx context.Context, batch []waybill.Delivery, to string) (map[int]trace.Span, []trace.Link) {
	var spans map[int]trace.Span
	var links []trace.Link
	for i := range batch {
		_, span := o.send(ctx, &batch[i], to)
		if !span.IsRecording() {
			continue
		}
		if spans == nil {
			spans = make(map[int]trace.Span, len(batch))
		}
		spans[i] = span
		links = append(links, trace.Link{SpanContext: span.SpanContext()})
	}
	return spans, links
}

func (o *Observer) send(ctx context.Context, d *waybill.Delivery, to string) (context.Context, trace.Span) {
	attrs := withDestination(append(o.attributes(send, &d.Event), attribute.Int("waybill.attempt", d.Attempt)), to)
	return o.tracer.Start(o.Extract(ctx, &d.Event), send+" "+destination(&d.Event),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
}

// withDestination adds the name of one of several destinations.
// messaging.destination.name is the topic, which all of them share.
func withDestination(attrs []attribute.KeyValue, name string) []attribute.KeyValue {
	if name == "" {
		return attrs
	}
	return append(attrs, attribute.String("waybill.destination", name))
}

// textLimit is the maximum length of an error text in a span.
const textLimit = 500

// end ends a span with the result of the event. A delivery that another sink or
// transaction has settled is a success.
func (o *Observer) end(span trace.Span, err error) {
	if class, _ := waybill.Classify(err); class != waybill.ClassDone {
		text := err.Error()
		if len(text) > textLimit {
			text = text[:textLimit]
		}
		span.SetAttributes(attribute.String("error.type", class.String()))
		span.SetStatus(codes.Error, strings.ToValidUTF8(text, ""))
	}
	span.End()
}
