package pgstore_test

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testroles"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
)

// TestNotifyWakesAnotherProcess: a relay that does not poll delivers events
// that another process has written. With polls an hour apart, only the wake-up
// can have caused the delivery.
func TestNotifyWakesAnotherProcess(t *testing.T) {
	pool := openPool(t, nil)
	for name, in := range map[string]func() (relayDB driver.Relay, write func(ev waybill.Event) error){
		"pgx": func() (driver.Relay, func(waybill.Event) error) {
			in := pgxInstance(t, pool)
			box, err := outbox.New[pgx.Tx](in.Second(), outbox.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return in.DB.Relay, func(ev waybill.Event) error {
				return box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, ev) })
			}
		},
		"sql": func() (driver.Relay, func(waybill.Event) error) {
			in := sqlInstance(t, pool)
			box, err := outbox.New(in.Second(), outbox.Config{})
			if err != nil {
				t.Fatal(err)
			}
			return in.DB.Relay, func(ev waybill.Event) error {
				tx, err := in.Begin(t.Context())
				if err != nil {
					return err
				}
				defer tx.Rollback() //nolint:errcheck // harmless after the commit
				if err := box.Write(t.Context(), tx.Tx, ev); err != nil {
					return err
				}
				if err := tx.Commit(); err != nil {
					return err
				}
				box.Wake() // the outbox did not see this commit
				return nil
			}
		},
	} {
		t.Run(name, func(t *testing.T) {
			db, write := in()
			var got atomic.Int64
			r, err := relay.New(testroles.Of[any](db), relay.SinkFunc(func(context.Context, waybill.Delivery) error { got.Add(1); return nil }), relay.Config{
				PollInterval: time.Hour, SweepInterval: time.Hour,
			})
			if err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithCancel(t.Context())
			done := make(chan error, 1)
			go func() { done <- r.Run(ctx) }()
			for n := int64(1); n <= 10; n++ {
				if err := write(waybill.NewEvent("Tested", n)); err != nil {
					t.Fatal(err)
				}
				deadline := time.Now().Add(20 * time.Second)
				for got.Load() < n && time.Now().Before(deadline) {
					tick := time.NewTimer(time.Millisecond)
					<-tick.C
				}
				if got.Load() < n {
					t.Fatalf("event %d was not delivered", n)
				}
			}
			cancel()
			if err := <-done; err != nil {
				t.Fatal(err)
			}
		})
	}
}
