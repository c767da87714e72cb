package otelobserve_test

import (
	"context"
	"fmt"
	"testing"
	"time"

	"go.opentelemetry.io/otel/attribute"
	"go.opentelemetry.io/otel/sdk/metric/metricdata"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/observe/otelobserve"
	"github.com/waybillhq/waybill/relay"
)

// sets returns the labels of all series of a metric.
func (p *process) sets(name string) []attribute.Set {
	p.Helper()
	var out []attribute.Set
	switch data := p.metrics()[name].Data.(type) {
	case metricdata.Sum[int64]:
		for _, d := range data.DataPoints {
			out = append(out, d.Attributes)
		}
	case metricdata.Gauge[int64]:
		for _, d := range data.DataPoints {
			out = append(out, d.Attributes)
		}
	case metricdata.Histogram[float64]:
		for _, d := range data.DataPoints {
			out = append(out, d.Attributes)
		}
	case metricdata.Histogram[int64]:
		for _, d := range data.DataPoints {
			out = append(out, d.Attributes)
		}
	}
	if len(out) == 0 {
		p.Fatalf("%s has no series", name)
	}
	return out
}

// deliveryMetrics have the label destination for a relay with several
// destinations.
var deliveryMetrics = []string{
	"waybill.dispatch.success", "waybill.dispatch.failure", "waybill.dispatch.dead",
	"waybill.dispatch.duration", "waybill.publish.latency", "waybill.dispatch.batch",
}

// deliver calls every hook of a delivery.
func deliver(h observe.Hooks, eventType, destination string) {
	d := &waybill.Delivery{Event: waybill.Event{Type: eventType}, Attempt: 1}
	h.Deliver(context.Background(), observe.DeliverInfo{Batch: []waybill.Delivery{*d}, Destination: destination})
	h.Delivered(observe.DeliveredInfo{Delivery: d, Took: time.Millisecond, Age: time.Second, Destination: destination})
	h.Failed(observe.FailedInfo{Delivery: d, Class: waybill.ClassRetry, Err: errBoom, Took: time.Millisecond, Destination: destination})
	h.Died(observe.DiedInfo{Delivery: d, Err: errBoom, Destination: destination})
}

// A relay with one sink has the series that it had before there were
// destinations: no label, not even an empty one.
func TestOneSinkHasNoDestinationLabel(t *testing.T) {
	p := newProcess(t, otelobserve.Config{Relay: "orders"})
	h := p.Hooks()
	deliver(h, "OrderPlaced", "")
	for _, name := range deliveryMetrics {
		for _, set := range p.sets(name) {
			if set.HasValue("destination") {
				t.Errorf("%s has a series with %v", name, set.ToSlice())
			}
		}
	}
	for name, want := range map[string]int{"waybill.dispatch.success": 2, "waybill.dispatch.failure": 3, "waybill.dispatch.duration": 2, "waybill.dispatch.batch": 1} {
		for _, set := range p.sets(name) {
			if n := set.Len(); n != want {
				t.Errorf("%s has a series with %v, want %d labels", name, set.ToSlice(), want)
			}
		}
	}
}

// Each destination has its own series, beginning at 0.
func TestDeliveriesPerDestination(t *testing.T) {
	p := newProcess(t, otelobserve.Config{Relay: "orders"})
	h := p.Hooks()
	d := &waybill.Delivery{Event: waybill.Event{Type: "OrderPlaced"}}
	h.Delivered(observe.DeliveredInfo{Delivery: d, Took: time.Millisecond, Age: 0, Destination: "shipping"})
	deliver(h, "OrderPlaced", "billing")
	deliver(h, "OrderPaid", "billing")
	for _, name := range []string{"waybill.dispatch.success", "waybill.dispatch.dead", "waybill.publish.latency", "waybill.dispatch.batch"} {
		p.want(2, name, "destination", "billing", "relay", "orders")
	}
	p.want(2, "waybill.dispatch.duration", "destination", "billing", "outcome", "success")
	p.want(2, "waybill.dispatch.duration", "destination", "billing", "outcome", "failure")
	p.want(1, "waybill.dispatch.failure", "destination", "billing", "event_type", "OrderPaid", "class", "retry")
	p.want(0, "waybill.dispatch.failure", "destination", "billing", "event_type", "OrderPaid", "class", "unavailable")
	p.want(1, "waybill.dispatch.success", "destination", "shipping")
	p.want(0, "waybill.dispatch.dead", "destination", "shipping", "event_type", "OrderPlaced")
	p.want(0, "waybill.dispatch.failure", "destination", "shipping", "event_type", "OrderPlaced")
	p.want(3, "waybill.dispatch.success")
}

