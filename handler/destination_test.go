package handler_test

import (
	"context"
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/handler"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// Event types may contain colons; two kinds of events never share a
// destination.
func TestUnavailableHandlerPausesOnlyItsKind(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		db, err := memstore.New(memstore.Config{})
		if err != nil {
			t.Fatal(err)
		}
		box, err := outbox.New(db, outbox.Config{})
		if err != nil {
			t.Fatal(err)
		}
		mux, healthy := handler.NewMux(), 0
		mux.Handle("a:b", "c", func(context.Context, waybill.Event) error { return waybill.Unavailable(errors.New("down")) })
		mux.Handle("a", "b:c", func(context.Context, waybill.Event) error { healthy++; return nil })
		r, err := relay.New(db, mux, relay.Config{Workers: 1})
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan error, 1)
		go func() { ended <- r.Run(ctx) }()
		write := func(aggregateType, eventType string) {
			ev := waybill.NewEvent(eventType, 0)
			ev.AggregateType, ev.AggregateID = aggregateType, "1"
			if err := box.InTx(ctx, func(ctx context.Context, tx *memstore.Tx) error { return box.Write(ctx, tx, ev) }); err != nil {
				t.Fatal(err)
			}
		}
		write("a:b", "c")
		time.Sleep(5 * time.Minute) //nolint:forbidigo // synctest's time; now it is probed about once a minute
		for range 40 {
			write("a", "b:c")
		}
		time.Sleep(5 * time.Second) //nolint:forbidigo // synctest's time
		synctest.Wait()
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
		if healthy != 40 {
			t.Errorf("%d of 40 events of the other kind were delivered", healthy)
		}
	})
}
