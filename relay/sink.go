package relay

import (
	"context"
	"fmt"
	"reflect"
	"strconv"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/panics"
)

// Sink is where events go.
//
// Deliver hands over a batch and returns one result per delivery, in the same order: nil for one that has arrived, an error
// otherwise; see [waybill.Classify] for what errors mean. A slice of another length settles nothing. It is called from
// several goroutines. Two events of one aggregate are never in the same batch, nor in two calls at a time, unless the sink
// is an [OrderedSink]. The context ends when the relay's lease does, or when the relay has waited long enough for its end;
// what a sink returns then is not held against the events. A sink must not keep the batch.
type Sink interface {
	Deliver(ctx context.Context, batch []waybill.Delivery) []error
}

// OrderedSink is a sink that may get several events of one aggregate in one batch, in their order: when one of them fails
// it does not deliver the following ones of that aggregate. Whatever it returns for those is not looked at.
type OrderedSink interface {
	Sink
	StopsAtFailure()
}

// SerialSink is a sink that works through a batch one event after another. It gets batches only as large as keeps all
// workers busy.
type SerialSink interface {
	Sink
	Serial()
}

// DestinationSink is a sink with several destinations, each of which may be down by itself: when a delivery fails with
// [waybill.Unavailable], events of the same destination wait, and no others. A sink that does not say has one.
type DestinationSink interface {
	Sink
	// Destination names where an event goes. It is called often, from one goroutine, and must not block.
	Destination(ev *waybill.Event) string
}

// SinkFunc is a sink that takes one event at a time. In its context [waybill.DeliveryFrom] finds the delivery, and events
// that are written take their origin from it. A panic is a failed attempt of that event.
type SinkFunc func(ctx context.Context, d waybill.Delivery) error

// Deliver implements [Sink].
func (f SinkFunc) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	for i := range batch {
		results[i] = f.one(ctx, batch[i])
	}
	return results
}

// Serial implements [SerialSink].
func (SinkFunc) Serial() {}

func (f SinkFunc) one(ctx context.Context, d waybill.Delivery) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panics.Recovered(v)
		}
	}()
	if ctx.Err() != nil {
		return context.Cause(ctx)
	}
	return f(waybill.ContextWithDelivery(ctx, d), d)
}

// Route hands every event to the sink that pick chooses for it. pick is called more than once per event and must give the
// same answer; an event for which it returns nil is dead. Each of the sinks is a destination of its own, or several if it
// says so.
func Route(pick func(waybill.Event) Sink) Sink {
	return &route{pick: pick, names: make(map[any]string)}
}

type route struct {
	pick  func(waybill.Event) Sink
	names map[any]string // guarded by the one goroutine that calls Destination
}

func (r *route) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	errs := make([]error, len(batch))
	parts := make(map[any]*part)
	var order []*part
	for i := range batch {
		s := r.pick(batch[i].Event)
		if s == nil {
			errs[i] = waybill.Permanent(fmt.Errorf("no route: %w", waybill.ErrNoHandler))
			continue
		}
		var key any = i // two functions may share their code and not be the same
		if reflect.ValueOf(s).Comparable() {
			key = s
		}
		p := parts[key]
		if p == nil {
			p = &part{sink: s}
			parts[key] = p
			order = append(order, p)
		}
		p.index = append(p.index, i)
		p.batch = append(p.batch, batch[i])
	}
	for _, p := range order {
		results := safely(ctx, p.sink, p.batch)
		for i, at := range p.index {
			if len(results) != len(p.batch) {
				errs[at] = waybill.Unavailable(errResults(len(results), len(p.batch)))
			} else {
				errs[at] = results[i]
			}
		}
	}
	return errs
}

// part is what one sink gets of a batch.
type part struct {
	sink  Sink
	index []int
	batch []waybill.Delivery
}

// Serial implements [SerialSink]: what a route leads to is not known beforehand, and one slow sink must not keep a large
// batch of the others waiting.
func (*route) Serial() {}

// Destination implements [DestinationSink].
func (r *route) Destination(ev *waybill.Event) string {
	s := r.pick(*ev)
	if s == nil {
		return ""
	}
	key := identity(s)
	name, ok := r.names[key]
	if !ok {
		name = "route " + strconv.Itoa(len(r.names)+1)
		r.names[key] = name
	}
	if d, ok := s.(DestinationSink); ok {
		return name + " " + d.Destination(ev)
	}
	return name
}

// identity returns what tells destinations apart: the sink itself where it can be compared; for a function, its code, which
// is good enough for saying what is down.
func identity(s Sink) any {
	v := reflect.ValueOf(s)
	if v.Comparable() {
		return s
	}
	if v.Kind() == reflect.Func {
		return v.Pointer()
	}
	return v.Type()
}

// safely calls a sink and turns its panic into a failed attempt of the whole batch.
func safely(ctx context.Context, s Sink, batch []waybill.Delivery) (results []error) {
	defer func() {
		if v := recover(); v != nil {
			err := panics.Recovered(v)
			results = make([]error, len(batch))
			for i := range results {
				results[i] = err
			}
		}
	}()
	return s.Deliver(ctx, batch)
}

func errResults(got, want int) error {
	return fmt.Errorf("the sink returned %d results for %d deliveries", got, want)
}
