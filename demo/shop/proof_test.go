package shop

import (
	"database/sql"
	"fmt"
	"path/filepath"
	"strings"
	"testing"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// ledger is the shop's tables, written by the test.
type ledger struct {
	*testing.T
	db *sql.DB
}

func newLedger(t *testing.T) *ledger {
	t.Helper()
	store, err := sqlitestore.Open(filepath.Join(t.TempDir(), file), sqlitestore.Config{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := store.Close(); err != nil {
			t.Error(err)
		}
	})
	if _, err := store.Migrate(t.Context()); err != nil {
		t.Fatal(err)
	}
	l := &ledger{t, store.DB()}
	l.do(tables)
	l.do(`INSERT INTO product (sku, initial, left) VALUES ('tea', 100, 100)`)
	return l
}

func (l *ledger) do(statement string, args ...any) {
	l.Helper()
	if _, err := l.db.ExecContext(l.Context(), statement, args...); err != nil {
		l.Fatalf("%s: %v", statement, err)
	}
}

// order places an order of one item, with its event and the customer's answer.
func (l *ledger) order(number int) waybill.ID {
	l.Helper()
	id := waybill.NewID()
	l.do(`UPDATE product SET orders = orders + 1`)
	l.do(`INSERT INTO orders (id, key, sku, quantity, number, event_id) VALUES (?1, ?1, 'tea', 1, ?2, ?3)`, fmt.Sprint("ord_", number), number, id[:])
	l.do(`INSERT INTO answers (key, status, replayed, order_id, body) VALUES (?1, 201, 0, ?1, ?1)`, fmt.Sprint("ord_", number))
	l.event(id)
	return id
}

func (l *ledger) event(id waybill.ID) {
	l.Helper()
	l.do(`INSERT INTO waybill_outbox (id, type, payload) VALUES (?, 'OrderPlaced', '{}')`, id[:])
}

// effect is the inventory's effect of an order; record is the inbox record.
func (l *ledger) effect(id waybill.ID, number int) {
	l.Helper()
	l.do(`UPDATE product SET left = left - 1`)
	l.do(`INSERT INTO sales (event_id, sku, quantity, number) VALUES (?, 'tea', 1, ?)`, id[:], number)
}

func (l *ledger) record(id waybill.ID) {
	l.Helper()
	l.recordOf(group, id)
}

func (l *ledger) recordOf(group string, id waybill.ID) {
	l.Helper()
	l.do(`INSERT INTO waybill_inbox (consumer_group, dedup_id, event_id, tenant_id, event_type, payload_hash, status, fence, attempts, received_at)
VALUES (?2, ?1, ?1, '', 'OrderPlaced', zeroblob(16), 1, 1, 1, 0)`, id[:], group)
}

// book is the courier's effect of an order, without its inbox record.
func (l *ledger) book(id waybill.ID, number int) {
	l.Helper()
	l.do(`INSERT INTO parcels (event_id, sku, number, sales) SELECT ?, 'tea', ?, coalesce(max(seq), 0) FROM sales`, id[:], number)
}

// TestProof breaks each promise in each way. The proof reports the violation
// and the event; an event in flight is no finding before the end.
func TestProof(t *testing.T) {
	const atOnce, atTheEnd = true, false
	for _, c := range []struct {
		name    string
		promise int  // the broken promise; 0: none
		when    bool // whether the violation shows immediately, or only at the end
		do      func(l *ledger) waybill.ID
		says    string
	}{
		{"all is well", 0, atOnce, func(l *ledger) waybill.ID {
			for n := 1; n <= 3; n++ {
				id := l.order(n)
				l.effect(id, n)
				l.record(id)
				l.book(id, n)
				l.recordOf(courierGroup, id)
			}
			return waybill.ID{}
		}, ""},
		{"an order without an event", 1, atOnce, func(l *ledger) waybill.ID {
			id := l.order(1)
			l.do(`DELETE FROM waybill_outbox`)
			return id
		}, "is there 0 times"},
		{"an event without an order", 1, atOnce, func(l *ledger) waybill.ID {
			id := waybill.NewID()
			l.event(id)
			return id
		}, "has no order"},
		{"two events", 1, atOnce, func(l *ledger) waybill.ID {
			id := l.order(1)
			l.do(`INSERT INTO waybill_history (lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, attempts, replay, done_at)
SELECT lane, seq, id, type, aggregate_type, schema_version, occurred_at, priority, payload, created_at, 0, 0, 0 FROM waybill_outbox`)
			return id
		}, "is there 2 times"},
		{"a lost event", 2, atTheEnd, func(l *ledger) waybill.ID { return l.order(1) }, "was never applied"},
		{"an effect twice", 2, atOnce, func(l *ledger) waybill.ID {
			id := l.order(1)
			l.effect(id, 1)
			l.effect(id, 1)
			l.record(id)
			return id
		}, "was applied 2 times, and recorded 1 times"},
		{"an effect without a record", 2, atOnce, func(l *ledger) waybill.ID {
			id := l.order(1)
			l.effect(id, 1)
			return id
		}, "was applied 1 times, and recorded 0 times"},
		{"a record without an effect", 2, atOnce, func(l *ledger) waybill.ID {
			id := l.order(1)
			l.record(id)
			l.do(`UPDATE product SET left = left - 1`)
			return id
		}, "was never applied"},
		{"an event that the courier lost", 2, atTheEnd, func(l *ledger) waybill.ID {
			id := l.order(1)
			l.effect(id, 1)
			l.record(id)
			return id
		}, "was never applied by the courier"},
		{"a parcel twice", 2, atOnce, func(l *ledger) waybill.ID {
			id := l.order(1)
			l.book(id, 1)
			l.book(id, 1)
			l.recordOf(courierGroup, id)
			return id
		}, "was applied 2 times, and recorded 1 times by the courier"},
		{"a parcel overtaken", 4, atOnce, func(l *ledger) waybill.ID {
			first, second := l.order(1), l.order(2)
			for n, id := range []waybill.ID{second, first} {
				l.book(id, 2-n)
				l.recordOf(courierGroup, id)
			}
			return first
		}, "(tea, order 1) was applied after order 2 by the courier"},
		{"stock that went elsewhere", 3, atOnce, func(l *ledger) waybill.ID {
			l.do(`UPDATE product SET left = left - 7`)
			return waybill.ID{}
		}, "tea: 93 left + 0 sold is not 100"},
		{"an order overtaken", 4, atOnce, func(l *ledger) waybill.ID {
			first, second := l.order(1), l.order(2)
			l.effect(second, 2)
			l.record(second)
			l.effect(first, 1)
			l.record(first)
			return first
		}, "(tea, order 1) was applied after order 2"},
		{"two orders of a key", 5, atOnce, func(l *ledger) waybill.ID {
			id := l.order(1)
			l.order(2)
			l.do(`UPDATE orders SET key = 'ord_1'`)
			return id
		}, "which has 2 orders"},
		{"two answers of a key", 5, atOnce, func(l *ledger) waybill.ID {
			id := l.order(1)
			l.do(`INSERT INTO answers (key, status, replayed, order_id, body) VALUES ('ord_1', 201, 1, 'ord_1', 'another')`)
			return id
		}, "2 different answers"},
		{"an answer that was never given", 5, atTheEnd, func(l *ledger) waybill.ID {
			id := l.order(1)
			l.do(`DELETE FROM answers`)
			return id
		}, "0 different answers"},
	} {
		t.Run(c.name, func(t *testing.T) {
			l := newLedger(t)
			id := c.do(l)
			l.expect(c.promise, id, c.says, true)
			if c.when == atTheEnd {
				l.expect(0, waybill.ID{}, "", false)
			} else {
				l.expect(c.promise, id, c.says, false)
			}
		})
	}
}

// expect checks the findings of the proof; promise 0: none.
func (l *ledger) expect(promise int, id waybill.ID, says string, settled bool) {
	l.Helper()
	p, err := prove(l.Context(), l.db, settled)
	if err != nil {
		l.Fatal(err)
	}
	if promise == 0 {
		if err := p.broken(); err != nil {
			l.Errorf("settled %v: %v", settled, err)
		}
		return
	}
	for _, f := range p.findings[promise-1] {
		if f.event == id && strings.Contains(f.what, says) {
			return
		}
	}
	l.Errorf("promise %d: %q of event %s is not among %v", promise, says, id, p.findings)
}
