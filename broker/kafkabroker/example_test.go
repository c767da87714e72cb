package kafkabroker_test

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/kafkabroker"
)

// A sink publishes to a cluster.
func ExampleBroker_Sink() {
	ctx := context.Background()
	b, err := kafkabroker.Open(ctx, "kafka://localhost:9092", kafkabroker.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = b.Close() }()
	sink, err := b.Sink(kafkabroker.SinkConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	ev := waybill.NewEvent("OrderPlaced", map[string]int{"total": 7})
	ev.Topic, ev.AggregateType, ev.AggregateID = "orders", "order", "A-1"
	// The relay calls Deliver with events from the outbox.
	ev.ID = waybill.NewID()
	fmt.Println(sink.Deliver(ctx, []waybill.Delivery{{Event: ev, Attempt: 1}}))
}
