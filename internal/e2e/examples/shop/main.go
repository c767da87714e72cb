// Command shop is an order API in which no order is lost or placed twice, even
// if the process is killed at any moment:
//
//	POST /orders        the order, its event, the idempotency key and the
//	                    answer are one commit; a repeat gets the same answer
//	relay and inbox     the event is delivered, and the inventory reserves
//	                    the goods once
//	GET /orders/{id}    by public id
//
// It needs nothing but Go: the database is SQLite, in the file shop.db. Stop
// it, start it again, and send the same request: the answer is the same.
//
//	go run ./internal/e2e/examples/shop
//	curl -i localhost:8080/orders -H 'X-Customer: ada' -H 'Idempotency-Key: "1"' -d '{"sku":"tea","quantity":2}'   # twice
package main

import (
	"cmp"
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"fmt"
	"log"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/publicid"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// Order is the API's resource, and the payload of OrderPlaced. Its id looks
// like ord_01j9zt6vb2e4x8k3m5n7p9qrst.
type Order struct {
	ID       publicid.ID[Order] `json:"id"`
	SKU      string             `json:"sku"`
	Quantity int                `json:"quantity"`
	State    string             `json:"state"`
}

// PublicPrefix makes ids of orders begin with ord_.
func (Order) PublicPrefix() string { return "ord" }

var OrderPlaced = waybill.Define[Order]("OrderPlaced", waybill.Spec{AggregateType: "order"})

// shop holds the handlers' dependencies.
type shop struct {
	db  *sql.DB
	box *outbox.Outbox[*sql.Tx]
}

// create runs in a transaction that also holds the key and the answer. The
// response is sent after the commit.
func (s *shop) create(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	var o Order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.SKU == "" || o.Quantity < 1 {
		http.Error(w, "an order has a sku and a quantity", http.StatusBadRequest)
		// this answer is stored, too: the same request would get it again
		return nil
	}
	o.ID, o.State = publicid.New[Order](), "placed" // not the client's values
	ctx := r.Context()
	_, err := tx.ExecContext(ctx, `INSERT INTO orders (id, sku, quantity, state) VALUES (?, ?, ?, ?)`, o.ID, o.SKU, o.Quantity, o.State)
	if err != nil {
		return err // rolls everything back, the key included
	}
	if err := s.box.Write(ctx, tx, OrderPlaced.New(o.ID.String(), o)); err != nil {
		return err
	}
	httpkey.SetRef(ctx, o.ID.String())
	w.Header().Set("Content-Type", "application/json")
	w.Header().Set("Location", "/orders/"+o.ID.String())
	w.WriteHeader(http.StatusCreated)
	return json.NewEncoder(w).Encode(o)
}

func (s *shop) find(w http.ResponseWriter, r *http.Request) {
	id, err := publicid.Parse[Order](r.PathValue("id"))
	// a customer's id, or a mistyped one, does not get to the database
	if err != nil {
		http.NotFound(w, r)
		return
	}
	o := Order{ID: id}
	err = s.db.QueryRowContext(r.Context(), `SELECT sku, quantity, state FROM orders WHERE id = ?`, id).Scan(&o.SKU, &o.Quantity, &o.State)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		http.NotFound(w, r)
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable)
	default:
		w.Header().Set("Content-Type", "application/json")
		// a disconnected client does not matter
		_ = json.NewEncoder(w).Encode(o)
	}
}

// reserve is the inventory. Its group applies an event once, and commits the
// effects together with the event's record.
func reserve(ctx context.Context, tx *sql.Tx, _ waybill.Event, o Order) error {
	if _, err := tx.ExecContext(ctx, `UPDATE stock SET left = left - ? WHERE sku = ?`, o.Quantity, o.SKU); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `UPDATE orders SET state = 'reserved' WHERE id = ?`, o.ID)
	return err
}

// customer returns the owner of a key. In a real service this is the
// authenticated user, not the value of a header.
func customer(r *http.Request) (httpkey.Scope, error) {
	// an empty one is refused
	return httpkey.Scope{Principal: r.Header.Get("X-Customer")}, nil
}

const tables = `CREATE TABLE IF NOT EXISTS orders (id TEXT PRIMARY KEY, sku TEXT NOT NULL, quantity INTEGER NOT NULL, state TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS stock (sku TEXT PRIMARY KEY, left INTEGER NOT NULL);
INSERT OR IGNORE INTO stock VALUES ('tea', 100)`

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	db, err := sqlitestore.Open("shop.db", sqlitestore.Config{})
	check(err)
	defer func() { check(db.Close()) }()
	_, err = db.Migrate(ctx) // Waybill's own tables
	check(err)
	_, err = db.DB().ExecContext(ctx, tables)
	check(err)

	box, err := outbox.New(db, outbox.Config{})
	check(err)
	keys, err := idempotency.New(db, idempotency.Config{})
	check(err)
	once, err := httpkey.New(keys, httpkey.Config{Scope: customer})
	check(err)
	in, err := inbox.New(db, inbox.Config{}) // the relay redelivers failed events
	check(err)
	inventory := in.MustGroup("INVENTORY", inbox.Options{})
	inbox.On(inventory, OrderPlaced, reserve)
	deliver, err := relay.New(db, inventory, relay.Config{})
	check(err)

	s := &shop{db.DB(), box}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", once.WrapTx(s.create))
	mux.HandleFunc("GET /orders/{id}", s.find)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cmp.Or(os.Getenv("ADDR"), "localhost:8080"))
	check(err)
	fmt.Printf("Listening on http://%s\n", socket.Addr())

	// Everything runs until the interrupt, and finishes the work in flight.
	var all sync.WaitGroup
	for _, run := range []func(context.Context) error{deliver.Run, in.Run, keys.Run} {
		all.Go(func() { check(run(ctx)) })
	}
	all.Go(func() {
		if err := server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
			check(err)
		}
	})
	<-ctx.Done()
	check(server.Shutdown(context.WithoutCancel(ctx)))
	all.Wait()
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}
