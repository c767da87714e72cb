package broker_test

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/broker"
	"github.com/waybillhq/waybill/internal/eventfill"
)

// Messages that share memory equal messages that are encoded separately, also
// after all of them are encoded, and whatever is done to one of them.
func TestEncoder(t *testing.T) {
	for _, b := range []broker.Binding{broker.Kafka, broker.HTTP, broker.AMQP} {
		c, err := broker.NewCodec(b, broker.CodecConfig{})
		if err != nil {
			t.Fatal(err)
		}
		var batch []waybill.Delivery
		for i := range 300 {
			ev := waybill.Event{Type: "OrderPlaced", AggregateType: "order", AggregateID: fmt.Sprint(i), Payload: fmt.Appendf(nil, "%d", i)}
			switch i % 5 {
			case 1:
				ev.AggregateID = ""
			case 2:
				ev.AggregateID = strings.Repeat("long/", 20*i)
			case 3: // every field
				ev.TenantID, ev.Topic, ev.RoutingKey, ev.SchemaID, ev.SchemaVersion, ev.DedupKey = "t", "orders", "r", "s", 3, "k"
				ev.CorrelationID, ev.CausationID, ev.Priority, ev.AvailableAt = "co", "ca", 4, time.Unix(int64(i), 0)
				ev.Headers = map[string]string{"traceparent": "00-ab", "tracestate": "x=y"}
				for n := range i {
					ev.Headers[fmt.Sprint("h", n)] = fmt.Sprint(n)
				}
			case 4:
				ev.CausationID = "not\nallowed"
			}
			position := waybill.Position{Lane: 1, Epoch: 2, Seq: int64(i) + 1}
			batch = append(batch, waybill.Delivery{Event: eventfill.Defaults(ev), Attempt: 1, Replay: i % 3, Position: position})
		}
		for _, n := range []int{0, 1, 10, len(batch)} {
			e := c.Encoder(n)
			messages, failures := make([]broker.Message, len(batch)), make([]error, len(batch))
			for i := range batch {
				messages[i], failures[i] = e.Encode(&batch[i])
			}
			for i := range messages {
				_ = append(messages[i].Headers, broker.Header{Name: "mine"})
			}
			for i := range batch {
				want, err := c.Encode(&batch[i])
				if !reflect.DeepEqual(messages[i], want) || fmt.Sprint(failures[i]) != fmt.Sprint(err) {
					t.Fatalf("%v, message %d of %d is\n%v %v\nand alone\n%v %v", b, i, n, messages[i], failures[i], want, err)
				}
			}
		}
	}
}
