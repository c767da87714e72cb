package membroker_test

import (
	"context"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/membroker"
	"github.com/waybillhq/waybill/handler"
)

// A sink, a source, and a broker that loses the first acknowledgment.
func Example() {
	b, err := membroker.New(membroker.Config{AckWait: 10 * time.Millisecond})
	if err != nil {
		fmt.Println(err)
		return
	}
	b.SetFaults(membroker.Faults{DropAck: 1})
	src, err := b.Source(membroker.SourceConfig{Durable: "billing"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ev := waybill.NewEvent("OrderPlaced", map[string]int{"total": 9990})
	ev.AggregateType, ev.AggregateID = "order", "42"
	ev.ID = waybill.NewID()
	sink, err := b.Sink(membroker.SinkConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sink.Deliver(context.Background(), []waybill.Delivery{{Event: ev, Attempt: 1}}))

	ctx, cancel := context.WithCancel(context.Background())
	mux := handler.NewMux()
	times := 0
	mux.Handle("order", "OrderPlaced", func(_ context.Context, ev waybill.Event) error {
		fmt.Println(ev.Type, ev.AggregateID, string(ev.Payload))
		if times++; times == 2 {
			cancel()
		}
		return nil
	})
	fmt.Println(src.Run(ctx, mux))
	// Output:
	// [<nil>]
	// OrderPlaced 42 {"total":9990}
	// OrderPlaced 42 {"total":9990}
	// <nil>
}
