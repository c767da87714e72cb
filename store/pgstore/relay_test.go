package pgstore_test

import (
	"context"
	"database/sql"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/relay/relaytest"
	"github.com/waybillhq/waybill/store/storetest"
)

// TestRelay shows the relay's promises over pgx.
func TestRelay(t *testing.T) {
	pool := openPool(t, nil)
	relaytest.Run(t, storetest.Harness[pgx.Tx]{
		Name: "pgstore", Features: all,
		Open: func(t *testing.T) storetest.Instance[pgx.Tx] { return pgxInstance(t, pool) },
	})
}

// TestRelaySQL shows them over database/sql.
func TestRelaySQL(t *testing.T) {
	pool := openPool(t, nil)
	features := all
	features.SavepointAPI = false
	relaytest.Run(t, storetest.Harness[*sql.Tx]{
		Name: "pgstore/sql", Features: features,
		Open: func(t *testing.T) storetest.Instance[*sql.Tx] { return sqlInstance(t, pool) },
	})
}

// TestNotDueYet: a row that somebody inserted with plain SQL and a time to come is put off by the relay, and delivered then.
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
				a.early = true // it is not even there
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
		t.Errorf("%s came first: what is not due holds nothing back", a.payload)
	}
	if a := <-arrived; a.payload != "1" || a.early {
		t.Errorf("then came %s, early: %v", a.payload, a.early)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
