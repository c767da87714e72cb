package sqlitestore_test

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// Placed is the payload of OrderPlaced.
type Placed struct {
	Total int `json:"total"`
}

var OrderPlaced = waybill.Define[Placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

// An order and its event are committed together, or not at all.
func Example() {
	ctx := context.Background()
	dir, err := os.MkdirTemp("", "waybill")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the example is over then

	db, err := sqlitestore.Open(filepath.Join(dir, "shop.db"), sqlitestore.Config{})
	if err != nil {
		panic(err)
	}
	defer db.Close() //nolint:errcheck // the example is over then
	if _, err := db.Migrate(ctx); err != nil {
		panic(err)
	}
	if _, err := db.DB().ExecContext(ctx, `CREATE TABLE orders (id TEXT PRIMARY KEY)`); err != nil {
		panic(err)
	}
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		panic(err)
	}

	place := func(id string, total int) error {
		return box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.ExecContext(ctx, `INSERT INTO orders (id) VALUES (?)`, id); err != nil {
				return err
			}
			if err := box.Write(ctx, tx, OrderPlaced.New(id, Placed{Total: total})); err != nil {
				return err
			}
			if total == 0 {
				return errors.New("nothing to pay") // rolls back
			}
			return nil
		})
	}
	fmt.Println(place("o-1", 9990))
	fmt.Println(place("o-2", 0))

	page, err := db.Driver().Relay.Fetch(ctx, []driver.Cursor{{Lane: 0}}, 10)
	if err != nil {
		panic(err)
	}
	for _, row := range page.Rows {
		fmt.Printf("%s of %s: %s\n", row.Event.Type, row.Event.AggregateID, row.Event.Payload)
	}
	// Output:
	// <nil>
	// nothing to pay
	// OrderPlaced of o-1: {"total":9990}
}

// New works over a database that the service has already opened.
func ExampleNew() {
	dir, err := os.MkdirTemp("", "waybill")
	if err != nil {
		panic(err)
	}
	defer os.RemoveAll(dir) //nolint:errcheck // the example is over then

	handle, err := sql.Open("sqlite", "file:"+filepath.ToSlash(filepath.Join(dir, "shop.db"))+
		"?_journal_mode=WAL&_txlock=immediate&_busy_timeout=10000&_foreign_keys=1")
	if err != nil {
		panic(err)
	}
	defer handle.Close() //nolint:errcheck // the example is over then
	db, err := sqlitestore.New(handle, sqlitestore.Config{Prefix: "shop_"})
	if err != nil {
		panic(err)
	}
	defer db.Close() //nolint:errcheck // the example is over then
	applied, err := db.Migrate(context.Background())
	if err != nil {
		panic(err)
	}
	for _, m := range applied {
		fmt.Println(m.Version, m.Name)
	}
	// Output:
	// 1 outbox
	// 2 inbox
	// 3 keys
	// 4 jobs
	// 5 backlogs
	// 6 audit
	// 7 causes
	// 8 node_reports
	// 9 dead_lists
	// 10 rollups
}
