package handler

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/panics"
)

// Wrap adds middleware to a sink that receives batches: each event passes
// through the middleware on its own, and the events that reach its end are
// passed to the sink together. The middleware runs on one goroutine per event.
func Wrap(s waybill.Sink, mw ...func(Func) Func) waybill.Sink {
	w := &wrapped{sink: s, wrap: mw}
	if _, serial := s.(interface{ Serial() }); serial {
		return serialWrapped{w}
	}
	return w
}

// serialWrapped is a wrapped sink that handles the events of a batch one after
// another.
type serialWrapped struct{ *wrapped }

// Serial marks the sink as serial for a relay.
func (serialWrapped) Serial() {}

type wrapped struct {
	sink waybill.Sink
	wrap []func(Func) Func
}

// arrival is an event that has passed the middleware, and the channel for its
// result.
type arrival struct {
	index  int
	result chan error
}

// Deliver runs the middleware of all events up to the sink, passes the events
// that reached it to the sink, and returns the result of each event.
func (w *wrapped) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	results := make([]error, len(batch))
	arrived := make(chan arrival, len(batch))
	ended := make(chan int, len(batch))
	var group sync.WaitGroup
	for i := range batch {
		group.Go(func() {
			results[i] = w.one(ctx, &batch[i], i, arrived)
			ended <- i
		})
	}
	var there []arrival
	for range batch {
		select {
		case a := <-arrived:
			there = append(there, a)
		case <-ended:
		}
	}
	w.handOver(ctx, batch, there)
	group.Wait()
	return results
}

// handOver delivers the events that have arrived, in the order of the batch.
func (w *wrapped) handOver(ctx context.Context, batch []waybill.Delivery, there []arrival) {
	if len(there) == 0 {
		return
	}
	byIndex := make(map[int]arrival, len(there))
	for _, a := range there {
		byIndex[a.index] = a
	}
	var part []waybill.Delivery
	var order []arrival
	for i := range batch {
		if a, ok := byIndex[i]; ok {
			part, order = append(part, batch[i]), append(order, a)
		}
	}
	errs := w.deliver(ctx, part)
	for i, a := range order {
		if len(errs) != len(part) {
			a.result <- waybill.Unavailable(fmt.Errorf("handler: the sink returned %d results for %d deliveries", len(errs), len(part)))
			continue
		}
		a.result <- errs[i]
	}
}

func (w *wrapped) deliver(ctx context.Context, part []waybill.Delivery) (errs []error) {
	defer func() {
		if v := recover(); v != nil {
			err := panics.Recovered(v)
			errs = make([]error, len(part))
			for i := range errs {
				errs[i] = err
			}
		}
	}()
	return w.sink.Deliver(ctx, part)
}

var errTwice = errors.New("handler: middleware called the next function twice")

// one runs the middleware of one event.
func (w *wrapped) one(ctx context.Context, d *waybill.Delivery, index int, arrived chan<- arrival) (err error) {
	defer func() {
		if v := recover(); v != nil {
			err = panics.Recovered(v)
		}
	}()
	called := false
	end := func(context.Context, waybill.Event) error {
		if called {
			return errTwice
		}
		called = true
		a := arrival{index: index, result: make(chan error, 1)}
		arrived <- a
		return <-a.result
	}
	return chain(end, w.wrap)(waybill.ContextWithDelivery(ctx, *d), d.Event)
}

// Destination returns the destination that the sink reports.
func (w *wrapped) Destination(ev *waybill.Event) string {
	if d, ok := w.sink.(interface {
		Destination(ev *waybill.Event) string
	}); ok {
		return d.Destination(ev)
	}
	return ""
}
