// Package otelobserve implements the hooks of Waybill with OpenTelemetry
// metrics and traces. It is a separate module, so that only its importers
// depend on OpenTelemetry.
//
//	o, err := otelobserve.New(otelobserve.Config{MeterProvider: metrics, TracerProvider: traces})
//	box, err := outbox.New(db, outbox.Config{Observe: o.Hooks()})
//	r, err := relay.New(db, sink, relay.Config{Observe: o.Hooks()})
//	in, err := inbox.New(db, inbox.Config{Observe: o.Hooks()})
//	source.Run(ctx, o.WrapGroup(inventory))
//
// # Metrics
//
// docs/metrics.md lists every metric with its labels and its hook. Counters
// with known labels start at 0 before the first measurement, so that the first
// failure is an increase. Labels from outside (event types, operations,
// destinations) are limited to [Config.Labels] different values; further values
// are counted under "other". The deliveries of a relay with several
// destinations have the label "destination"; those of a relay with one sink do
// not have it.
//
// # Traces
//
// A trace follows one event, not one batch. Writing an event is a span
// "create"; the context of that span is stored in the event's headers and
// travels through the table to the broker. Every attempt of a relay is a span
// "send" in the event's own trace, and [Observer.Wrap] adds a span "process"
// around the consumer, in whatever process it runs. A batch of several events
// also has a separate span, linked to the spans of the events. Span names and
// attributes follow OpenTelemetry's semantic conventions for messaging. Spans
// and labels contain no payloads, tenants, headers and aggregate ids.
package otelobserve
