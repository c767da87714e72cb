// Package telemetry collects the metrics of the daemon and the demo, and serves
// them to Prometheus. docs/metrics.md lists the metrics.
package telemetry

import (
	"context"
	"fmt"
	"net/http"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/collectors"
	"github.com/prometheus/client_golang/prometheus/promhttp"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	"go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/waybillhq/waybill/observe/otelobserve"
)

// Telemetry holds the metrics of a process. It uses no global registry, so
// several can exist in one process, as in tests.
type Telemetry struct {
	provider *metric.MeterProvider
	registry *prometheus.Registry
}

// New returns a Telemetry with the metrics of the Go runtime and the process.
func New() (*Telemetry, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return &Telemetry{provider: metric.NewMeterProvider(metric.WithReader(reader)), registry: registry}, nil
}

// Observer returns the observer of one relay. Its metrics start with prefix; a
// nonempty relay is the value of the label relay. Traces of events are
// propagated; no trace starts here.
func (t *Telemetry) Observer(prefix, relay string) (*otelobserve.Observer, error) {
	return otelobserve.New(otelobserve.Config{MeterProvider: t.provider, TracerProvider: noop.NewTracerProvider(), Prefix: prefix, Relay: relay})
}

// Handler serves scrapes.
func (t *Telemetry) Handler() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{Registry: t.registry})
}

// Close stops the collection.
func (t *Telemetry) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }
