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

// sinks are the destinations of deliveries: none for a relay with one sink, and
// one of several.
var sinks = []string{"", "billing"}

// calls calls every hook, with all its variants.
func calls(h *observe.Hooks) map[string]func() {
	ctx, boom := context.Background(), errors.New("boom")
	ev := eventfill.Defaults(waybill.NewEvent("OrderPlaced", 1))
	d := &waybill.Delivery{Event: ev, Attempt: 1}
	return map[string]func(){
		"Write":        func() { h.Write(ctx, observe.WriteInfo{Event: ev}) },
		"HotEnqueued":  func() { h.HotEnqueued(observe.HotEnqueuedInfo{Events: 1}) },
		"HotDropped":   func() { h.HotDropped(observe.HotDroppedInfo{Events: 1, Reason: observe.DropQueueFull}) },
		"ColdEnqueued": func() { h.ColdEnqueued(observe.ColdEnqueuedInfo{Events: 1}) },
		"QueueDepths":  func() { h.QueueDepths(observe.QueueDepthsInfo{Hot: 1, Cold: 1}) },
		"Deliver": func() {
			for _, to := range sinks {
				if _, after := h.Deliver(ctx, observe.DeliverInfo{Batch: []waybill.Delivery{*d}, Destination: to}); after != nil {
					after(observe.DeliverDoneInfo{Results: []error{nil}})
				}
			}
		},
		"Delivered": func() {
			for _, to := range sinks {
				h.Delivered(observe.DeliveredInfo{Delivery: d, Took: time.Second, Age: time.Second, Destination: to})
			}
		},
		"Failed": func() {
			for _, to := range sinks {
				h.Failed(observe.FailedInfo{Delivery: d, Class: waybill.ClassRetry, Err: boom, Took: time.Second, Destination: to})
			}
		},
		"Died": func() {
			for _, to := range sinks {
				h.Died(observe.DiedInfo{Delivery: d, Err: boom, Destination: to})
			}
		},
		"Unrouted": func() { h.Unrouted(observe.UnroutedInfo{Event: &ev}) },
		"Paused":   func() { h.Paused(observe.PausedInfo{Destination: "kafka", Paused: true}) },
		"Read": func() {
			h.Read(observe.ReadInfo{Kind: "fast", Rows: 1, Took: time.Second, Err: nil})
			h.Read(observe.ReadInfo{Kind: "fast", Rows: 0, Took: time.Second, Err: boom})
		},
		"Settled": func() {
			h.Settled(observe.SettledInfo{Events: 1, Took: time.Second, Err: nil})
			h.Settled(observe.SettledInfo{Events: 1, Took: time.Second, Err: boom})
		},
		"Lanes": func() { h.Lanes(observe.LanesInfo{Owned: 1, Total: 32}) },
		"Lag":   func() { h.Lag(observe.LagInfo{Oldest: time.Second}) },
		"Backlog": func() {
			h.Backlog(observe.BacklogInfo{Ready: 1, Oldest: time.Second})
			h.Backlog(observe.BacklogInfo{Ready: 1, Oldest: time.Second, Captured: true})
		},
		"Destinations": func() {
			h.Destinations(observe.DestinationsInfo{Destinations: []observe.Destination{{Name: "billing", Paused: true, Behind: 1, Ready: 1}}})
		},
		"Purged": func() { h.Purged(observe.PurgedInfo{Kind: "dead", Rows: 1}) },
		"Consumed": func() {
			h.Consumed(observe.ConsumedInfo{Group: "INVENTORY", Event: &ev, Took: time.Second, Replayed: false})
			h.Consumed(observe.ConsumedInfo{Group: "INVENTORY", Event: &ev, Took: time.Second, Replayed: true})
		},
		"ConsumeFailed": func() {
			h.ConsumeFailed(observe.ConsumeFailedInfo{Group: "INVENTORY", Event: &ev, Err: boom, Took: time.Second})
		},
		"ConsumeDied": func() { h.ConsumeDied(observe.ConsumeDiedInfo{Group: "INVENTORY", Event: &ev, Err: boom}) },
		"Groups":      func() { h.Groups(observe.GroupsInfo{Groups: []observe.Group{{Group: "INVENTORY", Failed: 1}}}) },
		"KeyRan":      func() { h.KeyRan(observe.KeyRanInfo{Operation: "pay", Took: time.Second, Err: nil}) },
		"KeyRepeated": func() { h.KeyRepeated(observe.KeyRepeatedInfo{Operation: "pay"}) },
		"KeyRefused":  func() { h.KeyRefused(observe.KeyRefusedInfo{Operation: "pay", Err: waybill.ErrConflict}) },
		"KeyUnkept":   func() { h.KeyUnkept(observe.KeyUnkeptInfo{Operation: "pay", Err: boom}) },
		"Keys":        func() { h.Keys(observe.KeysInfo{Processing: 1}) },
		"Received": func() {
			h.Received(observe.ReceivedInfo{Source: "orders", Class: waybill.ClassDone, Redelivered: false, Took: time.Second})
		},
		"DeadLettered": func() { h.DeadLettered(observe.DeadLetteredInfo{Source: "orders", Err: boom}) },
		"Reconciled": func() {
			h.Reconciled(observe.ReconciledInfo{Job: "payout", Found: 3, Sent: 1, Failed: 1, Skipped: 1, Took: time.Second})
		},
		"Replayed":  func() { h.Replayed(observe.ReplayedInfo{Events: 1}) },
		"Discarded": func() { h.Discarded(observe.DiscardedInfo{Events: 1}) },
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
