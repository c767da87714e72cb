package outbox_test

import (
	"context"
	"errors"
	"fmt"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/memstore"
)

type placed struct {
	Total int `json:"total"`
}

var orderPlaced = waybill.Define[placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

// The event exists if and only if the transaction commits.
func ExampleOutbox_InTx() {
	db, err := memstore.New(memstore.Config{}) // or a store with tables
	if err != nil {
		panic(err)
	}
	box, err := outbox.New(db, outbox.Config{Hooks: []outbox.Hook{{
		AfterCommit: func(_ context.Context, info outbox.AfterCommitInfo) {
			fmt.Println("committed:", info.Events[0].Type, info.Events[0].AggregateID)
		},
	}}})
	if err != nil {
		panic(err)
	}
	ctx := context.Background()
	err = box.InTx(ctx, func(ctx context.Context, tx *memstore.Tx) error {
		// … change the business tables in tx …
		return box.Write(ctx, tx, orderPlaced.New("o-1", placed{Total: 9990}))
	})
	fmt.Println(err)
	err = box.InTx(ctx, func(ctx context.Context, tx *memstore.Tx) error {
		if err := box.Write(ctx, tx, orderPlaced.New("o-2", placed{Total: 1})); err != nil {
			return err
		}
		return errors.New("out of stock")
	})
	fmt.Println(err)
	// Output:
	// committed: OrderPlaced o-1
	// <nil>
	// out of stock
}

// A dedup key absorbs an event if another one is already pending; WriteEach
// reports it.
func ExampleOutbox_WriteEach() {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		panic(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		panic(err)
	}
	ev := orderPlaced.New("o-1", placed{Total: 9990})
	ev.DedupKey = ev.NaturalKey()
	err = box.InTx(context.Background(), func(ctx context.Context, tx *memstore.Tx) error {
		receipts, err := box.WriteEach(ctx, tx, ev, ev)
		for _, r := range receipts {
			fmt.Println(r.Outcome, r.ID == receipts[0].ID)
		}
		return err
	})
	fmt.Println(err)
	// Output:
	// written true
	// duplicate true
	// <nil>
}

// Emit needs the context only, not the transaction.
func ExampleOutbox_Emit() {
	db, err := memstore.New(memstore.Config{})
	if err != nil {
		panic(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		panic(err)
	}
	deepInside := func(ctx context.Context) error { return box.Emit(ctx, waybill.NewEvent("CacheStale", nil)) }
	fmt.Println(box.InTx(context.Background(), func(ctx context.Context, _ *memstore.Tx) error { return deepInside(ctx) }))
	fmt.Println(errors.Is(deepInside(context.Background()), waybill.ErrNoTx))
	// Output:
	// <nil>
	// true
}
