// Command memstore is the program of internal/e2e/examples/plain on memstore,
// beside a database of the service: a test compares them line by line.
package main

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"log"
	"os"
	"path/filepath"

	_ "modernc.org/sqlite"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/handler"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/memstore"
)

// Placed is the payload of OrderPlaced. Events of one order are delivered in
// the order in which they were written.
type Placed struct{ Total int }

var OrderPlaced = waybill.Define[Placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

func main() {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	db, closeAll := open(ctx)
	defer closeAll()
	box, err := outbox.New(db, outbox.Config{})
	check(err)

	// A relay delivers committed events; here to a function of this process. It
	// runs until its context ends.
	mux := handler.NewMux()
	delivered := make(chan string)
	handler.On(mux, OrderPlaced, func(_ context.Context, ev waybill.Event, p Placed) error {
		delivered <- fmt.Sprintf("%s of order %s, total %d", ev.Type, ev.AggregateID, p.Total)
		return nil // an error would be retried later
	})
	r, err := relay.New(db, mux, relay.Config{})
	check(err)
	running := make(chan error)
	go func() { running <- r.Run(ctx) }()

	place := func(order string, total int) {
		err := box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, insertOrder, order, total); err != nil {
				return err
			}
			if err := box.Write(ctx, tx, OrderPlaced.New(order, Placed{Total: total})); err != nil {
				return err
			}
			if total == 0 {
				// rolls back: neither the order nor its event exists
				return errors.New("nothing was ordered")
			}
			return nil // commits both
		})
		if err != nil {
			fmt.Printf("Order %s was rolled back: %v.\n", order, err)
			return
		}
		fmt.Printf("Order %s was committed.\n", order)
	}
	place("A-1", 9990)
	fmt.Printf("Delivered: %s.\n", <-delivered)
	place("A-2", 0)
	place("A-3", 20)
	fmt.Printf("Delivered: %s.\n", <-delivered)

	stop() // the relay finishes its deliveries in flight
	check(<-running)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

const insertOrder = `INSERT INTO orders (id, total) VALUES (?, ?)`

// open creates a database, and an outbox in memory that follows its
// transactions.
func open(ctx context.Context) (db *memstore.Store[*sql.Tx], closeAll func()) {
	dir, err := os.MkdirTemp("", "waybill-plain-")
	check(err)
	shop, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "shop.db"))+"?_txlock=immediate")
	check(err)
	db, err = memstore.OverDB(shop, memstore.Config{})
	check(err)
	_, err = shop.ExecContext(ctx, `CREATE TABLE orders (id VARCHAR(20) PRIMARY KEY, total INTEGER)`)
	check(err)
	return db, func() { check(errors.Join(shop.Close(), os.RemoveAll(dir))) }
}
