package relay

import (
	"context"
	"fmt"
	"reflect"
	"strconv"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/panics"
)

// OrderedSink is a sink that accepts several events of one aggregate in one
// batch, in their order. When one of them fails, the sink does not deliver the
// following events of that aggregate. The relay ignores the sink's results for
// those events.
type OrderedSink interface {
	waybill.Sink
	StopsAtFailure()
}

// SerialSink is a sink that delivers the events of a batch one after another.
// The relay sizes its batches so that all workers stay busy.
type SerialSink interface {
	waybill.Sink
	Serial()
}

// DestinationSink is a sink with several destinations, each of which can be
// unavailable independently: when a delivery fails with [waybill.Unavailable],
// the events of the same destination wait, and no others. A sink that is not a
// DestinationSink has one destination.
type DestinationSink interface {
	waybill.Sink
	// Destination names the destination of an event. It is called often, from
	// one goroutine, and must not block.
	Destination(ev *waybill.Event) string
}

// SinkFunc is a sink that receives one event at a time. [waybill.DeliveryFrom]
// returns the delivery from the context of the call, and events written with
// that context take their origin from it. A panic is a failed attempt of that
// event.
type SinkFunc func(ctx context.Context, d waybill.Delivery) error

// Deliver implements [waybill.Sink].
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

// Route delivers every event to the sink that pick selects. Pick is called more
// than once per event and must return the same sink each time; an event for
// which pick returns nil becomes a dead letter. Each sink is a destination of
// its own, or several if it is a [DestinationSink].
func Route(pick func(waybill.Event) waybill.Sink) waybill.Sink {
	return &route{pick: pick, names: make(map[any]string)}
}

type route struct {
	pick  func(waybill.Event) waybill.Sink
	names map[any]string // used only by the goroutine that calls Destination
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
		var key any = i // two different functions may share their code
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

// part is the part of a batch that one sink receives.
type part struct {
	sink  waybill.Sink
	index []int
	batch []waybill.Delivery
}

// Serial implements [SerialSink]: the sinks of a route are not known in
// advance, and one slow sink must not delay a large batch of the others.
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

// identity returns a value that distinguishes destinations: the sink itself if
// it is comparable; for a function, its code pointer, which is good enough to
// name an unavailable destination.
func identity(s waybill.Sink) any {
	v := reflect.ValueOf(s)
	if v.Comparable() {
		return s
	}
	if v.Kind() == reflect.Func {
		return v.Pointer()
	}
	return v.Type()
}

// safely calls a sink and turns a panic into a failed attempt of the whole
// batch.
func safely(ctx context.Context, s waybill.Sink, batch []waybill.Delivery) (results []error) {
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