// The number of series has a bound for any number of destinations and event
// types, and no measurement is lost.
func TestDestinationLabelsAreLimited(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	h := p.Hooks()
	for to := range 40 {
		for eventType := range 40 {
			deliver(h, fmt.Sprint("T", eventType), fmt.Sprint("d", to))
		}
		h.Destinations(observe.DestinationsInfo{Destinations: []observe.Destination{{Name: fmt.Sprint("d", to), Dead: 1}}})
	}
	for _, name := range append(deliveryMetrics, "waybill.destination.backlog", "waybill.destination.behind") {
		seen := map[string]bool{}
		for _, set := range p.sets(name) {
			v, _ := set.Value("destination")
			seen[v.AsString()] = true
		}
		if len(seen) != 32 || !seen["other"] {
			t.Errorf("%s has %d destinations, want 31 and other: %v", name, len(seen), seen)
		}
	}
	// 200 pairs of a destination and a type, and for each destination the rest.
	for name, most := range map[string]int{"waybill.dispatch.success": 200 + 32, "waybill.dispatch.failure": 3*200 + 32} {
		if n := len(p.sets(name)); n > most {
			t.Errorf("%s has %d series, want at most %d", name, n, most)
		}
	}
	p.want(1600, "waybill.dispatch.success")
	p.want(1600, "waybill.dispatch.failure")
	p.want(40, "waybill.dispatch.success", "destination", "d4")
	p.want(40, "waybill.dispatch.success", "destination", "d30", "event_type", "other")
	p.want(360, "waybill.dispatch.success", "destination", "other")
}

// Unrouted events are counted by type, and the types are limited.
func TestUnroutedEvents(t *testing.T) {
	p := newProcess(t, otelobserve.Config{Labels: 2})
	h := p.Hooks()
	for _, eventType := range []string{"A", "B", "A", "C", "D"} {
		h.Unrouted(observe.UnroutedInfo{Event: &waybill.Event{Type: eventType}})
	}
	p.want(2, "waybill.unrouted", "event_type", "A")
	p.want(2, "waybill.unrouted", "event_type", "other")
	p.want(5, "waybill.unrouted")
}

// The gauges have what was counted. A destination that was removed has no
// events, and is neither behind nor paused.
func TestStateOfDestinations(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	h := p.Hooks()
	billing := observe.Destination{
		Name: "billing", Paused: true, PausedFor: time.Minute, Behind: 3,
		Ready: 5, Failed: 4, Scheduled: 2, Dead: 1, Holding: 6, MaxAttempts: 7, Oldest: time.Hour,
	}
	h.Destinations(observe.DestinationsInfo{Destinations: []observe.Destination{billing, {Name: "shipping", Paused: true}}})
	gauges := map[string]float64{
		"backlog.oldest": 3600, "behind": 3, "holding": 6, "attempts.highest": 7, "pause": 60,
	}
	states := map[string]float64{"ready": 5, "failed": 4, "scheduled": 2, "dead": 1}
	for name, want := range gauges {
		p.want(want, "waybill.destination."+name, "destination", "billing")
	}
	for state, want := range states {
		p.want(want, "waybill.destination.backlog", "destination", "billing", "state", state)
		p.want(0, "waybill.destination.backlog", "destination", "shipping", "state", state)
	}
	p.want(0, "waybill.destination.behind", "destination", "shipping")
	if p.value("waybill.destination.pause", "destination", "shipping") <= 0 {
		t.Error("a destination that was paused just now is not paused")
	}

	h.Destinations(observe.DestinationsInfo{Destinations: []observe.Destination{{Name: "shipping"}}})
	for name := range gauges {
		p.want(0, "waybill.destination."+name, "destination", "billing")
	}
	for state := range states {
		p.want(0, "waybill.destination.backlog", "destination", "billing", "state", state)
	}
	p.want(0, "waybill.destination.pause", "destination", "shipping")
}

