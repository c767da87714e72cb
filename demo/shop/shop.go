package shop

import (
	"context"
	"database/sql"
	"encoding/json"
	"errors"
	"io"
	"net/http"
	"strings"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/idempotency/httpkey"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/publicid"
)

// tables are the shop's own tables. Waybill's tables are in the same file.
const tables = `
CREATE TABLE product (sku TEXT PRIMARY KEY, initial INTEGER NOT NULL, left INTEGER NOT NULL, orders INTEGER NOT NULL DEFAULT 0) STRICT;
-- number counts the orders of a product in the order of their commits; event_id is the event that tells of the order.
CREATE TABLE orders (id TEXT PRIMARY KEY, key TEXT NOT NULL, sku TEXT NOT NULL, quantity INTEGER NOT NULL, number INTEGER NOT NULL, event_id BLOB NOT NULL) STRICT;
CREATE INDEX orders_key_idx ON orders (key);
-- What the inventory has done, in the order of its commits. Nothing here is unique on purpose: Waybill has to see to that.
CREATE TABLE sales (seq INTEGER PRIMARY KEY AUTOINCREMENT, event_id BLOB NOT NULL, sku TEXT NOT NULL, quantity INTEGER NOT NULL, number INTEGER NOT NULL) STRICT;
-- What the courier has booked, in the order of its commits; sales counts what the inventory had done by then.
CREATE TABLE parcels (seq INTEGER PRIMARY KEY AUTOINCREMENT, event_id BLOB NOT NULL, sku TEXT NOT NULL, number INTEGER NOT NULL, sales INTEGER NOT NULL) STRICT;
-- What customers were answered, what went wrong on purpose, and what passed between the parts. These are written by the demonstration, not by the shop.
CREATE TABLE answers (key TEXT NOT NULL, status INTEGER NOT NULL, replayed INTEGER NOT NULL, order_id TEXT, body TEXT NOT NULL) STRICT;
CREATE TABLE faults (kind TEXT NOT NULL, after_ms INTEGER NOT NULL) STRICT;
CREATE TABLE seen (place TEXT NOT NULL, class TEXT NOT NULL, again INTEGER NOT NULL, n INTEGER NOT NULL, PRIMARY KEY (place, class, again)) STRICT`

// initialStock suffices for some hours.
const initialStock = 100_000

// products are the products of the shop. Each is an aggregate: its events are
// ordered.
var products = []string{"tea", "coffee", "cocoa"}

// Order is the response to an order.
type Order struct {
	ID       publicid.ID[Order] `json:"id"`
	SKU      string             `json:"sku"`
	Quantity int                `json:"quantity"`
	Number   int                `json:"number"`
}

// PublicPrefix makes ids of orders start with ord_.
func (Order) PublicPrefix() string { return "ord" }

// Placed is the payload of OrderPlaced: the data that the inventory needs.
type Placed struct {
	SKU      string `json:"sku"`
	Quantity int    `json:"quantity"`
	Number   int    `json:"number"`
}

// Stream is the first part of the topics.
const Stream = "shop"

// group is the consumer group of the inventory's inbox.
const group = "INVENTORY"

// OrderPlaced belongs to the aggregate of its product, so that the events of a
// product are ordered.
var OrderPlaced = waybill.Define[Placed]("OrderPlaced", waybill.Spec{AggregateType: "product", Topic: Stream + ".placed"})

// shop accepts orders and maintains the stock.
type shop struct {
	box    *outbox.Outbox[*sql.Tx]
	faults *faults
}

// create accepts an order in the transaction that also holds the key and the
// answer.
func (s *shop) create(w http.ResponseWriter, r *http.Request, tx *sql.Tx) error {
	var o Order
	body := io.LimitReader(r.Body, 1<<10)
	if err := json.NewDecoder(body).Decode(&struct {
		SKU      *string `json:"sku"`
		Quantity *int    `json:"quantity"`
	}{&o.SKU, &o.Quantity}); err != nil || o.Quantity < 1 || o.Quantity > 100 {
		http.Error(w, `invalid order; expected {"sku": "tea", "quantity": 1 to 100}`, http.StatusBadRequest)
		return nil // this answer is stored, too, for repeated requests
	}
	ctx := r.Context()
	err := tx.QueryRowContext(ctx, `UPDATE product SET orders = orders + 1 WHERE sku = ? RETURNING orders`, o.SKU).Scan(&o.Number)
	if errors.Is(err, sql.ErrNoRows) {
		http.Error(w, "unknown product; products: "+strings.Join(products, ", "), http.StatusNotFound)
		return nil
	}
	if err != nil {
		return err
	}
	o.ID = publicid.New[Order]()
	ev := OrderPlaced.New(o.SKU, Placed{SKU: o.SKU, Quantity: o.Quantity, Number: o.Number})
	ev.ID = waybill.NewID()
	_, err = tx.ExecContext(ctx, `INSERT INTO orders (id, key, sku, quantity, number, event_id) VALUES (?, ?, ?, ?, ?, ?)`,
		o.ID.String(), strings.Trim(r.Header.Get("Idempotency-Key"), `"`), o.SKU, o.Quantity, o.Number, ev.ID[:])
	if err != nil {
		return err
	}
	if err := s.box.Write(ctx, tx, ev); err != nil {
		return err
	}
	if s.faults.strikes(checkoutFails) {
		return errInjected // everything is rolled back: the order, its number, the event, the key
	}
	httpkey.SetRef(ctx, o.ID.String())
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(http.StatusCreated)
	return json.NewEncoder(w).Encode(o)
}

var errInjected = errors.New("demo: injected fault")

// apply subtracts an order from the stock.
func apply(ctx context.Context, tx *sql.Tx, ev waybill.Event, p Placed) error {
	if _, err := tx.ExecContext(ctx, `UPDATE product SET left = left - ? WHERE sku = ?`, p.Quantity, p.SKU); err != nil {
		return err
	}
	_, err := tx.ExecContext(ctx, `INSERT INTO sales (event_id, sku, quantity, number) VALUES (?, ?, ?, ?)`, ev.ID[:], p.SKU, p.Quantity, p.Number)
	return err
}

// loseHeader makes the simulated network lose the response.
const loseHeader = "Demo-Lose-Answer"

// lossy is a network that loses responses: the handler has committed, and the
// connection breaks.
func (s *shop) lossy(next http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get(loseHeader) == "" {
			next.ServeHTTP(w, r)
			return
		}
		r.Header.Del(loseHeader)
		next.ServeHTTP(&nowhere{header: http.Header{}}, r)
		s.faults.note(answerLost)
		panic(http.ErrAbortHandler)
	})
}

// nowhere discards lost responses.
type nowhere struct{ header http.Header }

func (n *nowhere) Header() http.Header         { return n.header }
func (n *nowhere) Write(p []byte) (int, error) { return len(p), nil }
func (n *nowhere) WriteHeader(int)             {}
