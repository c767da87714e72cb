package handler

import (
	"context"
	"errors"
	"fmt"
	"sync"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/panics"
)

// Sink is anything that takes deliveries; a relay's Sink is one.
type Sink interface {
	Deliver(ctx context.Context, batch []waybill.Delivery) []error
}

// Wrap puts middleware around a sink that takes batches: each event passes through it on its own, and those that arrive at its end
// are handed to the sink together. Middleware runs on a goroutine per event.
func Wrap(s Sink, mw ...func(Func) Func) Sink {
	w := &wrapped{sink: s, wrap: mw}
	if _, serial := s.(interface{ Serial() }); serial {
		return serialWrapped{w}
	}
	return w
}

// serialWrapped is a sink in middleware that works through its batches one event after another.
type serialWrapped struct{ *wrapped }

// Serial says so to a relay.
func (serialWrapped) Serial() {}

type wrapped struct {
	sink Sink
	wrap []func(Func) Func
}

// arrival is an event that has passed the middleware, and where its result goes.
type arrival struct {
	index  int
	result chan error
}

// Deliver lets all events run up to the sink, hands over those that got there, and gives each its result.
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

// handOver delivers what has arrived, in the batch's order.
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

var errTwice = errors.New("handler: middleware called the next one twice")

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

// Destination passes on what the sink says about its destinations.
func (w *wrapped) Destination(ev *waybill.Event) string {
	if d, ok := w.sink.(interface {
		Destination(ev *waybill.Event) string
	}); ok {
		return d.Destination(ev)
	}
	return ""
}
