package pgstore_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/internal/testserver"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/relay/relaytest"
	"github.com/waybillhq/waybill/store/drivertest"
)

// TestRelay tests the guarantees of the relay over pgx.
func TestRelay(t *testing.T) {
	pool := openPool(t, manyConns)
	relaytest.Run(t, drivertest.Harness[pgx.Tx]{
		Name: "pgstore", Features: all,
		Open: shelve(t, pool).pgx,
	})
}

// TestRelaySQL tests the guarantees of the relay over database/sql. The relay
// is the same as in TestRelay, and TestConformanceSQL has the contract of every
// call that it makes.
func TestRelaySQL(t *testing.T) {
	if !testserver.Full() {
		t.Skip("make test-stores-full runs it")
	}
	pool := openPool(t, manyConns)
	features := all
	features.SavepointAPI = false
	relaytest.Run(t, drivertest.Harness[*sql.Tx]{
		Name: "pgstore/sql", Features: features,
		Open: shelve(t, pool).sql,
	})
}

// TestNotDueYet: the relay defers a row that was inserted with plain SQL and a
// future time, and delivers it when it is due.
func TestNotDueYet(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	_, err := pool.Exec(t.Context(), `INSERT INTO "`+schema+`".waybill_outbox (type, aggregate_type, aggregate_id, payload, available_at)
VALUES ('Tested', 'thing', 'a', '1', clock_timestamp() + interval '1500 milliseconds'), ('Tested', 'thing', 'a', '2', NULL)`)
	if err != nil {
		t.Fatal(err)
	}
	type arrival struct {
		payload string
		early   bool
	}
	arrived := make(chan arrival, 2)
	r, err := relay.New(db, relay.SinkFunc(func(ctx context.Context, d waybill.Delivery) error {
		a := arrival{payload: string(d.Payload)}
		if a.payload == "1" {
			err := pool.QueryRow(ctx, `SELECT clock_timestamp() < due_at FROM "`+schema+`".waybill_delayed`).Scan(&a.early)
			if err != nil {
				a.early = true // it is not in the tables yet
			}
		}
		arrived <- a
		return nil
	}), relay.Config{})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	if a := <-arrived; a.payload != "2" {
		t.Errorf("%s came first: an event that is not due must not hold others", a.payload)
	}
	if a := <-arrived; a.payload != "1" || a.early {
		t.Errorf("then came %s, early: %v", a.payload, a.early)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
