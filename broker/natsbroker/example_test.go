package natsbroker_test

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/natsbroker"
	"github.com/waybillhq/waybill/handler"
)

// A published event, and a consumer. In a program, a relay calls the sink, and
// the consumer is an inbox group. Package natsembed runs a server inside the
// process.
func Example() {
	ctx, cancel := context.WithTimeout(context.Background(), time.Minute)
	defer cancel()
	b, err := natsbroker.Open(ctx, "nats://localhost:4222", natsbroker.Config{Stream: "orders", Subjects: []string{"orders.>"}, Create: true})
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
}
