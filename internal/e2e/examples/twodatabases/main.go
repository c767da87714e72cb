// Command twodatabases runs two outboxes in one process: orders on SQLite,
// invoices on PostgreSQL. Each has its own store, outbox, relay and metrics; a
// fault of one does not slow the other.
//
//	DATABASE_URL=postgres://… go run ./internal/e2e/examples/twodatabases
package main

import (
	"context"
	"errors"
	"fmt"
	"log"
	"os"
	"os/signal"
	"path/filepath"
	"sync"
	"sync/atomic"
	"time"

	"github.com/jackc/pgx/v5/pgxpool"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/observe"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/pgstore"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	dir, err := os.MkdirTemp("", "waybill-twodatabases-")
	check(err)
	defer func() { check(os.RemoveAll(dir)) }()

	orders, err := sqlitestore.Open(filepath.Join(dir, "orders.db"), sqlitestore.Config{})
	check(err)
	defer func() { check(orders.Close()) }()
	_, err = orders.Migrate(ctx)
	check(err)

	pool, err := pgxpool.New(ctx, os.Getenv("DATABASE_URL"))
	check(err)
	defer pool.Close()
	invoices, err := pgstore.New(pool, pgstore.Config{Prefix: "billing_"})
	check(err)
	_, err = invoices.Migrate(ctx)
	check(err)

	var group sync.WaitGroup
	sums := []*stack{
		run(ctx, &group, "orders.outbox", orders),
		run(ctx, &group, "billing.outbox", invoices),
	}
	tick := time.NewTicker(time.Second)
	defer tick.Stop()
	for seconds := 0; seconds < 5 && ctx.Err() == nil; seconds++ {
		select {
		case <-tick.C:
		case <-ctx.Done():
		}
		for _, s := range sums {
			fmt.Printf("%s.enqueue.hot=%d %s.dispatch.success=%d  ", s.prefix, s.hot.Load(), s.prefix, s.delivered.Load())
		}
		fmt.Println()
	}
	stop()
	group.Wait()
}

// stack is one outbox with its components. Its metrics have a prefix of their
// own.
type stack struct {
	prefix         string
	hot, delivered atomic.Int64
}

// run writes an event every few milliseconds, and delivers the written events,
// until ctx ends.
func run[T any](ctx context.Context, group *sync.WaitGroup, prefix string, db driver.Store[T]) *stack {
	s := &stack{prefix: prefix}
	box, err := outbox.New[T](db, outbox.Config{})
	check(err)
	r, err := relay.New(db, relay.SinkFunc(func(context.Context, waybill.Delivery) error { return nil }), relay.Config{
		Observe: observe.Hooks{
			HotEnqueued: func(info observe.HotEnqueuedInfo) { s.hot.Add(int64(info.Events)) },
			Delivered:   func(observe.DeliveredInfo) { s.delivered.Add(1) },
		},
	})
	check(err)
	group.Go(func() { check(r.Run(ctx)) })
	group.Go(func() {
		tick := time.NewTicker(5 * time.Millisecond)
		defer tick.Stop()
		for n := 0; ; n++ {
			select {
			case <-tick.C:
			case <-ctx.Done():
				return
			}
			err := box.InTx(ctx, func(ctx context.Context, tx T) error {
				return box.Write(ctx, tx, waybill.NewEvent("Ticked", n))
			})
			if err != nil && !errors.Is(err, context.Canceled) {
				log.Printf("%s: %v", prefix, err) // the other stack continues
			}
		}
	})
	return s
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
