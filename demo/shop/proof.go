package shop

import (
	"context"
	"database/sql"
	"errors"
	"fmt"
	"time"

	"github.com/waybillhq/waybill"
)

// promise is a condition that holds at every moment, whatever faults occur. Its
// query returns violations: the event, if there is one, and a description. ?1
// is 1 when no event is in flight any more; then no event may be missing
// either.
type promise struct {
	name string
	sql  string
}

var promises = []promise{
	{"one order, one event", `
SELECT id, CASE WHEN orders = 0 THEN 'has no order' ELSE 'is there ' || events || ' times, and its order ' || orders || ' times' END
FROM (SELECT id, sum(is_order) AS orders, sum(is_event) AS events FROM (
        SELECT event_id AS id, 1 AS is_order, 0 AS is_event FROM orders
        UNION ALL SELECT id, 0, 1 FROM waybill_outbox   -- ready
        UNION ALL SELECT id, 0, 1 FROM waybill_delayed  -- waiting for another attempt
        UNION ALL SELECT id, 0, 1 FROM waybill_dead
        UNION ALL SELECT id, 0, 1 FROM waybill_history  -- delivered
      ) GROUP BY id)
WHERE orders <> 1 OR events <> 1 LIMIT 5`},

	{"one event, one effect", `
SELECT id, CASE WHEN applied = 0 THEN 'was never applied' ELSE 'was applied ' || applied || ' times, and recorded ' || recorded || ' times' END || CASE who WHEN 'COURIER' THEN ' by the courier' ELSE '' END
FROM (SELECT id, who, sum(a) AS applied, sum(r) AS recorded FROM (
        SELECT event_id AS id, 'INVENTORY' AS who, 0 AS a, 0 AS r FROM orders
        UNION ALL SELECT event_id, 'COURIER', 0, 0 FROM orders
        UNION ALL SELECT event_id, 'INVENTORY', 1, 0 FROM sales
        UNION ALL SELECT event_id, 'COURIER', 1, 0 FROM parcels
        UNION ALL SELECT event_id, consumer_group, 0, 1 FROM waybill_inbox WHERE status = 1
      ) GROUP BY id, who)
WHERE applied > 1 OR applied <> recorded OR (?1 AND applied = 0) LIMIT 5`},

	{"stock and orders agree", `
SELECT NULL, p.sku || ': ' || p.left || ' left + ' || sold || ' sold is not ' || p.initial
FROM (SELECT p.sku, p.left, p.initial, coalesce(sum(o.quantity) FILTER (WHERE ?1 OR i.status = 1), 0) AS sold
      FROM product p LEFT JOIN orders o ON o.sku = p.sku
                     LEFT JOIN waybill_inbox i ON i.consumer_group = 'INVENTORY' AND i.dedup_id = o.event_id
      GROUP BY p.sku) p
WHERE p.left + sold <> p.initial LIMIT 5`},

	{"events stay in order", `
SELECT event_id, '(' || sku || ', order ' || number || ') was applied after order ' || before || place
FROM (SELECT event_id, sku, number, place,
             max(number) OVER (PARTITION BY place, sku ORDER BY seq ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS before
      FROM (SELECT '' AS place, seq, event_id, sku, number FROM sales UNION ALL SELECT ' by the courier', seq, event_id, sku, number FROM parcels))
WHERE number < before LIMIT 5`},

	{"one key, one order, one answer", `
SELECT o.event_id, 'belongs to key ' || k.key || ', which has ' || k.orders || ' orders and ' || k.answers || ' different answers'
FROM (SELECT key, count(DISTINCT id) AS orders, count(DISTINCT body) AS answers FROM (
        SELECT key, id, NULL AS body FROM orders
        UNION ALL SELECT key, order_id, body FROM answers WHERE status = 201
      ) GROUP BY key) k
LEFT JOIN orders o ON o.key = k.key
WHERE k.orders <> 1 OR k.answers > 1 OR (?1 AND k.answers = 0) LIMIT 5`},
}

