package natsbroker_test

import (
	"context"
	"fmt"
	"os"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/broker/natsembed"
	"github.com/waybillhq/waybill/handler"
)

// A server inside the process, a published event, and a consumer. In a program,
// a relay calls the sink, and the consumer is an inbox group.
func Example() {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	dir, err := os.MkdirTemp("", "example")
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = os.RemoveAll(dir) }()
	server, err := natsembed.Start(ctx, natsembed.Config{Dir: dir})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer server.Close()
	b, err := natsbroker.Open(ctx, server.URL(), natsbroker.Config{Stream: "orders", Subjects: []string{"orders.>"}, Create: true})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = b.Close() }()
	sink, err := b.Sink(natsbroker.SinkConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ev := waybill.NewEvent("OrderPlaced", map[string]int{"total": 9990})
	ev.Topic, ev.AggregateType, ev.AggregateID = "orders.placed", "order", "42"
	ev.ID = waybill.NewID()
	fmt.Println(sink.Deliver(ctx, []waybill.Delivery{{Event: ev, Attempt: 1}}))

	src, err := b.Source(natsbroker.SourceConfig{Durable: "billing"})
	if err != nil {
		fmt.Println(err)
		return
	}
	mux := handler.NewMux()
	mux.Handle("order", "OrderPlaced", func(_ context.Context, ev waybill.Event) error {
		fmt.Println(ev.Type, ev.AggregateID, string(ev.Payload))
		cancel()
		return nil
	})
	fmt.Println(src.Run(ctx, mux))
	// Output:
	// [<nil>]
	// OrderPlaced 42 {"total":9990}
	// <nil>
}
