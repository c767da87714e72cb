package broker_test

import (
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
)

// An event as a Kafka record: a consumer in any language finds the CloudEvents
// attributes.
func ExampleCodec() {
	codec, err := broker.NewCodec(broker.Kafka, broker.CodecConfig{EventSource: "/shop"})
	if err != nil {
		fmt.Println(err)
		return
	}
	ev := waybill.NewEvent("OrderPlaced", map[string]int{"total": 9990})
	ev.AggregateType, ev.AggregateID, ev.Headers = "order", "42", map[string]string{"color": "red"}
	ev.ID = waybill.NewID()
	m, err := codec.Encode(&waybill.Delivery{Event: ev, Attempt: 1})
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(m.Topic, m.Key, m.Header("ce_type"), m.Header("ce_source"), m.Header("ce_subject"), m.Header("waybill_color"), string(m.Payload))
	d, err := codec.Decode(&m)
	fmt.Println(d.ID == m.ID, d.AggregateID, d.Headers, err)
	// Output:
	// OrderPlaced /order/42 OrderPlaced /shop 42 red {"total":9990}
	// true 42 map[color:red] <nil>
}

func ExampleTopicRules_Template() {
	topics, err := broker.TopicRules{Separator: '.'}.Template("orders.{tenant:shared}.{type}")
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(topics(&waybill.Event{Type: "placed", TenantID: "eu"}))
	fmt.Println(topics(&waybill.Event{Type: "placed"}))
	fmt.Println(topics(&waybill.Event{Type: "placed", TenantID: "eu.other"}))
	// Output:
	// orders.eu.placed <nil>
	// orders.shared.placed <nil>
	//  the event's tenant contains '.', which divides names
}
