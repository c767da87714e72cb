package broker_test

import (
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/internal/eventfill"
)

func BenchmarkEncode(b *testing.B) {
	c, err := broker.NewCodec(broker.Kafka, broker.CodecConfig{})
	if err != nil {
		b.Fatal(err)
	}
	ev := waybill.Event{Type: "OrderPlaced", AggregateType: "order", AggregateID: "1", Payload: make([]byte, 500)}
	d := waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1, Position: waybill.Position{Lane: 1, Epoch: 1, Seq: 12345}}
	b.Run("alone", func(b *testing.B) {
		b.ReportAllocs()
		for b.Loop() {
			if _, err := c.Encode(&d); err != nil {
				b.Fatal(err)
			}
		}
	})
	b.Run("of_100", func(b *testing.B) {
		b.ReportAllocs()
		var e *broker.Encoder
		for i := 0; b.Loop(); i++ {
			if i%100 == 0 {
				e = c.Encoder(100)
			}
			if _, err := e.Encode(&d); err != nil {
				b.Fatal(err)
			}
		}
	})
}