// countAll reads the numbers of the view.
const countAll = `
SELECT (SELECT count(*) FROM orders),
       (SELECT count(*) FROM waybill_outbox) + (SELECT count(*) FROM waybill_delayed),
       (SELECT count(*) FROM waybill_dead),
       (SELECT count(*) FROM waybill_history),
       (SELECT count(*) FROM sales),
       (SELECT count(*) FROM parcels),
       (SELECT coalesce(max(sales - seq + 1), 0) FROM parcels),  -- by how many orders the inventory was ahead of the courier
       (SELECT count(*) FROM answers WHERE status = 201)`

const countProducts = `
SELECT p.sku, p.initial, p.left, p.orders, coalesce(sum(s.quantity), 0), count(s.seq)
FROM product p LEFT JOIN sales s ON s.sku = p.sku GROUP BY p.sku ORDER BY p.rowid`

// finding is a violation of a promise.
type finding struct {
	event waybill.ID // zero without an event
	what  string
}

func (f finding) String() string {
	if f.event.IsZero() {
		return f.what
	}
	return "event " + f.event.String() + " " + f.what
}

// proof is the content of the tables at one moment.
type proof struct {
	settled                                          bool
	took                                             time.Duration
	orders, pending, dead, history, applied, answers int64
	booked, ahead                                    int64
	products                                         []stock
	findings                                         [][]finding // by promise
}

// stock is a product: its stock, and the number of its orders that the
// inventory has processed.
type stock struct {
	sku                                   string
	initial, left, orders, sold, reserved int64
}

// broken returns the first broken promise, preferably one with a known event,
// or nil.
func (p *proof) broken() error {
	var first *BrokenError
	for i, findings := range p.findings {
		for _, f := range findings {
			e := &BrokenError{Promise: i + 1, Name: promises[i].name, Finding: f.String()}
			if !f.event.IsZero() {
				return e
			}
			if first == nil {
				first = e
			}
		}
	}
	if first == nil {
		return nil
	}
	return first
}

// prove queries the tables after all responses to customers are recorded.
func (w *world) prove(ctx context.Context, settled bool) (*proof, error) {
	if err := w.journal.flush(); err != nil {
		return nil, err
	}
	return prove(ctx, w.store.DB(), settled)
}

// prove reads in one transaction, so that all numbers are of the same moment.
// settled means that no event is in flight any more.
func prove(ctx context.Context, db *sql.DB, settled bool) (*proof, error) {
	began := time.Now()
	tx, err := db.BeginTx(ctx, &sql.TxOptions{ReadOnly: true})
	if err != nil {
		return nil, fmt.Errorf("demo: the proof: %w", err)
	}
	defer func() { _ = tx.Rollback() }() // read only
	p := &proof{settled: settled}
	if err := p.read(ctx, tx); err != nil {
		return nil, fmt.Errorf("demo: the proof: %w", err)
	}
	p.took = time.Since(began)
	return p, nil
}

func (p *proof) read(ctx context.Context, tx *sql.Tx) error {
	err := tx.QueryRowContext(ctx, countAll).Scan(&p.orders, &p.pending, &p.dead, &p.history, &p.applied, &p.booked, &p.ahead, &p.answers)
	if err != nil {
		return err
	}
	err = each(ctx, tx, countProducts, nil, func(rows *sql.Rows) error {
		p.products = append(p.products, stock{})
		last := &p.products[len(p.products)-1]
		return rows.Scan(&last.sku, &last.initial, &last.left, &last.orders, &last.sold, &last.reserved)
	})
	if err != nil {
		return err
	}
	for _, one := range promises {
		var found []finding
		err := each(ctx, tx, one.sql, []any{p.settled}, func(rows *sql.Rows) error {
			var id []byte
			var f finding
			if err := rows.Scan(&id, &f.what); err != nil {
				return err
			}
			if len(id) > 0 {
				if err := f.event.UnmarshalBinary(id); err != nil {
					return err
				}
			}
			found = append(found, f)
			return nil
		})
		if err != nil {
			return fmt.Errorf("%s: %w", one.name, err)
		}
		p.findings = append(p.findings, found)
	}
	return nil
}

// each calls fn for every row.
func each(ctx context.Context, tx *sql.Tx, query string, args []any, fn func(rows *sql.Rows) error) (err error) {
	rows, err := tx.QueryContext(ctx, query, args...)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, rows.Close()) }()
	for rows.Next() {
		if err := fn(rows); err != nil {
			return err
		}
	}
	return rows.Err()
}
