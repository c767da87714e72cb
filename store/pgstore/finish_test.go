package pgstore_test

import (
	"context"
	"errors"
	"testing"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/inbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// claimed returns a row as its relay delivers it.
func claimed(db driver.Local, row store.Row, lease driver.Lease) waybill.Delivery {
	return waybill.Delivery{
		Event: row.Event, Attempt: 1, Claim: &driver.Claim{Token: lease.Token, Source: db.Local()},
		Position: waybill.Position{Lane: lease.Lane, Epoch: lease.Epoch, Seq: row.Seq},
	}
}

// TestFinishAtCommit: the COMMIT settles the deliveries, or commits nothing.
func TestFinishAtCommit(t *testing.T) {
	pool := openPool(t, nil)
	db, schema, rows, leases := owned(t, pool, 2)
	ctx := t.Context()
	if _, err := pool.Exec(ctx, `CREATE TABLE "`+schema+`".made (n int)`); err != nil {
		t.Fatal(err)
	}
	finish := func(done ...waybill.Delivery) error {
		session, err := db.Driver().Outbox.Begin(ctx, nil)
		if err != nil {
			return err
		}
		defer session.Rollback(context.Background()) //nolint:errcheck // harmless after the commit
		if _, err := session.Tx().Exec(ctx, `INSERT INTO "`+schema+`".made VALUES (1)`); err != nil {
			return err
		}
		later, err := db.Driver().Finisher.(driver.FinisherAtCommit[pgx.Tx]).FinishAtCommit(ctx, session.Tx(), done)
		if err != nil || !later {
			t.Errorf("FinishAtCommit: %v, %v", later, err)
		}
		_, err = session.Commit(ctx, nil, false)
		return err
	}
	want := func(what string, made, left int) {
		t.Helper()
		var gotMade, gotLeft int
		err := pool.QueryRow(ctx, `SELECT (SELECT count(*) FROM "`+schema+`".made), (SELECT count(*) FROM "`+schema+`".waybill_outbox)`).Scan(&gotMade, &gotLeft)
		if err != nil || gotMade != made || gotLeft != left {
			t.Errorf("%s: %d effects and %d events, want %d and %d; %v", what, gotMade, gotLeft, made, left, err)
		}
	}
	stale := leases[0]
	stale.Epoch--
	held, lost := claimed(db.Driver().Outbox, rows[0], leases[0]), claimed(db.Driver().Outbox, rows[1], stale)
	if err := finish(held, lost); !errors.Is(err, waybill.ErrLeaseLost) || errors.Is(err, waybill.ErrUncertain) {
		t.Errorf("a lost lane: %v, want ErrLeaseLost", err)
	}
	want("a lost lane", 0, 2)
	if err := finish(held); err != nil {
		t.Errorf("a held lane: %v", err)
	}
	want("a held lane", 1, 1)
}

// TestFinishAtCommitNeedsATransaction: only a transaction that has begun, and
// not a savepoint, settles at its commit, and once.
func TestFinishAtCommitNeedsATransaction(t *testing.T) {
	pool := openPool(t, nil)
	db, _, rows, leases := owned(t, pool, 1)
	ctx := t.Context()
	finisher := db.Driver().Finisher.(driver.FinisherAtCommit[pgx.Tx])
	done := []waybill.Delivery{claimed(db.Driver().Outbox, rows[0], leases[0])}
	try := func(what string, tx pgx.Tx, want bool) {
		t.Helper()
		if later, err := finisher.FinishAtCommit(ctx, tx, done); later != want || err != nil {
			t.Errorf("%s: %v, %v", what, later, err)
		}
	}
	session, err := db.Driver().Outbox.Begin(ctx, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer session.Rollback(context.Background()) //nolint:errcheck // harmless after the commit
	try("no transaction", nil, false)
	try("a transaction without a statement", session.Tx(), false)
	savepoint, err := session.Tx().Begin(ctx)
	if err != nil {
		t.Fatal(err)
	}
	try("a savepoint", savepoint, false)
	try("a transaction", session.Tx(), true)
	try("a transaction that settles already", session.Tx(), false)
	if _, err := session.Commit(ctx, nil, false); err != nil {
		t.Error(err)
	}
	if later, err := finisher.FinishAtCommit(ctx, session.Tx(), done); later {
		t.Errorf("a transaction that has ended: %v, %v", later, err)
	}
}

// TestInboxRoundTrips: a delivery costs two round trips besides its effect: one
// for BEGIN and the record, one for the settlement and the COMMIT.
func TestInboxRoundTrips(t *testing.T) {
	pool, w := openWire(t, nil)
	db, schema, rows, leases := owned(t, pool, 8)
	in, err := inbox.New[pgx.Tx](db, inbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	g := in.MustGroup("TRIPS", inbox.Options{})
	g.Handle(rows[0].Event.AggregateType, rows[0].Event.Type, func(ctx context.Context, tx pgx.Tx, _ waybill.Event) error {
		_, err := tx.Exec(ctx, "SELECT 1")
		return err
	})
	for i, row := range rows {
		before := w.sent.Load()
		if err := g.Deliver(t.Context(), []waybill.Delivery{claimed(db.Driver().Outbox, row, leases[0])})[0]; !errors.Is(err, waybill.ErrSettled) {
			t.Fatalf("Deliver: %v", err)
		}
		// The first deliveries prepare the statements.
		if n := w.sent.Load() - before; n != 3 && i > 1 {
			t.Errorf("delivery %d: %d round trips, want 3", i, n)
		}
	}
	var left int
	if err := pool.QueryRow(t.Context(), `SELECT count(*) FROM "`+schema+`".waybill_outbox`).Scan(&left); err != nil || left != 0 {
		t.Errorf("%d events are not settled, %v", left, err)
	}
}
