package pgstore_test

import (
	"context"
	"testing"
	"time"

	"github.com/jackc/pgx/v5"

	"github.com/waybillhq/waybill"
	"github.com/waybillhq/waybill/outbox"
	"github.com/waybillhq/waybill/store"
	"github.com/waybillhq/waybill/store/driver"
)

// The fence is a lock. A settlement that meets a takeover in progress waits for
// the takeover and is then rejected, although the statement's snapshot is older
// than the takeover.
func TestSettlementWaitsForTakeOver(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	box, err := outbox.New(db, outbox.Config{})
	if err != nil {
		t.Fatal(err)
	}
	if err := box.InTx(t.Context(), func(ctx context.Context, tx pgx.Tx) error { return box.Write(ctx, tx, event("A")) }); err != nil {
		t.Fatal(err)
	}
	node := store.Node{ID: waybill.NewID(), Relay: "r"}
	if _, err := db.Driver().Relay.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	lane := driver.LaneOf("", waybill.GlobalAggregate, "a", 32)
	leases, err := db.Driver().Relay.Acquire(t.Context(), node, []int{lane}, 1)
	if err != nil || len(leases) != 1 {
		t.Fatal(leases, err)
	}
	page, err := db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{Lane: lane}}, 1)
	if err != nil || len(page.Rows) != 1 {
		t.Fatal(page, err)
	}

	takeOver, err := pool.Begin(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer takeOver.Rollback(context.Background()) //nolint:errcheck // harmless after the commit
	if _, err := takeOver.Exec(t.Context(), `UPDATE "`+schema+`".waybill_lane SET epoch = epoch + 1, token = gen_random_uuid() WHERE lane = $1`, lane); err != nil {
		t.Fatal(err)
	}
	type answer struct {
		settled driver.Settled
		err     error
	}
	answers := make(chan answer, 1)
	go func() {
		settled, err := db.Driver().Relay.Settle(t.Context(), driver.Settlement{
			Leases: leases, Done: []driver.Result{{Lane: lane, ID: page.Rows[0].ID}}, History: true,
		})
		answers <- answer{settled, err}
	}()
	awaitLockWait(t, pool, schema, answers)
	if err := takeOver.Commit(t.Context()); err != nil {
		t.Fatal(err)
	}
	got := <-answers
	if got.err != nil || len(got.settled.Held) > 0 || len(got.settled.Moved) > 0 {
		t.Errorf("the stale settlement: %+v, %v; want nothing held and nothing moved", got.settled, got.err)
	}
	if page, err = db.Driver().Relay.Fetch(t.Context(), []driver.Cursor{{Lane: lane}}, 1); err != nil || len(page.Rows) != 1 {
		t.Errorf("the event is gone from the outbox: %v, %v", page.Rows, err)
	}
}

// A lease is renewed on the node's row. A heartbeat that wrote lanes would wait
// for settlements, and settlements for the heartbeat.
func TestHeartbeatsLeaveLanesAlone(t *testing.T) {
	pool := openPool(t, nil)
	db, schema := openStore(t, pool)
	node := store.Node{ID: waybill.NewID(), Relay: "r"}
	if _, err := db.Driver().Relay.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	if leases, err := db.Driver().Relay.Acquire(t.Context(), node, []int{0, 1, 2}, 1); err != nil || len(leases) != 3 {
		t.Fatal(leases, err)
	}
	versions := func() (out string) {
		err := pool.QueryRow(t.Context(), `SELECT string_agg(xmin::text, ' ' ORDER BY lane) FROM "`+schema+`".waybill_lane`).Scan(&out)
		if err != nil {
			t.Fatal(err)
		}
		return out
	}
	before := versions()
	if _, err := db.Driver().Relay.Heartbeat(t.Context(), node, time.Hour); err != nil {
		t.Fatal(err)
	}
	if after := versions(); after != before {
		t.Errorf("a heartbeat changed lanes: %s is now %s", before, after)
	}
}
