package watermillbridge_test

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/broker/membroker"
	"github.com/waybillhq/waybill/broker/watermillbridge"
)

func ExampleNewSubscriber() {
	b, err := membroker.New(membroker.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	sub, err := watermillbridge.NewSubscriber(func(topic string) (broker.Source, error) {
		return b.Source(membroker.SourceConfig{Durable: "billing", Topics: []string{topic}})
	}, watermillbridge.SubscriberConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	defer func() { _ = sub.Close() }()
	messages, err := sub.Subscribe(context.Background(), "orders")
	if err != nil {
		fmt.Println(err)
		return
	}
	ev := waybill.Event{Type: "OrderPlaced", Topic: "orders", Payload: []byte(`{"total":9990}`)}
	ev.ID = waybill.NewID()
	sink, err := b.Sink(membroker.SinkConfig{})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(sink.Deliver(context.Background(), []waybill.Delivery{{Event: ev, Attempt: 1}}))
	msg := <-messages
	fmt.Println(msg.Metadata.Get("ce_type"), string(msg.Payload))
	msg.Ack()
	// Output:
	// [<nil>]
	// OrderPlaced {"total":9990}
}
