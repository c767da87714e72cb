package pgstore_test

import (
	"context"
	"database/sql"
	"sync/atomic"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/inbox/inboxtest"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/relay"
	"github.com/waybillhq/waybill/store/drivertest"
)

// TestInbox tests the guarantees of consumer groups over pgx.
func TestInbox(t *testing.T) {
	pool := openPool(t, manyConns)
	inboxtest.Run(t, drivertest.Harness[pgx.Tx]{
		Name: "pgstore", Features: all,
		Open: shelve(t, pool).pgx,
	})
}

// TestInboxSQL tests the guarantees of consumer groups over database/sql.
func TestInboxSQL(t *testing.T) {
	pool := openPool(t, manyConns)
	features := all
	features.SavepointAPI = false
	inboxtest.Run(t, drivertest.Harness[*sql.Tx]{
		Name: "pgstore/sql", Features: features,
		Open: shelve(t, pool).sql,
	})
}

// TestGroupAsSinkIsOneTransaction: the settlement of the outbox row, the effect
// and the record are one transaction, counted by the server.
func TestGroupAsSinkIsOneTransaction(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	in, err := inbox.New(db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	// Every transaction that writes has an id, and every id is a transaction.
	if _, err := pool.Exec(t.Context(), `CREATE TABLE "`+schema+`".effect (id uuid, xid xid8 DEFAULT pg_current_xact_id())`); err != nil {
		t.Fatal(err)
	}
	g := in.MustGroup("G", inbox.Options{})
	var applied atomic.Int64
	g.Handle("", "A", func(ctx context.Context, tx pgx.Tx, ev waybill.Event) error {
		_, err := tx.Exec(ctx, `INSERT INTO "`+schema+`".effect (id) VALUES ($1)`, [16]byte(ev.ID))
		applied.Add(1)
		return err
	})
	const many = 200
	var evs []waybill.Event
	for i := range many {
		evs = append(evs, waybill.NewEvent("A", i))
	}
	if err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, evs...) }); err != nil {
		t.Fatal(err)
	}
	r, err := relay.New(db, g, relay.Config{PollInterval: 20 * time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() { done <- r.Run(ctx) }()
	// The same transaction wrote the effect, the record and the history.
	query := `SELECT count(*) FROM "` + schema + `".effect e
JOIN "` + schema + `".waybill_inbox i ON i.event_id = e.id AND i.xmin = e.xmin
JOIN "` + schema + `".waybill_history h ON h.id = e.id AND h.xmin = e.xmin`
	deadline := time.Now().Add(30 * time.Second)
	for same := 0; same != many; {
		if err := pool.QueryRow(t.Context(), query).Scan(&same); err != nil {
			t.Fatal(err)
		}
		if time.Now().After(deadline) {
			t.Fatalf("%d of %d events have effect, record and settlement of one transaction; %d were applied", same, many, applied.Load())
		}
		<-time.After(5 * time.Millisecond)
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
	if n := applied.Load(); n != many {
		t.Errorf("%d calls of the handler for %d events", n, many)
	}
	var transactions int
	if err := pool.QueryRow(t.Context(), `SELECT count(DISTINCT xid) FROM "`+schema+`".effect`).Scan(&transactions); err != nil {
		t.Fatal(err)
	}
	if transactions > many/2 {
		t.Errorf("%d events took %d transactions: batches were not used", many, transactions)
	}
}
