// Command memstore is the program of examples/plain on memstore, beside a database of the service: a test compares them line by line.
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
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/memstore"
)

// Placed is what OrderPlaced tells. Events of one order are delivered in the order in which they were written.
type Placed struct{ Total int }

var OrderPlaced = waybill.Define[Placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

func main() {
	ctx := context.Background()
	db, closeAll := open(ctx)
	defer closeAll()
	box, err := outbox.New(db, outbox.Config{})
	check(err)

	place := func(order string, total int) {
		err := box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, insertOrder, order, total); err != nil {
				return err
			}
			if err := box.Write(ctx, tx, OrderPlaced.New(order, Placed{Total: total})); err != nil {
				return err
			}
			if total == 0 {
				return errors.New("nothing was ordered") // rolls back: neither the order nor its event ever was
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
	place("A-2", 0)

	// What a relay would read and deliver. An outbox is split into lanes, so that several relays can share the work.
	var lanes []store.Cursor
	for lane := range 32 {
		lanes = append(lanes, store.Cursor{Lane: lane})
	}
	page, err := db.Fetch(ctx, lanes, 100)
	check(err)
	fmt.Println("The outbox holds:")
	for _, row := range page.Rows {
		fmt.Printf("  %s of order %s: %s\n", row.Event.Type, row.Event.AggregateID, row.Event.Payload)
	}
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

const insertOrder = `INSERT INTO orders (id, total) VALUES (?, ?)`

// open makes a database, and an outbox in memory that follows its transactions.
func open(ctx context.Context) (db *memstore.Store[*sql.Tx], closeAll func()) {
	dir, err := os.MkdirTemp("", "waybill-plain-")
	check(err)
	shop, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "shop.db"))+"?_txlock=immediate")
	check(err)
	db, err = memstore.Over(func(ctx context.Context, opts *sql.TxOptions) (memstore.Handle[*sql.Tx], error) {
		tx, err := shop.BeginTx(context.WithoutCancel(ctx), opts)
		if err != nil {
			return memstore.Handle[*sql.Tx]{}, err
		}
		commit := func(context.Context) error { return tx.Commit() }
		rollback := func(context.Context) error { return tx.Rollback() }
		return memstore.Handle[*sql.Tx]{Tx: tx, Commit: commit, Rollback: rollback}, nil
	}, memstore.Config{})
	check(err)
	_, err = shop.ExecContext(ctx, `CREATE TABLE orders (id VARCHAR(20) PRIMARY KEY, total INTEGER)`)
	check(err)
	return db, func() { check(errors.Join(shop.Close(), os.RemoveAll(dir))) }
}
