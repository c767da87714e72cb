package observe_test

import (
	"context"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/outbox/outboxtest"
	"github.com/waybillhq/waybill/store/memstore"
)

// A tracer puts its context into every written event. Existing headers of the
// event are kept.
func ExampleHooks() {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		fmt.Println(err)
		return
	}
	var rec outboxtest.Recorder
	box, err := outbox.New(db, outbox.Config{
		Hooks: []outbox.Hook{rec.Hook()},
		Observe: observe.Hooks{Write: func(context.Context, observe.WriteInfo) map[string]string {
			return map[string]string{"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01", "source": "tracer"}
		}},
	})
	if err != nil {
		fmt.Println(err)
		return
	}
	ev := waybill.NewEvent("OrderPlaced", map[string]int{"total": 9990})
	ev.Headers = map[string]string{"source": "shop"}
	err = box.InTx(context.Background(), func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, ev) })
	if err != nil {
		fmt.Println(err)
		return
	}
	fmt.Println(rec.Events()[0].Headers["traceparent"], rec.Events()[0].Headers["source"])
	// Output: 00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01 shop
}