// Deliveries to a destination allocate as little as those to one sink.
func TestMeasuringADestinationAllocatesNothing(t *testing.T) {
	p := newProcess(t, otelobserve.Config{Relay: "orders"})
	h := p.Hooks()
	d := &waybill.Delivery{Event: placed("a")}
	for name, call := range map[string]func(){
		"Delivered": func() {
			h.Delivered(observe.DeliveredInfo{Delivery: d, Took: time.Millisecond, Age: time.Millisecond, Destination: "billing"})
		},
		"Failed": func() {
			h.Failed(observe.FailedInfo{Delivery: d, Class: waybill.ClassRetry, Err: errBoom, Took: time.Millisecond, Destination: "billing"})
		},
		"Died":     func() { h.Died(observe.DiedInfo{Delivery: d, Err: errBoom, Destination: "billing"}) },
		"Unrouted": func() { h.Unrouted(observe.UnroutedInfo{Event: &d.Event}) },
	} {
		if n := testing.AllocsPerRun(200, call); n != 0 {
			t.Errorf("%s: %v allocations", name, n)
		}
	}
}

// The spans of a delivery name the destination beside the topic. With one sink
// there is no such attribute.
func TestSpansNameTheDestination(t *testing.T) {
	for _, sampled := range []string{"1", "11"} {
		for _, destination := range []string{"billing", ""} {
			p := newProcess(t, otelobserve.Config{})
			_, after := p.Hooks().Deliver(t.Context(), observe.DeliverInfo{Batch: batch(sampled), Destination: destination})
			after(observe.DeliverDoneInfo{Results: make([]error, len(sampled))})
			for _, s := range p.spans.Ended() {
				if got := attr(s, "waybill.destination"); got != destination {
					t.Errorf("%s of a batch of %d: destination %q, want %q", s.Name(), len(sampled), got, destination)
				}
			}
			if s := p.named("send OrderPlaced"); len(s) != len(sampled) || attr(s[0], "messaging.destination.name") != "OrderPlaced" {
				t.Errorf("%d spans, want %d with the topic", len(s), len(sampled))
			}
		}
	}
}

// A relay with two destinations, of which one refuses an event for good: the
// counters and the spans say at which destination what happened.
func TestARelayWithDestinations(t *testing.T) {
	p := newProcess(t, otelobserve.Config{})
	s := p.shop()
	r, err := relay.NewTo(s.db, relay.Config{Observe: p.Hooks()},
		relay.Destination{Name: "billing", Types: []string{"OrderPlaced"}, Sink: relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil })},
		relay.Destination{Name: "partner", Types: []string{"OrderPlaced"}, Sink: relay.SinkFunc(func(context.Context, waybill.Delivery) error {
			return waybill.Permanent(errBoom)
		})},
	)
	if err != nil {
		t.Fatal(err)
	}
	s.run(r)
	other := placed("b")
	other.Type = "OrderArchived"
	s.write(t.Context(), placed("a"), other)
	p.await("the event is dead at partner", func() bool { return p.value("waybill.dispatch.dead", "destination", "partner") == 1 })
	p.await("the other event is unrouted", func() bool { return p.value("waybill.unrouted", "event_type", "OrderArchived") == 1 })
	p.await("the event is delivered to billing", func() bool { return p.value("waybill.dispatch.success", "destination", "billing") == 1 })
	p.want(1, "waybill.dispatch.success")
	p.want(0, "waybill.dispatch.dead", "destination", "billing")
	seen := map[string]bool{}
	for _, span := range p.named("send OrderPlaced") {
		seen[attr(span, "waybill.destination")] = true
	}
	if len(seen) != 2 || !seen["billing"] || !seen["partner"] {
		t.Errorf("the spans have the destinations %v", seen)
	}
}
