package shop

import (
	"context"
	"database/sql"
	"errors"
	"sync/atomic"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
)

// courierGroup is the consumer group of the courier.
const courierGroup = "COURIER"

// courier is the second destination of the relay. It books a parcel for every
// order, and is closed at times: its events wait then, and no others.
type courier struct {
	to     waybill.Sink
	closed atomic.Bool
}

var errClosed = errors.New("demo: the courier is closed")

// Deliver implements [waybill.Sink].
func (c *courier) Deliver(ctx context.Context, batch []waybill.Delivery) []error {
	if c.closed.Load() {
		return all(batch, waybill.Unavailable(errClosed))
	}
	return c.to.Deliver(ctx, batch)
}

func (w *world) openCourier(context.Context) (err error) {
	w.inbox, err = inbox.New(w.store, inbox.Config{Observe: w.hooks(), Logger: silent}) // the broker and the relay redeliver failed events
	if err != nil {
		return err
	}
	books, err := w.inbox.Group(courierGroup, inbox.Options{BackoffBase: 50 * time.Millisecond, BackoffMax: 500 * time.Millisecond, Lease: 2 * time.Second})
	if err != nil {
		return err
	}
	inbox.On(books, OrderPlaced, book)
	w.courier = &courier{to: border{atCourier, books, w.crossings}}
	return nil
}

// book is the courier's handler.
func book(ctx context.Context, tx *sql.Tx, ev waybill.Event, p Placed) error {
	_, err := tx.ExecContext(ctx, `INSERT INTO parcels (event_id, sku, number, sales) SELECT ?, ?, ?, coalesce(max(seq), 0) FROM sales`, ev.ID[:], p.SKU, p.Number)
	return err
}

const (
	// lead is the number of orders by which the inventory gets ahead of the
	// courier before the courier opens again.
	lead = 15
	// leadTimeout is the time limit for that. In the fixed scenario, whose
	// customers leave, an inventory that takes longer was held up.
	leadTimeout = 30 * time.Second
)

// reopen opens the closed courier when the inventory is ahead of it, or the
// demo ends.
func (w *world) reopen(ctx context.Context) error {
	defer w.courier.closed.Store(false)
	for began := time.Now(); ctx.Err() == nil && w.courier.closed.Load(); pause(ctx, drainPoll) {
		var ahead int
		err := w.store.DB().QueryRowContext(ctx, `SELECT (SELECT coalesce(max(seq), 0) FROM sales) - (SELECT coalesce(max(seq), 0) FROM parcels)`).Scan(&ahead)
		switch {
		case err == nil && ahead >= lead:
			return nil
		case err != nil && ctx.Err() == nil:
			return err
		case time.Since(began) > leadTimeout && w.isFixed():
			return errors.New("demo: the inventory waits for the courier, which is closed")
		case time.Since(began) > leadTimeout:
			return nil // the machine is slow, and customers keep coming
		}
	}
	return nil
}
