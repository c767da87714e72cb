package waybill_test

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

// Placed is the payload of OrderPlaced.
type Placed struct {
	Total int `json:"total"`
}

// OrderPlaced is defined once and used on both sides.
var OrderPlaced = waybill.Define[Placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

func ExampleDefine() {
	ev := OrderPlaced.New("o-1", Placed{Total: 9990}) // producer
	p, err := OrderPlaced.Decode(ev)                  // consumer
	fmt.Println(ev.Type, ev.AggregateType, ev.AggregateID, p.Total, err)

	// A definition with an aggregate type requires an aggregate id.
	fmt.Println(OrderPlaced.New("", Placed{}).Validate())
	// Output:
	// OrderPlaced order o-1 9990 <nil>
	// waybill: event OrderPlaced: AggregateID: is empty, and the definition has the aggregate type order
}

func ExampleNewEvent() {
	ev := waybill.NewEvent("CacheStale", map[string]string{"region": "eu"})
	fmt.Println(ev.Type, string(ev.Payload), ev.Ordered())
	// Output: CacheStale {"region":"eu"} false
}

func ExampleEvent_Validate() {
	ev := waybill.Event{Type: "OrderPlaced", TenantID: "a\nb", Priority: 70000, Payload: []byte("not JSON")}
	fmt.Println(ev.Validate())
	// Output:
	// waybill: event OrderPlaced: TenantID: contains a control character
	// Priority: 70000 is not between 0 and 32767
	// Payload: not valid JSON; set ContentType if it is something else
}

func ExampleClassify() {
	refused := errors.New("400 Bad Request")
	for _, err := range []error{
		nil,
		errors.New("timeout"),
		waybill.Permanent(refused),
		waybill.Unavailable(errors.New("connection refused")),
		waybill.RetryAfter(30*time.Second, errors.New("429 Too Many Requests")),
		errors.Join(waybill.Permanent(refused), waybill.Unavailable(errors.New("connection refused"))),
	} {
		class, delay := waybill.Classify(err)
		fmt.Println(class, delay)
	}
	// Output:
	// done 0s
	// retry 0s
	// permanent 0s
	// unavailable 0s
	// retry 30s
	// unavailable 0s
}

// Order is an aggregate: it collects its events, and the outbox's Track writes
// them at commit.
type Order struct {
	waybill.Log
	ID string
}

// Place raises OrderPlaced.
func (o *Order) Place(total int) { o.Raise(OrderPlaced.New(o.ID, Placed{Total: total})) }

func ExampleLog() {
	order := &Order{ID: "o-1"}
	order.Place(9990)
	for _, ev := range order.Raised() {
		fmt.Println(ev.Type, ev.AggregateID, string(ev.Payload))
	}
	// Output: OrderPlaced o-1 {"total":9990}
}

func ExampleContextWithOrigin() {
	ctx := waybill.ContextWithOrigin(context.Background(), waybill.Origin{TenantID: "acme", CorrelationID: "req-7"})
	// Events that are written with ctx get this origin.
	origin := waybill.OriginFrom(ctx)
	fmt.Println(origin.TenantID, origin.CorrelationID)
	// Output: acme req-7
}

func ExampleEvent_NaturalKey() {
	ev := OrderPlaced.New("o-1", Placed{})
	ev.DedupKey = ev.NaturalKey() // absorbs duplicates while pending
	fmt.Println(ev.DedupKey)
	// Output: order:OrderPlaced:o-1#1
}
