package inbox_test

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/store/memstore"
)

type placed struct {
	Total int `json:"total"`
}

var orderPlaced = waybill.Define[placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

// An event that is delivered twice is applied once.
func ExampleGroup_Consume() {
	ctx := context.Background()
	db, _ := memstore.New(memstore.Config{})
	in, _ := inbox.New(db, inbox.Config{})
	inventory := in.MustGroup("INVENTORY", inbox.Options{})

	ev := orderPlaced.New("A-1", placed{Total: 9990})
	ev.ID = waybill.NewID()
	for range 2 {
		res, err := inventory.Consume(ctx, ev, func(context.Context, *memstore.Tx, waybill.Event) error {
			fmt.Println("one item less")
			return nil
		})
		fmt.Println(res.Replayed, err)
	}
	// Output:
	// one item less
	// false <nil>
	// true <nil>
}

// Groups with handlers are sinks for a relay, or for a bus without a relay.
func ExampleBus() {
	ctx := context.Background()
	db, _ := memstore.New(memstore.Config{})
	in, _ := inbox.New(db, inbox.Config{})
	inventory, billing := in.MustGroup("INVENTORY", inbox.Options{}), in.MustGroup("BILLING", inbox.Options{})
	inbox.On(inventory, orderPlaced, func(_ context.Context, _ *memstore.Tx, ev waybill.Event, _ placed) error {
		fmt.Println("one item less for", ev.AggregateID)
		return nil
	})
	inbox.On(billing, orderPlaced, func(_ context.Context, _ *memstore.Tx, ev waybill.Event, p placed) error {
		fmt.Println("an invoice over", p.Total, "for", ev.AggregateID)
		return nil
	})
	bus := inbox.NewBus(inventory, billing)
	ev := orderPlaced.New("A-1", placed{Total: 9990})
	ev.ID = waybill.NewID()
	fmt.Println(bus.Publish(ctx, ev))
	fmt.Println(bus.Publish(ctx, ev))
	// Output:
	// one item less for A-1
	// an invoice over 9990 for A-1
	// <nil>
	// <nil>
}
