package metrics_test

import (
	"context"
	"errors"
	"reflect"
	"testing"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	exporter "go.opentelemetry.io/otel/exporters/prometheus"
	sdkmetric "go.opentelemetry.io/otel/sdk/metric"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"
	"go.opentelemetry.io/otel/trace/noop"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventfill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/observe/otelobserve"
)

// calls calls every hook, with all its variants.
func calls(h *observe.Hooks) map[string]func() {
	ctx, boom := context.Background(), errors.New("boom")
	ev := eventfill.Defaults(waybill.NewEvent("OrderPlaced", 1))
	d := &waybill.Delivery{Event: ev, Attempt: 1}
	return map[string]func(){
		"Write":        func() { h.Write(ctx, ev) },
		"HotEnqueued":  func() { h.HotEnqueued(1) },
		"HotDropped":   func() { h.HotDropped(1, observe.DropQueueFull) },
		"ColdEnqueued": func() { h.ColdEnqueued(1) },
		"QueueDepths":  func() { h.QueueDepths(1, 1) },
		"Deliver": func() {
			if _, after := h.Deliver(ctx, []waybill.Delivery{*d}); after != nil {
				after([]error{nil})
			}
		},
		"Delivered": func() { h.Delivered(d, time.Second, time.Second) },
		"Failed":    func() { h.Failed(d, waybill.ClassRetry, boom, time.Second) },
		"Died":      func() { h.Died(d, boom) },
		"Paused":    func() { h.Paused("kafka", true) },
		"Read":      func() { h.Read("fast", 1, time.Second, nil); h.Read("fast", 0, time.Second, boom) },
		"Settled":   func() { h.Settled(1, time.Second, nil); h.Settled(1, time.Second, boom) },
		"Lanes":     func() { h.Lanes(1, 32) },
		"Lag":       func() { h.Lag(time.Second) },
		"Backlog": func() {
			h.Backlog(observe.Backlog{Ready: 1, Oldest: time.Second})
			h.Backlog(observe.Backlog{Ready: 1, Oldest: time.Second, Captured: true})
		},
		"Purged": func() { h.Purged("dead", 1) },
		"Consumed": func() {
			h.Consumed("INVENTORY", &ev, time.Second, false)
			h.Consumed("INVENTORY", &ev, time.Second, true)
		},
		"ConsumeFailed": func() { h.ConsumeFailed("INVENTORY", &ev, boom, time.Second) },
		"ConsumeDied":   func() { h.ConsumeDied("INVENTORY", &ev, boom) },
		"Groups":        func() { h.Groups([]observe.Group{{Group: "INVENTORY", Failed: 1}}) },
		"KeyRan":        func() { h.KeyRan("pay", time.Second, nil) },
		"KeyRepeated":   func() { h.KeyRepeated("pay") },
		"KeyRefused":    func() { h.KeyRefused("pay", waybill.ErrConflict) },
		"KeyUnkept":     func() { h.KeyUnkept("pay", boom) },
		"Keys":          func() { h.Keys(observe.Keys{Processing: 1}) },
		"Received":      func() { h.Received("orders", waybill.ClassDone, false, time.Second) },
		"DeadLettered":  func() { h.DeadLettered("orders", boom) },
		"Reconciled": func() {
			h.Reconciled("payout", observe.Reconciled{Found: 3, Sent: 1, Failed: 1, Skipped: 1, Took: time.Second})
		},
		"Replayed":  func() { h.Replayed(1) },
		"Discarded": func() { h.Discarded(1) },
	}
}

// exported describes a metric.
type exported struct {
	kind   string
	unit   string
	labels map[string]bool
	hooks  map[string]bool // hooks that change it
}

// exportedMetrics calls every hook of an observer, each in a world of its own,
// and returns the metrics that Prometheus would scrape.
func exportedMetrics(t *testing.T) map[string]*exported {
	t.Helper()
	all := map[string]*exported{}
	untouched := newWorld(t).numbers()
	var none observe.Hooks
	for name := range calls(&none) {
		w := newWorld(t)
		calls(&w.hooks)[name]()
		w.collect(all)
		for metric, now := range w.numbers() {
			if before, ok := untouched[metric]; !ok || before != now {
				note(all, metric).hooks[name] = true
			}
		}
	}
	return all
}

