package otelobserve

import (
	"maps"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"go.opentelemetry.io/otel/attribute"

	"github.com/waybillhq/waybill/observe"
)

// maxDestinations is the maximum number of destinations of an outbox.
const maxDestinations = 31

// dispatch are the label combinations of the metrics of deliveries.
type dispatch struct {
	plain, eventType, eventTypeClass, outcome *family
}

// deliveries finds the families of deliveries to a destination. Like a family,
// it replaces an immutable map.
type deliveries struct {
	one   dispatch // of a relay with one sink: without a label for it
	fixed []attribute.KeyValue
	limit int
	// eventTypes and eventTypeClasses are shared by all destinations: without
	// them, the number of series could be the product of both limits, which is
	// more than the SDK keeps.
	eventTypes, eventTypeClasses *budget

	known atomic.Pointer[map[string]*dispatch]
	mu    sync.Mutex // held to replace known
	rest  *dispatch
}

func newDeliveries(fixed []attribute.KeyValue, limit int, one dispatch) *deliveries {
	d := &deliveries{one: one, fixed: fixed, limit: limit, eventTypes: newBudget(limit), eventTypeClasses: newBudget(limit)}
	d.known.Store(&map[string]*dispatch{})
	d.rest = d.make(overflow)
	return d
}

// to returns the families of a destination; "" is that of a relay with one
// sink.
func (d *deliveries) to(name string) *dispatch {
	if name == "" {
		return &d.one
	}
	if s, ok := (*d.known.Load())[name]; ok {
		return s
	}
	d.mu.Lock()
	defer d.mu.Unlock()
	known := *d.known.Load()
	if s, ok := known[name]; ok { // another goroutine added it before the lock
		return s
	}
	if len(known) >= min(d.limit, maxDestinations) {
		return d.rest
	}
	name = strings.Clone(name)
	s := d.make(name)
	known = maps.Clone(known)
	known[name] = s
	d.known.Store(&known)
	return s
}

func (d *deliveries) make(name string) *dispatch {
	fixed := append(slices.Clone(d.fixed), attribute.String("destination", name))
	of := func(shared *budget, names ...string) *family {
		f := newFamily(fixed, d.limit, names...)
		f.shared = shared
		return f
	}
	return &dispatch{
		plain: of(nil), eventType: of(d.eventTypes, "event_type"), eventTypeClass: of(d.eventTypeClasses, "event_type", "class"),
		outcome: of(nil, "outcome"),
	}
}

// budget is a number of label values that several families share.
type budget struct{ left atomic.Int64 }

func newBudget(n int) *budget {
	b := &budget{}
	b.left.Store(int64(n))
	return b
}

// take reports whether there is room for another value, and takes it. There is
// always room without a budget.
func (b *budget) take() bool { return b == nil || b.left.Add(-1) >= 0 }

// destinations returns a hook that sets the gauges of destinations. One that
// was reported before and is missing from a later report was removed: without a
// 0 its last values would stay.
func (o *Observer) destinations() func(observe.DestinationsInfo) {
	var mu sync.Mutex
	reported := map[string]bool{}
	return func(info observe.DestinationsInfo) {
		mu.Lock()
		defer mu.Unlock()
		for name := range reported {
			if !slices.ContainsFunc(info.Destinations, func(d observe.Destination) bool { return d.Name == name }) {
				o.destination(observe.Destination{Name: name})
				delete(reported, name)
			}
		}
		for _, d := range info.Destinations {
			reported[d.Name] = true
			o.destination(d)
		}
	}
}

func (o *Observer) destination(d observe.Destination) {
	for _, count := range []struct {
		state string
		n     int64
	}{{"ready", d.Ready}, {"failed", d.Failed}, {"scheduled", d.Scheduled}, {"dead", d.Dead}} {
		o.set(o.in.destinationBacklog, count.n, o.series.destinationState.get(d.Name, count.state))
	}
	s := o.series.destination.get(d.Name)
	o.in.destinationBacklogOldest.Record(background, d.Oldest.Seconds(), s.record...)
	o.set(o.in.destinationBehind, int64(d.Behind), s)
	o.set(o.in.destinationHolding, d.Holding, s)
	o.set(o.in.destinationAttemptsHighest, int64(d.MaxAttempts), s)
	o.in.destinationPause.Record(background, pause(d).Seconds(), s.record...)
}

// pause is more than 0 while a destination is paused, even if it was paused
// just before the count.
func pause(d observe.Destination) time.Duration {
	if !d.Paused {
		return 0
	}
	return max(d.PausedFor, time.Millisecond)
}
