package sqlitestore_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/eventrow"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
	"github.com/waybillhq/waybill/store/sqlitestore"
)

// BenchmarkWrite compares a write through the outbox with the floor: the same
// rows, inserted by hand with prepared statements in chunks of the same size.
// An operation is one event; every transaction also inserts a row of the
// service.
func BenchmarkWrite(b *testing.B) {
	for _, n := range []int{1, 100, 1000} {
		b.Run(fmt.Sprintf("floor/%d", n), func(b *testing.B) { benchFloor(b, n) })
		b.Run(fmt.Sprintf("outbox/%d", n), func(b *testing.B) { benchOutbox(b, n) })
	}
}

func benchEvents(n int) []waybill.Event {
	payload := []byte(`{"note":"` + strings.Repeat("x", 489) + `"}`)
	evs := make([]waybill.Event, n)
	for i := range evs {
		evs[i] = waybill.Event{Type: "OrderPlaced", AggregateType: "order", AggregateID: "o-1234567", Payload: payload}
	}
	return evs
}

func benchStore(b *testing.B) (*sqlitestore.Store, *sql.Stmt) {
	db := open(b, sqlitestore.Config{})
	if _, err := db.DB().ExecContext(b.Context(), `CREATE TABLE orders (id INTEGER PRIMARY KEY, note TEXT NOT NULL)`); err != nil {
		b.Fatal(err)
	}
	order, err := db.DB().PrepareContext(b.Context(), `INSERT INTO orders (note) VALUES (?)`)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { _ = order.Close() })
	return db, order
}

func benchOutbox(b *testing.B, n int) {
	db, order := benchStore(b)
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	ctx := context.Background()
	evs := benchEvents(n)
	transaction := func() {
		err := box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error {
			if _, err := tx.StmtContext(ctx, order).ExecContext(ctx, "hello"); err != nil { //nolint:sqlclosecheck // ends with the transaction
				return err
			}
			return box.Write(ctx, tx, evs...)
		})
		if err != nil {
			b.Fatal(err)
		}
	}
	transaction() // the first transaction marks the statements to prepare
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += n {
		transaction()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

func benchFloor(b *testing.B, n int) {
	db, order := benchStore(b)
	columns := eventrow.Columns()
	stmts := map[int]*sql.Stmt{}
	for _, size := range []int{64, 8, 1} {
		row := "(?" + strings.Repeat(", ?", len(columns)) + ")"
		stmt, err := db.DB().PrepareContext(b.Context(), `INSERT INTO waybill_outbox (created_at, `+strings.Join(columns, ", ")+`) VALUES `+
			row+strings.Repeat(", "+row, size-1))
		if err != nil {
			b.Fatal(err)
		}
		b.Cleanup(func() { _ = stmt.Close() })
		stmts[size] = stmt
	}
	ctx := context.Background()
	payload := benchEvents(1)[0].Payload
	transaction := func() {
		tx, err := db.DB().BeginTx(ctx, nil)
		if err != nil {
			b.Fatal(err)
		}
		if _, err := tx.StmtContext(ctx, order).ExecContext(ctx, "hello"); err != nil { //nolint:sqlclosecheck // ends with the transaction
			b.Fatal(err)
		}
		for left := n; left > 0; {
			size := 64
			for size > left {
				size /= 8
			}
			args := make([]any, 0, size*(len(columns)+1))
			now := time.Now().UnixMicro()
			for range size {
				id := waybill.NewID()
				args = append(args, now, id[:], "OrderPlaced", "order", "o-1234567", nil, "OrderPlaced", nil, nil, 1, nil,
					now, 0, nil, nil, nil, nil, payload)
			}
			if _, err := tx.StmtContext(ctx, stmts[size]).ExecContext(ctx, args...); err != nil { //nolint:sqlclosecheck // ends with the transaction
				b.Fatal(err)
			}
			left -= size
		}
		if err := tx.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	transaction()
	b.ReportAllocs()
	b.ResetTimer()
	for i := 0; i < b.N; i += n {
		transaction()
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}

// BenchmarkDrain reads and settles, as a relay does, without delivering. An
// operation is one event.
func BenchmarkDrain(b *testing.B) {
	for _, history := range []bool{false, true} {
		for _, batch := range []int{100, 500, 1000} {
			b.Run(fmt.Sprintf("history=%v/%d", history, batch), func(b *testing.B) {
				db := open(b, sqlitestore.Config{})
				box := newBox(b, db.Driver().Outbox)
				leases := owner(b, db)
				for left := b.N; left > 0; left -= 1000 {
					err := box.InTx(b.Context(), func(ctx context.Context, tx *sql.Tx) error {
						return box.Write(ctx, tx, benchEvents(min(left, 1000))...)
					})
					if err != nil {
						b.Fatal(err)
					}
				}
				ctx := context.Background()
				b.ReportAllocs()
				b.ResetTimer()
				after, n := int64(0), 0
				for n < b.N {
					page, err := db.Driver().Relay.Fetch(ctx, []driver.Cursor{{After: after}}, batch)
					if err != nil {
						b.Fatal(err)
					}
					done := make([]driver.Result, len(page.Rows))
					for i, row := range page.Rows {
						done[i].ID = row.ID
						after = row.Seq
					}
					settled, err := db.Driver().Relay.Settle(ctx, driver.Settlement{Leases: leases, Done: done, History: history})
					if err != nil || len(settled.Moved) != len(done) {
						b.Fatal(err, len(settled.Moved))
					}
					n += len(done)
				}
				b.ReportMetric(float64(n)/b.Elapsed().Seconds(), "events/s")
			})
		}
	}
}
