package otelobserve

import (
	"context"
	"errors"
	"fmt"
	"regexp"

	"go.opentelemetry.io/otel"
	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/metric"
	"go.opentelemetry.io/otel/propagation"
	"go.opentelemetry.io/otel/trace"

	"github.com/waybillhq/waybill/observe"
)

// scope names this package as the source of metrics and spans.
const scope = "github.com/waybillhq/waybill/observe/otelobserve"

// Config says where metrics and spans go.
type Config struct {
	// MeterProvider takes the metrics. Defaults to the global one.
	MeterProvider metric.MeterProvider
	// TracerProvider takes the spans. Defaults to the global one; with noop.TracerProvider a trace that exists is passed on, and none begins.
	TracerProvider trace.TracerProvider
	// Propagator writes the trace context into headers and reads it from there. Defaults to W3C trace context, headers traceparent and
	// tracestate. Baggage is left out on purpose: headers are stored.
	Propagator propagation.TextMapPropagator
	// Prefix begins the name of every metric. Defaults to "waybill"; "orders.outbox" gives orders_outbox_backlog in Prometheus.
	Prefix string
	// Relay is the label "relay" of every metric, to tell several apart in one process. Defaults to none.
	Relay string
	// System is the attribute messaging.system of every span. Defaults to "waybill".
	System string
	// Labels is for how many different event types, operations, destinations and the like each metric has series; the rest is "other".
	// Defaults to 200.
	Labels int
}

// nameRule is OpenTelemetry's for instruments, with room for the longest name behind the prefix.
var nameRule = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9_./-]{0,199}$`)

func (c Config) complete() (Config, error) {
	var errs []error
	if c.MeterProvider == nil {
		c.MeterProvider = otel.GetMeterProvider()
	}
	if c.TracerProvider == nil {
		c.TracerProvider = otel.GetTracerProvider()
	}
	if c.Propagator == nil {
		c.Propagator = propagation.TraceContext{}
	}
	if c.Prefix == "" {
		c.Prefix = "waybill"
	}
	if !nameRule.MatchString(c.Prefix) {
		errs = append(errs, fmt.Errorf("prefix %q: want a letter, then letters, digits and any of _ . - /, 200 at most", c.Prefix))
	}
	if c.System == "" {
		c.System = "waybill"
	}
	if c.Labels == 0 {
		c.Labels = 200
	}
	if c.Labels < 0 {
		errs = append(errs, fmt.Errorf("labels %d: want 1 or more", c.Labels))
	}
	return c, errors.Join(errs...)
}

// Observer counts, measures and traces. Its methods may be called concurrently.
type Observer struct {
	in     *instruments
	series families

	tracer     trace.Tracer
	propagator propagation.TextMapPropagator
	fields     []string // the headers that the propagator writes
	system     attribute.KeyValue
}

// New returns an observer.
func New(cfg Config) (*Observer, error) {
	cfg, err := cfg.complete()
	if err != nil {
		return nil, fmt.Errorf("otelobserve: %w", err)
	}
	in, err := newInstruments(cfg.MeterProvider.Meter(scope), cfg.Prefix)
	if err != nil {
		return nil, fmt.Errorf("otelobserve: %w", err)
	}
	o := &Observer{
		in: in, series: newFamilies(cfg.Relay, cfg.Labels),
		tracer: cfg.TracerProvider.Tracer(scope), propagator: cfg.Propagator, fields: cfg.Propagator.Fields(),
		system: attribute.String("messaging.system", cfg.System),
	}
	o.zero()
	return o, nil
}

// Hooks returns what an outbox, relay, inbox, source and the rest take as their Observe. Call it for each of them: what reports consumer
// groups remembers which it has reported, to set those to 0 of which there is nothing to report any more.
func (o *Observer) Hooks() observe.Hooks {
	return observe.Hooks{
		Write:         o.write,
		HotEnqueued:   func(n int) { o.add(o.in.enqueueHot, n, o.series.plain.get()) },
		HotDropped:    func(n int, why observe.Drop) { o.add(o.in.enqueueHotDropped, n, o.series.reason.get(dropReason(why))) },
		ColdEnqueued:  func(n int) { o.add(o.in.enqueueCold, n, o.series.plain.get()) },
		QueueDepths:   o.queueDepths,
		Deliver:       o.deliver,
		Delivered:     o.delivered,
		Failed:        o.failed,
		Died:          o.died,
		Paused:        o.paused,
		Read:          o.read,
		Settled:       o.settled,
		Lanes:         o.lanes,
		Lag:           o.lag,
		Backlog:       o.backlog,
		Purged:        func(what string, n int) { o.add(o.in.purged, n, o.series.what.get(what)) },
		Consumed:      o.consumed,
		ConsumeFailed: o.consumeFailed,
		ConsumeDied:   o.consumeDied,
		Groups:        o.groups(),
		KeyRan:        o.keyRan,
		KeyRepeated:   func(operation string) { o.add(o.in.keyRepeated, 1, o.operation(operation)) },
		KeyRefused:    o.keyRefused,
		KeyUnkept:     func(operation string, _ error) { o.add(o.in.keyUnkept, 1, o.operation(operation)) },
		Keys:          o.keys,
		Received:      o.received,
		DeadLettered:  func(source string, _ error) { o.add(o.in.receiveDead, 1, o.source(source)) },
		Reconciled:    o.reconciled,
		Replayed:      func(n int) { o.add(o.in.deadReplayed, n, o.series.plain.get()) },
		Discarded:     func(n int) { o.add(o.in.deadDiscarded, n, o.series.plain.get()) },
	}
}

// background is for measurements. No span is looked for in it: exemplars come from contexts, and hooks have none.
var background = context.Background()

func (*Observer) add(c metric.Int64Counter, n int, s *series) { c.Add(background, int64(n), s.add...) }
