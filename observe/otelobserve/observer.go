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

// scope is the instrumentation scope of metrics and spans.
const scope = "github.com/waybillhq/waybill/observe/otelobserve"

// Config configures an observer.
type Config struct {
	// MeterProvider receives the metrics. Defaults to the global provider.
	MeterProvider metric.MeterProvider
	// TracerProvider receives the spans. Defaults to the global provider;
	// noop.TracerProvider propagates existing traces and starts none.
	TracerProvider trace.TracerProvider
	// Propagator writes the trace context into headers and reads it from there.
	// Defaults to W3C trace context (headers traceparent and tracestate).
	// Baggage is excluded on purpose: headers are stored.
	Propagator propagation.TextMapPropagator
	// Prefix is the prefix of every metric name. Defaults to "waybill";
	// "orders.outbox" gives orders_outbox_backlog in Prometheus.
	Prefix string
	// Relay is the label "relay" of every metric, to distinguish several relays
	// in one process. Defaults to no label.
	Relay string
	// System is the attribute messaging.system of every span. Defaults to
	// "waybill".
	System string
	// Labels is the maximum number of different event types, operations and so
	// on per metric; further values are counted under "other". For a relay with
	// several destinations it is the maximum number of pairs of a destination
	// and an event type; beside it, there are at most 31 destinations. Defaults
	// to 200.
	Labels int
}

// nameRule is OpenTelemetry's rule for instrument names, with room for the
// longest name after the prefix.
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
		errs = append(errs, fmt.Errorf("Config.Prefix: %q: want a letter, then letters, digits and any of _ . - /, 200 at most", c.Prefix))
	}
	if c.System == "" {
		c.System = "waybill"
	}
	if c.Labels == 0 {
		c.Labels = 200
	}
	if c.Labels < 0 {
		errs = append(errs, fmt.Errorf("Config.Labels: %d is negative", c.Labels))
	}
	return c, errors.Join(errs...)
}

// Observer counts, measures and traces. It is safe for concurrent use.
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

// Hooks returns the Observe hooks of an outbox, relay, inbox, source and so on.
// Call Hooks once for each of them: the hooks for consumer groups and for
// destinations remember what they have reported, and set it to 0 when it is
// missing from a report.
func (o *Observer) Hooks() observe.Hooks {
	return observe.Hooks{
		Write:       o.write,
		HotEnqueued: func(info observe.HotEnqueuedInfo) { o.add(o.in.enqueueHot, info.Events, o.series.plain.get()) },
		HotDropped: func(info observe.HotDroppedInfo) {
			o.add(o.in.enqueueHotDropped, info.Events, o.series.reason.get(dropReason(info.Reason)))
		},
		ColdEnqueued:  func(info observe.ColdEnqueuedInfo) { o.add(o.in.enqueueCold, info.Events, o.series.plain.get()) },
		QueueDepths:   o.queueDepths,
		Deliver:       o.deliver,
		Delivered:     o.delivered,
		Failed:        o.failed,
		Died:          o.died,
		Unrouted:      func(info observe.UnroutedInfo) { o.add(o.in.unrouted, 1, o.series.unrouted.get(info.Event.Type)) },
		Paused:        o.paused,
		Read:          o.read,
		Settled:       o.settled,
		Lanes:         o.lanes,
		Lag:           o.lag,
		Backlog:       o.backlog,
		Destinations:  o.destinations(),
		Purged:        func(info observe.PurgedInfo) { o.add(o.in.purged, info.Rows, o.series.what.get(info.Kind)) },
		Consumed:      o.consumed,
		ConsumeFailed: o.consumeFailed,
		ConsumeDied:   o.consumeDied,
		Groups:        o.groups(),
		KeyRan:        o.keyRan,
		KeyRepeated:   func(info observe.KeyRepeatedInfo) { o.add(o.in.keyRepeated, 1, o.operation(info.Operation)) },
		KeyRefused:    o.keyRefused,
		KeyUnkept:     func(info observe.KeyUnkeptInfo) { o.add(o.in.keyUnkept, 1, o.operation(info.Operation)) },
		Keys:          o.keys,
		Received:      o.received,
		DeadLettered:  func(info observe.DeadLetteredInfo) { o.add(o.in.receiveDead, 1, o.source(info.Source)) },
		Reconciled:    o.reconciled,
		Replayed:      func(info observe.ReplayedInfo) { o.add(o.in.deadReplayed, info.Events, o.series.plain.get()) },
		Discarded:     func(info observe.DiscardedInfo) { o.add(o.in.deadDiscarded, info.Events, o.series.plain.get()) },
	}
}

// background is the context of measurements. It carries no span: exemplars come
// from contexts, and hooks have none.
var background = context.Background()

func (*Observer) add(c metric.Int64Counter, n int, s *series) { c.Add(background, int64(n), s.add...) }
