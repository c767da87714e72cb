package otelobserve_test

import (
	"context"
	"errors"
	"sync"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	sdktrace "go.opentelemetry.io/otel/sdk/trace"
	"go.opentelemetry.io/otel/sdk/trace/tracetest"
	"go.uber.org/goleak"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe/otelobserve"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// TestMain checks that no goroutine leaks.
func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

var errBoom = errors.New("boom")

// process is the observability of one process: an observer, a reader of its
// metrics and a recorder of its spans.
type process struct {
	*testing.T
	*otelobserve.Observer
	reader *sdkmetric.ManualReader
	spans  *tracetest.SpanRecorder
	traces *sdktrace.TracerProvider
}

func newProcess(t *testing.T, cfg otelobserve.Config, opts ...sdktrace.TracerProviderOption) *process {
	t.Helper()
	p := &process{T: t, reader: sdkmetric.NewManualReader(), spans: tracetest.NewSpanRecorder()}
	p.traces = sdktrace.NewTracerProvider(append(opts, sdktrace.WithSpanProcessor(p.spans))...)
	cfg.MeterProvider, cfg.TracerProvider = sdkmetric.NewMeterProvider(sdkmetric.WithReader(p.reader)), p.traces
	o, err := otelobserve.New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	p.Observer = o
	return p
}

// metrics returns all metrics by name.
func (p *process) metrics() map[string]metricdata.Metrics {
	p.Helper()
	var rm metricdata.ResourceMetrics
	if err := p.reader.Collect(context.Background(), &rm); err != nil {
		p.Fatal(err)
	}
	all := map[string]metricdata.Metrics{}
	for _, s := range rm.ScopeMetrics {
		for _, m := range s.Metrics {
			all[m.Name] = m
		}
	}
	return all
}

// value returns the sum of all series of a metric that have the given labels
// (name, value, name, value, …); for a histogram, the number of measurements.
// It returns -1 if there is no such series.
func (p *process) value(name string, labels ...string) float64 {
	p.Helper()
	sum, found := 0.0, false
	count := func(set attribute.Set, v float64) {
		for i := 0; i < len(labels); i += 2 {
			if got, ok := set.Value(attribute.Key(labels[i])); !ok || got.AsString() != labels[i+1] {
				return
			}
		}
		sum, found = sum+v, true
	}
	switch data := p.metrics()[name].Data.(type) {
	case metricdata.Sum[int64]:
		for _, d := range data.DataPoints {
			count(d.Attributes, float64(d.Value))
		}
	case metricdata.Gauge[int64]:
		for _, d := range data.DataPoints {
			count(d.Attributes, float64(d.Value))
		}
	case metricdata.Gauge[float64]:
		for _, d := range data.DataPoints {
			count(d.Attributes, d.Value)
		}
	case metricdata.Histogram[float64]:
		for _, d := range data.DataPoints {
			count(d.Attributes, float64(d.Count))
		}
	case metricdata.Histogram[int64]:
		for _, d := range data.DataPoints {
			count(d.Attributes, float64(d.Count))
		}
	}
	if !found {
		return -1
	}
	return sum
}

func (p *process) want(v float64, name string, labels ...string) {
	p.Helper()
	if got := p.value(name, labels...); got != v {
		p.Errorf("%s%v = %v, want %v", name, labels, got, v)
	}
}

// named returns the ended spans with a name.
func (p *process) named(name string) []sdktrace.ReadOnlySpan {
	var out []sdktrace.ReadOnlySpan
	for _, s := range p.spans.Ended() {
		if s.Name() == name {
			out = append(out, s)
		}
	}
	return out
}

// only returns the single span with a name.
func (p *process) only(name string) sdktrace.ReadOnlySpan {
	p.Helper()
	found := p.named(name)
	if len(found) != 1 {
		p.Fatalf("%d spans %q, want one", len(found), name)
	}
	return found[0]
}

func attr(s sdktrace.ReadOnlySpan, name string) string {
	for _, a := range s.Attributes() {
		if string(a.Key) == name {
			return a.Value.String()
		}
	}
	return ""
}

// shop is an in-memory outbox whose writes p observes.
type shop struct {
	*process
	db  *memstore.Store[*memstore.Tx]
	box *outbox.Outbox[*memstore.Tx]
}

func (p *process) shop() *shop {
	p.Helper()
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		p.Fatal(err)
	}
	box, err := outbox.New(db, outbox.Config{Observe: p.Hooks()})
	if err != nil {
		p.Fatal(err)
	}
	return &shop{process: p, db: db, box: box}
}

func (s *shop) write(ctx context.Context, evs ...waybill.Event) {
	s.Helper()
	if err := s.box.InTx(ctx, func(ctx context.Context, tx *memstore.Tx) error { return s.box.Write(ctx, tx, evs...) }); err != nil {
		s.Fatal(err)
	}
}

// relay runs a relay until stop is called or the test ends.
func (s *shop) relay(sink waybill.Sink) (stop func()) {
	s.Helper()
	r, err := relay.New(s.db, sink, relay.Config{
		Observe: s.Hooks(), MaxAttempts: 3, BackoffBase: time.Millisecond, BackoffMax: time.Millisecond,
	})
	if err != nil {
		s.Fatal(err)
	}
	return s.run(r)
}

// run runs a relay until stop is called or the test ends.
func (s *shop) run(r *relay.Relay) (stop func()) {
	s.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	stop = sync.OnceFunc(func() {
		cancel()
		if err := <-done; err != nil {
			s.Errorf("Run: %v", err)
		}
	})
	s.Cleanup(stop)
	return stop
}

func (p *process) await(what string, is func() bool) {
	p.Helper()
	tick := time.NewTicker(5 * time.Millisecond)
	defer tick.Stop()
	deadline := time.After(60 * time.Second)
	for !is() {
		select {
		case <-tick.C:
		case <-deadline:
			p.Fatalf("waited too long: %s", what)
		}
	}
}
