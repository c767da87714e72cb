package idempotency_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/memstore"
)

type placeOrder struct {
	Product string `json:"product"`
	Items   int    `json:"items"`
}

type orderPlaced struct {
	ID string `json:"id"`
}

// PublicID makes the order's id the reference of its key.
func (o orderPlaced) PublicID() string { return o.ID }

// The order, its event, the key and the answer are committed together. A repeat
// gets the same answer.
func ExampleDoTx() {
	ctx := context.Background()
	db, _ := memstore.New(memstore.Config{})
	keys, _ := idempotency.New(db, idempotency.Config{})
	box, _ := outbox.New(db, outbox.Config{})

	place := func(key string, order placeOrder) {
		hash, _ := idempotency.HashJSON(order)
		req := idempotency.Request{TenantID: "acme", Operation: "ORDER_CREATE", Key: key, Hash: hash}
		res, err := idempotency.DoTx(ctx, keys, req, func(ctx context.Context, tx *memstore.Tx) (orderPlaced, error) {
			fmt.Println("one order more")
			return orderPlaced{ID: "O-1"}, box.Write(ctx, tx, waybill.NewEvent("OrderPlaced", order))
		})
		fmt.Println(res.Value.ID, res.Replayed, errors.Is(err, waybill.ErrConflict))
	}
	place("7f3c", placeOrder{"apple", 2})
	place("7f3c", placeOrder{"apple", 2})
	place("7f3c", placeOrder{"apple", 3}) // not the same request
	// Output:
	// one order more
	// O-1 false false
	// O-1 true false
	//  false true
}

// An interrupted run continues after the last committed phase, and the outside
// service sees one key.
func ExamplePhase() {
	ctx := context.Background()
	db, _ := memstore.New(memstore.Config{})
	keys, _ := idempotency.New(db, idempotency.Config{})
	hash, _ := idempotency.HashJSON("two apples")
	req := idempotency.Request{Operation: "PAY", Key: "7f3c", Hash: hash}

	down := true
	for range 2 {
		res, err := idempotency.Do(ctx, keys, req, func(ctx context.Context) (string, error) {
			order, err := idempotency.Phase(ctx, keys, "book", func(context.Context, *memstore.Tx) (string, error) {
				fmt.Println("booked")
				return "O-1", nil
			})
			if err != nil {
				return "", err
			}
			return idempotency.Call(ctx, keys, "charge", func(_ context.Context, key string) (string, error) {
				fmt.Println("charging", order, "under the key", len(key), "bytes long")
				if down {
					down = false
					return "", errors.New("the bank is down")
				}
				return "charged", nil
			})
		})
		fmt.Println(res.Value, err)
	}
	// Output:
	// booked
	// charging O-1 under the key 36 bytes long
	//  the bank is down
	// charging O-1 under the key 36 bytes long
	// charged <nil>
}
