package kafkabroker_test

import (
	"context"
	"fmt"

	"github.com/twmb/franz-go/pkg/kfake"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker/kafkabroker"
)

// A sink publishes to a cluster; this one runs inside the process.
func ExampleBroker_Sink() {
	ctx := context.Background()
	cluster, err := kfake.NewCluster(kfake.NumBrokers(1), kfake.SeedTopics(3, "orders"))
	if err != nil {
		fmt.Println(err)
		return
	}
	defer cluster.Close()

	b, err := kafkabroker.Open(ctx, "kafka://"+cluster.ListenAddrs()[0], kafkabroker.Config{})
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
	// Output: [<nil>]
}
