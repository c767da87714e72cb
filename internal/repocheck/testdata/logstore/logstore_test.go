package logstore_test

import (
	"context"
	"fmt"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/drivertest"

	"example.com/logstore"
)

func TestConformance(t *testing.T) {
	report := drivertest.RunOutbox(t, drivertest.Harness[*logstore.Tx]{
		Name: "logstore",
		Open: func(t *testing.T) drivertest.Instance[*logstore.Tx] {
			db := logstore.New()
			return drivertest.Instance[*logstore.Tx]{
				DB:      db.Driver(),
				Pending: func(context.Context) ([]store.Row, error) { return db.Rows(), nil },
			}
		},
	})
	if !report.Complete() {
		t.Error("a check did not run")
	}
}

func Example() {
	db := logstore.New()
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		panic(err)
	}
	err = box.InTx(context.Background(), func(ctx context.Context, tx *logstore.Tx) error {
		return box.Write(ctx, tx, waybill.NewEvent("OrderPlaced", map[string]int{"total": 42}))
	})
	fmt.Println(db.Rows()[0].Event.Type, err)

	// A relay needs a role that the store lacks.
	_, err = relay.New(db, sink{}, relay.Config{})
	fmt.Println(err)

	// The compiler accepts the log as any role. The methods fail.
	_, err = db.Driver().Outbox.(driver.Relay).Fetch(context.Background(), nil, 1)
	fmt.Println(err)
	// Output:
	// OrderPlaced <nil>
	// relay: the store lacks the role Relay; it has the roles Outbox
	// driver: the store does not implement the method Fetch
}

type sink struct{}

func (sink) Deliver(_ context.Context, batch []waybill.Delivery) []error {
	return make([]error, len(batch))
}
