// Command shop is an order API in which nothing happens twice and nothing is lost, whatever is killed at whatever moment:
//
//	POST /orders        the order, its event, the idempotency key and the answer are one commit; a repeat gets the same answer
//	relay and inbox     the event is delivered, and the inventory reserves the goods once
//	GET /orders/{id}    by public id
//
// It needs nothing but Go: the database is SQLite, in a file that is gone afterwards.
//
//	go run ./examples/shop
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
	"path/filepath"
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

// Order is what the API shows. Its id looks like ord_01j9zt6vb2e4x8k3m5n7p9qrst; inside, it is 16 bytes.
type Order struct {
	ID       publicid.ID[Order] `json:"id"`
	SKU      string             `json:"sku"`
	Quantity int                `json:"quantity"`
	State    string             `json:"state"`
}

// PublicPrefix makes ids of orders begin with ord_.
func (Order) PublicPrefix() string { return "ord" }

// Placed is what OrderPlaced tells.
type Placed struct {
	SKU      string
	Quantity int
}

var OrderPlaced = waybill.Define[Placed]("OrderPlaced", waybill.Spec{AggregateType: "order"})

// shop is what the handlers need.
type shop struct {
	db  *sqlitestore.Store
	box *outbox.Outbox[*sql.Tx]
}

// create runs in a transaction that also holds the key and the answer. What it writes to w is sent after the commit.
func (s *shop) create(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	var o Order
	if err := json.NewDecoder(r.Body).Decode(&o); err != nil || o.SKU == "" || o.Quantity < 1 {
		http.Error(w, "an order has a sku and a quantity", http.StatusBadRequest)
		return nil // this answer is stored, too: the same request would get it again
	}
	o.ID, o.State = publicid.New[Order](), "placed" // whatever the client says
	ctx := r.Context()
	_, err := tx.ExecContext(ctx, `INSERT INTO orders (id, sku, quantity, state) VALUES (?, ?, ?, ?)`, o.ID.Bytes(), o.SKU, o.Quantity, o.State)
	if err != nil {
		return err // rolls everything back, the key included
	}
	if err := s.box.Write(ctx, tx, OrderPlaced.New(o.ID.String(), Placed{SKU: o.SKU, Quantity: o.Quantity})); err != nil {
		return err
	}
	httpkey.SetRef(ctx, o.ID.String())
	w.Header().Set("Location", "/orders/"+o.ID.String())
	return writeJSON(w, http.StatusCreated, o)
}

func (s *shop) find(w http.ResponseWriter, r *http.Request) {
	id, err := publicid.Parse[Order](r.PathValue("id")) // a customer's id, or a mistyped one, does not get to the database
	if err != nil {
		http.Error(w, "there is no such order", http.StatusNotFound)
		return
	}
	o := Order{ID: id}
	err = s.db.DB().QueryRowContext(r.Context(), `SELECT sku, quantity, state FROM orders WHERE id = ?`, id.Bytes()).Scan(&o.SKU, &o.Quantity, &o.State)
	switch {
	case errors.Is(err, sql.ErrNoRows):
		http.Error(w, "there is no such order", http.StatusNotFound)
	case err != nil:
		http.Error(w, "try again", http.StatusServiceUnavailable)
	default:
		_ = writeJSON(w, http.StatusOK, o) // a client that has gone does not matter
	}
}

// reserve is the inventory. Its group sees an event once, and what it does is committed together with that fact.
func reserve(ctx context.Context, tx *sql.Tx, ev waybill.Event, p Placed) error {
	id, err := publicid.Parse[Order](ev.AggregateID)
	if err != nil {
		return waybill.Permanent(err)
	}
	if _, err := tx.ExecContext(ctx, `UPDATE stock SET left = left - ? WHERE sku = ?`, p.Quantity, p.SKU); err != nil {
		return err
	}
	_, err = tx.ExecContext(ctx, `UPDATE orders SET state = 'reserved' WHERE id = ?`, id.Bytes())
	return err
}

// customer says whose a key is. In a real service this is who has signed in, not what a header claims.
func customer(r *http.Request) (httpkey.Scope, error) {
	return httpkey.Scope{Principal: r.Header.Get("X-Customer")}, nil // an empty one is refused
}

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	db, closeAll := open(ctx)
	defer closeAll()

	box, err := outbox.New(db, outbox.Config{})
	check(err)
	keys, err := idempotency.New(db, idempotency.Config{})
	check(err)
	once, err := httpkey.New(keys, httpkey.Config{Scope: customer})
	check(err)
	in, err := inbox.New(db, inbox.Config{RetryInterval: -1}) // what fails is delivered again by the relay
	check(err)
	inventory := in.Group("INVENTORY", inbox.Options{})
	inbox.On(inventory, OrderPlaced, reserve)
	deliver, err := relay.New(db, inventory, relay.Config{})
	check(err)

	s := &shop{db, box}
	mux := http.NewServeMux()
	mux.Handle("POST /orders", once.WrapTx(s.create))
	mux.HandleFunc("GET /orders/{id}", s.find)
	server := &http.Server{Handler: mux, ReadHeaderTimeout: 10 * time.Second}
	socket, err := (&net.ListenConfig{}).Listen(ctx, "tcp", cmp.Or(os.Getenv("ADDR"), "localhost:8080"))
	check(err)
	fmt.Printf("Listening on http://%s\n", socket.Addr())

	// Everything runs until the interrupt, and finishes what it has in hand.
	var all sync.WaitGroup
	for _, run := range []func(context.Context) error{deliver.Run, in.Run, keys.Run} {
		all.Go(func() { check(run(ctx)) })
	}
	all.Go(func() {
		<-ctx.Done()
		check(server.Shutdown(context.WithoutCancel(ctx)))
	})
	if err := server.Serve(socket); !errors.Is(err, http.ErrServerClosed) {
		check(err)
	}
	all.Wait()
}

func writeJSON(w http.ResponseWriter, status int, v any) error {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	return json.NewEncoder(w).Encode(v)
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

// open makes the database, with Waybill's tables and those of the shop.
func open(ctx context.Context) (db *sqlitestore.Store, closeAll func()) {
	dir, err := os.MkdirTemp("", "waybill-shop-")
	check(err)
	db, err = sqlitestore.Open(filepath.Join(dir, "shop.db"), sqlitestore.Config{})
	check(err)
	_, err = db.Migrate(ctx)
	check(err)
	_, err = db.DB().ExecContext(ctx, `
		CREATE TABLE orders (id BLOB PRIMARY KEY, sku TEXT NOT NULL, quantity INTEGER NOT NULL, state TEXT NOT NULL);
		CREATE TABLE stock (sku TEXT PRIMARY KEY, left INTEGER NOT NULL);
		INSERT INTO stock VALUES ('tea', 100)`)
	check(err)
	return db, func() { check(errors.Join(db.Close(), os.RemoveAll(dir))) }
}
