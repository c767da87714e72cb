// Package telemetry counts what the daemon and the demonstration do, and shows it to Prometheus. docs/metrics.md lists the metrics.
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

// Telemetry holds the metrics of a process. It touches no global registry: several can live beside each other, as they do in tests.
type Telemetry struct {
	provider *metric.MeterProvider
	registry *prometheus.Registry
}

// New returns a telemetry that has counted nothing yet, except what the Go runtime and the process tell about themselves.
func New() (*Telemetry, error) {
	registry := prometheus.NewRegistry()
	registry.MustRegister(collectors.NewGoCollector(), collectors.NewProcessCollector(collectors.ProcessCollectorOpts{}))
	reader, err := exporter.New(exporter.WithRegisterer(registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		return nil, fmt.Errorf("telemetry: %w", err)
	}
	return &Telemetry{provider: metric.NewMeterProvider(metric.WithReader(reader)), registry: registry}, nil
}

// Observer returns what counts for one relay. Its metrics begin with prefix; relay, if it is not empty, is their label of that name. A trace
// that an event carries is passed on; none begins here.
func (t *Telemetry) Observer(prefix, relay string) (*otelobserve.Observer, error) {
	return otelobserve.New(otelobserve.Config{MeterProvider: t.provider, TracerProvider: noop.NewTracerProvider(), Prefix: prefix, Relay: relay})
}

// Handler answers a scrape.
func (t *Telemetry) Handler() http.Handler {
	return promhttp.HandlerFor(t.registry, promhttp.HandlerOpts{Registry: t.registry})
}

// Close ends counting.
func (t *Telemetry) Close(ctx context.Context) error { return t.provider.Shutdown(ctx) }