func note(all map[string]*exported, name string) *exported {
	if all[name] == nil {
		all[name] = &exported{labels: map[string]bool{}, hooks: map[string]bool{}}
	}
	return all[name]
}

// world is an observer with an exporter for Prometheus, and a reader for units.
type world struct {
	*testing.T
	hooks    observe.Hooks
	registry *prometheus.Registry
	reader   *sdkmetric.ManualReader
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{T: t, registry: prometheus.NewRegistry(), reader: sdkmetric.NewManualReader()}
	exp, err := exporter.New(exporter.WithRegisterer(w.registry), exporter.WithoutScopeInfo(), exporter.WithoutTargetInfo())
	if err != nil {
		t.Fatal(err)
	}
	o, err := otelobserve.New(otelobserve.Config{
		MeterProvider: sdkmetric.NewMeterProvider(sdkmetric.WithReader(exp), sdkmetric.WithReader(w.reader)), TracerProvider: noop.NewTracerProvider(),
	})
	if err != nil {
		t.Fatal(err)
	}
	w.hooks = o.Hooks()
	return w
}

// collect records names, types, units and labels.
func (w *world) collect(all map[string]*exported) {
	w.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	units := w.units()
	for _, f := range families {
		e := note(all, f.GetName())
		e.kind = map[string]string{"COUNTER": "counter", "GAUGE": "gauge", "HISTOGRAM": "histogram"}[f.GetType().String()]
		unit, ok := units[f.GetHelp()]
		if !ok {
			w.Errorf("%s has a description that no instrument has: %s", f.GetName(), f.GetHelp())
		}
		e.unit = unit
		for _, m := range f.GetMetric() {
			for _, l := range m.GetLabel() {
				e.labels[l.GetName()] = true
			}
		}
	}
}

// units returns the units of instruments, by their description, which is the
// only thing that the exporter does not change.
func (w *world) units() map[string]string {
	w.Helper()
	var rm metricdata.ResourceMetrics
	if err := w.reader.Collect(context.Background(), &rm); err != nil {
		w.Fatal(err)
	}
	units := map[string]string{}
	for _, s := range rm.ScopeMetrics {
		for _, m := range s.Metrics {
			units[m.Description] = m.Unit
		}
	}
	return units
}

// numbers returns for every metric the sum of its counts or measurements, which
// every counting hook increases.
func (w *world) numbers() map[string]float64 {
	w.Helper()
	families, err := w.registry.Gather()
	if err != nil {
		w.Fatal(err)
	}
	sums := map[string]float64{}
	for _, f := range families {
		for _, m := range f.GetMetric() {
			switch {
			case m.GetHistogram() != nil:
				sums[f.GetName()] += float64(m.GetHistogram().GetSampleCount())
			case m.GetGauge() != nil:
				sums[f.GetName()]++ // its existence counts
			default:
				sums[f.GetName()] += m.GetCounter().GetValue()
			}
		}
		if sums[f.GetName()] == 0 {
			delete(sums, f.GetName()) // exported, but nothing counted
		}
	}
	return sums
}

// TestEveryHookCounts: no hook is missing, here or in the observer.
func TestEveryHookCounts(t *testing.T) {
	w := newWorld(t)
	known := calls(&w.hooks)
	hooks := reflect.ValueOf(w.hooks)
	for i := range hooks.NumField() {
		name := hooks.Type().Field(i).Name
		if hooks.Field(i).IsNil() {
			t.Errorf("the observer has no hook %s", name)
		}
		if known[name] == nil {
			t.Errorf("the hook %s is not called by these tests", name)
		}
	}
	counted := map[string]bool{}
	for _, e := range exportedMetrics(t) {
		for hook := range e.hooks {
			counted[hook] = true
		}
	}
	for name := range known {
		if !counted[name] {
			t.Errorf("the hook %s counts nothing", name)
		}
	}
}
