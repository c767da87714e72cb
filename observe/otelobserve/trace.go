package otelobserve

import (
	"context"
	"strings"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/codes"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybillhq/waybill"
)

// The operations, as the semantic conventions for messaging name them.
const (
	create  = "create"
	send    = "send"
	process = "process"
)

// write counts the event, and makes the span whose context the event carries from now on. An event that has a trace context already, one
// that is passed on, keeps it.
func (o *Observer) write(ctx context.Context, ev waybill.Event) map[string]string {
	o.add(o.in.written, 1, o.eventType(ev.Type))
	if o.carries(&ev) {
		return nil
	}
	ctx, span := o.tracer.Start(ctx, create+" "+destination(&ev),
		trace.WithSpanKind(trace.SpanKindProducer), trace.WithAttributes(o.attributes(create, &ev)...))
	span.End() // the write itself is in the caller's transaction, and part of the caller's span
	headers := propagation.MapCarrier{}
	o.propagator.Inject(ctx, headers)
	return headers
}

// carries reports whether the event has a header that the propagator would write.
func (o *Observer) carries(ev *waybill.Event) bool {
	for _, name := range o.fields {
		if _, ok := ev.Headers[name]; ok {
			return true
		}
	}
	return false
}

// destination is the event's topic, which is its type until somebody says otherwise.
func destination(ev *waybill.Event) string {
	if ev.Topic == "" {
		return ev.Type
	}
	return ev.Topic
}

func (o *Observer) attributes(operation string, ev *waybill.Event) []attribute.KeyValue {
	attrs := make([]attribute.KeyValue, 0, 9)
	attrs = append(attrs, o.system,
		attribute.String("messaging.operation.name", operation),
		attribute.String("messaging.operation.type", operation),
		attribute.String("messaging.destination.name", destination(ev)),
		attribute.Int("messaging.message.body.size", len(ev.Payload)),
		attribute.String("waybill.event.type", ev.Type),
	)
	if !ev.ID.IsZero() { // a write may not have chosen it yet
		attrs = append(attrs, attribute.String("messaging.message.id", ev.ID.String()))
	}
	if ev.CorrelationID != "" {
		attrs = append(attrs, attribute.String("messaging.message.conversation_id", ev.CorrelationID))
	}
	return attrs
}

// Extract returns a context in which spans that begin belong to the event's trace. [Observer.Wrap] does it for consumers; this is for
// whoever gets events in another way.
func (o *Observer) Extract(ctx context.Context, ev *waybill.Event) context.Context {
	if len(ev.Headers) == 0 {
		return ctx
	}
	return o.propagator.Extract(ctx, propagation.MapCarrier(ev.Headers))
}

// deliver makes a span for every event, in its own trace. The sink gets the context of the event's span if it is the only one. Several
// share a context, which can be in one trace only: so they get a span of the batch, in a trace of its own, that is linked to theirs.
func (o *Observer) deliver(ctx context.Context, batch []waybill.Delivery) (context.Context, func([]error)) {
	o.in.dispatchBatch.Record(background, int64(len(batch)), o.series.plain.get().record...)
	if len(batch) == 1 {
		ctx, span := o.send(ctx, &batch[0])
		if !span.IsRecording() {
			return ctx, nil
		}
		return ctx, func(results []error) {
			if len(results) == 1 {
				o.end(span, results[0])
				return
			}
			o.end(span, errResults)
		}
	}
	spans, links := o.sendEach(ctx, batch)
	if len(spans) == 0 { // nobody looks at any of them
		return ctx, nil
	}
	ctx, whole := o.tracer.Start(ctx, send+" batch", trace.WithNewRoot(), trace.WithSpanKind(trace.SpanKindClient), trace.WithLinks(links...),
		trace.WithAttributes(o.system,
			attribute.String("messaging.operation.name", send),
			attribute.String("messaging.operation.type", send),
			attribute.Int("messaging.batch.message_count", len(batch)),
		))
	return ctx, func(results []error) {
		for i, span := range spans {
			if len(results) == len(batch) {
				o.end(span, results[i])
			} else {
				o.end(span, errResults)
			}
		}
		whole.End()
	}
}

// errResults is what the spans of a call say whose results do not match its events. The relay's log says more.
var errResults = waybill.Unavailable(resultsError{})

type resultsError struct{}

func (resultsError) Error() string { return "the sink's answer has another length than the batch" }

// sendEach begins the spans of a batch. Those that are not recorded are left out.
func (o *Observer) sendEach(ctx context.Context, batch []waybill.Delivery) (map[int]trace.Span, []trace.Link) {
	var spans map[int]trace.Span
	var links []trace.Link
	for i := range batch {
		_, span := o.send(ctx, &batch[i])
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

func (o *Observer) send(ctx context.Context, d *waybill.Delivery) (context.Context, trace.Span) {
	attrs := append(o.attributes(send, &d.Event), attribute.Int("waybill.attempt", d.Attempt))
	return o.tracer.Start(o.Extract(ctx, &d.Event), send+" "+destination(&d.Event),
		trace.WithSpanKind(trace.SpanKindClient), trace.WithAttributes(attrs...))
}

// textLimit is how much of an error a span tells.
const textLimit = 500

// end ends a span with what became of the event. What another sink or transaction has settled is a success.
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
