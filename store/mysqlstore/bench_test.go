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
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store/driver"
)

// benchBoth runs a benchmark on MariaDB and on MySQL, one after the other. The
// server is the second part of the benchmark's name; see serverOf.
func benchBoth(b *testing.B, run func(b *testing.B)) {
	b.Helper()
	for _, server := range []string{testserver.MariaDBName, testserver.MySQLName} {
		b.Run(server, run)
	}
}

// BenchmarkWrite compares a write through the outbox with a baseline: the same
// rows, inserted by hand with a prepared statement of exactly that many. An
// operation is one event; every transaction also inserts a row of the service.
// Compare within one run, and alternate the variants: -count=5.
func BenchmarkWrite(b *testing.B) {
	benchBoth(b, func(b *testing.B) {
		for _, interpolate := range []bool{false, true} {
			for _, load := range []struct{ conns, events int }{{1, 1}, {8, 1}, {1, 100}, {8, 100}, {1, 1000}} {
				name := fmt.Sprintf("interpolate=%t/conns=%d/events=%d", interpolate, load.conns, load.events)
				b.Run(name+"/floor", func(b *testing.B) { benchWrite(b, interpolate, load.conns, load.events, true) })
				b.Run(name+"/outbox", func(b *testing.B) { benchWrite(b, interpolate, load.conns, load.events, false) })
			}
		}
	})
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
			args = append(args, driver.LaneOf("", ev.AggregateType, ev.AggregateID, 32), id[:], ev.Type, ev.AggregateType, ev.AggregateID,
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
	for range 3 { // prepare the statements before the measurement
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

// BenchmarkDrain compares reading and settling with a baseline: a page of one
// lane, and a DELETE of its ids in a transaction. An operation is one event.
func BenchmarkDrain(b *testing.B) {
	benchBoth(b, func(b *testing.B) {
		for _, page := range []int{100, 500} {
			for _, way := range []string{"floor", "done", "done with history"} {
				b.Run(fmt.Sprintf("page=%d/%s", page, way), func(b *testing.B) { benchDrain(b, page, way) })
			}
		}
	})
}

func benchDrain(b *testing.B, page int, way string) {
	s, db := openStore(b, nil)
	_, leases := own(b, s)
	evs := make([]waybill.Event, 1000)
	for left := b.N + page; left > 0; left -= len(evs) {
		for i := range evs {
			evs[i] = event("a")
			evs[i].Payload = []byte(`{"note":"` + strings.Repeat("x", 489) + `"}`)
		}
		write(b, s, db, evs...)
	}
	lane := driver.LaneOf("", "thing", "a", 32)
	ctx := b.Context()
	var after int64
	b.ResetTimer()
	for done := 0; done < b.N; done += page {
		p, err := s.Driver().Relay.Fetch(ctx, []driver.Cursor{{Lane: lane, After: after}}, page)
		if err != nil || len(p.Rows) != page {
			b.Fatal(len(p.Rows), err)
		}
		after = p.Rows[page-1].Seq
		if way != "floor" {
			settled, err := s.Driver().Relay.Settle(ctx, driver.Settlement{Leases: leases[lane : lane+1], Done: results(p.Rows), History: way != "done"})
			if err != nil || len(settled.Moved) != page {
				b.Fatal(len(settled.Moved), err)
			}
			continue
		}
		args := make([]any, page)
		for i := range p.Rows {
			args[i] = p.Rows[i].ID[:]
		}
		tx, err := db.BeginTx(ctx, &sql.TxOptions{Isolation: sql.LevelReadCommitted})
		if err != nil {
			b.Fatal(err)
		}
		if _, err := tx.ExecContext(ctx, "DELETE FROM waybill_outbox WHERE id IN (?"+strings.Repeat(", ?", page-1)+")", args...); err != nil {
			b.Fatal(err)
		}
		if err := tx.Commit(); err != nil {
			b.Fatal(err)
		}
	}
	b.ReportMetric(float64(b.N)/b.Elapsed().Seconds(), "events/s")
}
