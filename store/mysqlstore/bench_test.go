package mysqlstore_test

import (
	"context"
	"database/sql"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/go-sql-driver/mysql"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
)

// BenchmarkWrite compares a write through the outbox with the floor: the same rows, inserted by hand with a prepared statement of
// exactly that many. An operation is one event; every transaction also inserts a row of the service. Compare within one run, and
// let the contenders take turns: -count=5.
func BenchmarkWrite(b *testing.B) {
	for _, interpolate := range []bool{false, true} {
		for _, load := range []struct{ conns, events int }{{1, 1}, {8, 1}, {1, 100}, {8, 100}, {1, 1000}} {
			name := fmt.Sprintf("interpolate=%t/conns=%d/events=%d", interpolate, load.conns, load.events)
			b.Run(name+"/floor", func(b *testing.B) { benchWrite(b, interpolate, load.conns, load.events, true) })
			b.Run(name+"/outbox", func(b *testing.B) { benchWrite(b, interpolate, load.conns, load.events, false) })
		}
	}
}

func benchWrite(b *testing.B, interpolate bool, conns, events int, byHand bool) {
	s, db := openStore(b, func(c *mysql.Config) { c.InterpolateParams = interpolate })
	db.SetMaxIdleConns(conns + 1)
	box, err := outbox.New(s, outbox.Config{})
	if err != nil {
		b.Fatal(err)
	}
	const row = "(?, ?, ?, ?, ?, ?, ?, ?)"
	insert, err := db.PrepareContext(b.Context(), "INSERT INTO waybill_outbox (lane, id, type, aggregate_type, aggregate_id, topic, occurred_at, payload) VALUES "+
		row+strings.Repeat(", "+row, events-1))
	if err != nil {
		b.Fatal(err)
	}
	defer insert.Close() //nolint:errcheck // the benchmark is over then
	order, err := db.PrepareContext(b.Context(), "INSERT INTO business (note) VALUES (?)")
	if err != nil {
		b.Fatal(err)
	}
	defer order.Close() //nolint:errcheck // the benchmark is over then
	payload := []byte(`{"note":"` + strings.Repeat("x", 489) + `"}`)
	work := func(ctx context.Context, tx *sql.Tx, worker int) error {
		if _, err := tx.StmtContext(ctx, order).ExecContext(ctx, "an order"); err != nil { //nolint:sqlclosecheck // ends with the transaction
			return err
		}
		evs := make([]waybill.Event, events)
		for i := range evs {
			evs[i] = waybill.Event{Type: "OrderPlaced", AggregateType: "order", AggregateID: fmt.Sprintf("%d-%d", worker, i%10), Payload: payload}
		}
		if !byHand {
			return box.Write(ctx, tx, evs...)
		}
		args := make([]any, 0, 8*events)
		for _, ev := range evs {
			id := waybill.NewID()
			args = append(args, store.LaneOf("", ev.AggregateType, ev.AggregateID, 32), id[:], ev.Type, ev.AggregateType, ev.AggregateID,
				ev.Type, id.Time().UTC().Format("2006-01-02 15:04:05.000000"), ev.Payload)
		}
		_, err := tx.StmtContext(ctx, insert).ExecContext(ctx, args...) //nolint:sqlclosecheck // ends with the transaction
		return err
	}
	transaction := func(ctx context.Context, worker int) error {
		if !byHand {
			return box.InTx(ctx, func(ctx context.Context, tx *sql.Tx) error { return work(ctx, tx, worker) })
		}
		tx, err := db.BeginTx(ctx, nil)
		if err != nil {
			return err
		}
		defer tx.Rollback() //nolint:errcheck // harmless after the commit
		if err := work(ctx, tx, worker); err != nil {
			return err
		}
		return tx.Commit()
	}
	for range 3 { // what is prepared in time is prepared
		if err := transaction(b.Context(), 0); err != nil {
			b.Fatal(err)
		}
	}
	b.ResetTimer()
	var wg sync.WaitGroup
	for worker := range conns {
		wg.Go(func() {
			for range (b.N/events + conns - 1) / conns {
				if err := transaction(b.Context(), worker); err != nil {
					b.Error(err)
					return
				}
			}
		})
	}
	wg.Wait()
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
