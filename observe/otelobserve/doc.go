// Package otelobserve turns the hooks of Waybill into OpenTelemetry metrics and traces. It is a module of its own: who does not import it
// does not pull in OpenTelemetry.
//
//	o, err := otelobserve.New(otelobserve.Config{MeterProvider: metrics, TracerProvider: traces})
//	box, err := outbox.New(db, outbox.Config{Observe: o.Hooks()})
//	r, err := relay.New(db, sink, relay.Config{Observe: o.Hooks()})
//	in, err := inbox.New(db, inbox.Config{Observe: o.Hooks()})
//	source.Run(ctx, o.WrapGroup(inventory))
//
// # Metrics
//
// docs/metrics.md lists every metric with its labels and the hook that counts it. Counters whose labels are known appear with 0 before
// anything is counted, so that the first failure is an increase. Texts that come from outside (event types, operations, destinations) are
// labels only up to [Config.Labels] different ones; what comes later is counted under "other".
//
// # Traces
//
// A trace follows one event, not one batch. Writing it is a span "create"; the context of that span goes into the event's headers, into
// the table with it, and to the broker. Every attempt of a relay is a span "send" in the event's own trace, and what [Observer.Wrap] puts
// around a consumer is a span "process" there, in whatever process it runs. A batch of several has a span of its own besides, linked
// to theirs. Span names and attributes are those of OpenTelemetry's semantic conventions for messaging. Payloads, tenants, headers and
// aggregate ids are in no span and no label.
package otelobserve
