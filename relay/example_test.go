package relay_test

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// A relay runs beside the code that writes, or in a process of its own.
func Example() {
	db, _ := memstore.New(memstore.Config{})
	box, _ := outbox.New(db, outbox.Config{})

	ctx, cancel := context.WithCancel(context.Background())
	r, err := relay.New(db, relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
		fmt.Printf("%s of %s, attempt %d: %s\n", d.Type, d.AggregateID, d.Attempt, d.Payload)
		cancel() // one event is enough here
		return nil
	}), relay.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ev := waybill.NewEvent("OrderPlaced", map[string]int{"total": 9990})
	ev.AggregateType, ev.AggregateID = "order", "o-1"
	err = box.InTx(ctx, func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, ev) })
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(r.Run(ctx))
	// Output:
	// OrderPlaced of o-1, attempt 1: {"total":9990}
	// <nil>
}

// Route selects a sink for each event; two sinks get all events of the second
// route.
func ExampleRoute() {
	named := func(name string) waybill.Sink {
		return relay.SinkFunc(func(_ context.Context, d waybill.Delivery) error {
			fmt.Println(name, "gets", d.Type)
			return nil
		})
	}
	mail, both := named("mail"), relay.FanOut(named("search"), named("audit"))
	sink := relay.Route(func(ev waybill.Event) waybill.Sink {
		if ev.Type == "InvoiceSent" {
			return mail
		}
		return both
	})
	sink.Deliver(context.Background(), []waybill.Delivery{
		{Event: waybill.Event{Type: "InvoiceSent"}}, {Event: waybill.Event{Type: "OrderPlaced"}},
	})
	// Output:
	// mail gets InvoiceSent
	// search gets OrderPlaced
	// audit gets OrderPlaced
}
